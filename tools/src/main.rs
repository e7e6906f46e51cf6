//! `anyverbs`: runs programs over the embedded device, also with faults, and says what this machine offers it.
mod doctor;
mod libraries;
mod run;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA verbs on any Linux machine.
#[derive(Parser)]
#[command(name = "anyverbs", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a program that finds urxe0 in libibverbs, in /sys/class/infiniband and in /dev/infiniband.
    ///
    /// Refused calls say on stderr which attribute was wrong, unless ANYVERBS_EXPLAIN=0 is set.
    Run(run::Run),
    /// Runs a program whose messages go wrong, as `run` does otherwise.
    ///
    /// FAULTS is a list of items with commas between them, for example "loss=1%,delay=200us,seed=7":
    ///
    ///   loss=P% dup=P% reorder=P% corrupt=P%  of the packets (in memory: messages) that the program sends
    ///   delay=TIME         everything arrives so much later: 500ns, 200us, 5ms, 1s
    ///   rnr=P%             of the requests that take a receive are told that there is none
    ///   kill_qp_after=N    a queue pair fails after N requests
    ///   seed=N             the same seed, the same faults (1 where none is given)
    ///
    /// docs/FAULTS.md says what each means on which path. The peer is not concerned: it has faults of its own, or none.
    #[command(verbatim_doc_comment)]
    Faults(run::Faults),
    /// Runs a program and writes what it sends and receives to a file for Wireshark, as `run` does otherwise.
    ///
    /// Messages between hosts are there as the packets that they are, those within this host as the packets that they
    /// stand for; the interface of a packet tells its way: udp, shm, direct (cross-memory attach) or local.
    Trace(run::Trace),
    /// Shows what this machine offers: devices, addresses, cross-memory attach, ports and limits.
    Doctor,
    /// Shows what devices, processes and queue pairs have counted: packets, bytes, retries, errors.
    ///
    /// Processes of this user are seen, or all for root. They are not asked, and nothing of them changes.
    #[command(after_help = stats::legend())]
    Stats(stats::Stats),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(run) => run.exec(),
        Command::Faults(faults) => faults.exec(),
        Command::Trace(trace) => trace.exec(),
        Command::Doctor => doctor::doctor(),
        Command::Stats(stats) => stats.run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn man_page_has_every_command_and_option() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/man/anyverbs.1");
        let page = std::fs::read_to_string(page).expect("docs/man/anyverbs.1").replace('\\', "");
        for command in Arguments::command().get_subcommands() {
            assert!(page.contains(&format!("\n.B {}\n", command.get_name())), "{}", command.get_name());
            for long in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(page.contains(&format!("--{long}")), "--{long}");
            }
        }
    }
}
