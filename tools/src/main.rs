//! `anyverbs`: runs programs over the embedded device, and says what this machine offers it.
mod doctor;
mod libraries;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA verbs on any Linux machine.
#[derive(Parser)]
#[command(version, about)]
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
    /// Shows what this machine offers: devices, addresses, cross-memory attach, ports and limits.
    Doctor,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(run) => run.exec(),
        Command::Doctor => doctor::doctor(),
    }
}
