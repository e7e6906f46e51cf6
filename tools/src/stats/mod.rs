//! `anyverbs stats`: what the embedded devices of all processes that can be seen, and kernel devices, have counted.
mod json;
mod kernel;
mod plain;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyverbs_counters::{
    Group, Values,
    scan::{self, Process},
};
use clap::Args;

pub use plain::legend;

/// What to show, and how.
#[derive(Args)]
pub struct Stats {
    /// Show it again every SECS seconds, with rates, until interrupted
    #[arg(short, long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    /// One JSON object, or with --watch one a line
    #[arg(short, long)]
    json: bool,
    /// Every counter that is not 0, by its name
    #[arg(short, long)]
    all: bool,
    /// Only this process; may be given more than once
    #[arg(short, long)]
    pid: Vec<u32>,
    /// Only this queue pair, by its number (0x for hexadecimal); may be given more than once
    #[arg(short, long, value_name = "QPN", value_parser = number)]
    qp: Vec<u32>,
}

/// The counters of a port or queue pair, by folder.
#[derive(Clone, Default)]
pub struct Set {
    pub counters: Vec<(String, u64)>,
    pub hw_counters: Vec<(String, u64)>,
}

/// A port of a device.
#[derive(Clone)]
pub struct Port {
    pub device: String,
    pub number: u32,
    pub kind: Kind,
    pub set: Set,
}

/// Whose device it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ours; where its processes are in another network namespace than this one, that one's inode.
    Embedded {
        netns: Option<u64>,
    },
    Kernel,
}

/// All that there is to be shown at one time.
pub struct Picture {
    pub at: Instant,
    /// Embedded devices as sums over all processes, then the kernel's. None where only some processes are asked for.
    pub ports: Vec<Port>,
    pub processes: Vec<Process>,
}

impl From<&Values> for Set {
    fn from(values: &Values) -> Set {
        let of = |group| values.of(group).map(|(name, n)| (name.to_string(), n)).collect();
        Set { counters: of(Group::Port), hw_counters: of(Group::Hw) }
    }
}

impl Set {
    /// The first of these counters that there is; names are looked for in both folders.
    pub fn get(&self, names: &[&str]) -> Option<u64> {
        let all = || self.counters.iter().chain(&self.hw_counters);
        names.iter().find_map(|name| all().find(|(known, _)| known == name).map(|(_, n)| *n))
    }
}

impl Stats {
    /// Shows it, once or until interrupted. Fails where what was asked for does not exist, or stdout fails.
    pub fn run(self) -> ExitCode {
        let (interrupt, interrupted) = mpsc::channel::<()>();
        if self.watch.is_some() {
            let stop = move || _ = interrupt.send(());
            if let Err(why) = ctrlc::set_handler(stop) {
                return fail(&why);
            }
        }
        let mut before = None;
        loop {
            let began = Instant::now();
            let now = self.look();
            if self.watch.is_none()
                && now.processes.is_empty()
                && !(self.pid.is_empty() && self.qp.is_empty())
            {
                return fail(&"no process that can be seen has that");
            }
            match self.show(&now, before.as_ref()) {
                Ok(()) => {}
                // Whoever reads has seen enough.
                Err(why) if why.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
                Err(why) => return fail(&why),
            }
            let Some(every) = self.watch else { return ExitCode::SUCCESS };
            before = Some(now);
            if interrupted.recv_timeout(every.saturating_sub(began.elapsed())).is_ok() {
                return ExitCode::SUCCESS;
            }
        }
    }

    fn look(&self) -> Picture {
        let (at, mut processes) = (Instant::now(), scan::processes());
        let is_whole = self.pid.is_empty() && self.qp.is_empty();
        let mut ports = if is_whole { embedded(&processes) } else { Vec::new() };
        if is_whole {
            ports.extend(kernel::ports());
        }
        processes.retain_mut(|process| {
            process.qps.retain(|qp| self.qp.is_empty() || self.qp.contains(&qp.qpn));
            (self.pid.is_empty() || self.pid.contains(&process.pid))
                && (self.qp.is_empty() || !process.qps.is_empty())
        });
        Picture { at, ports, processes }
    }

    fn show(&self, now: &Picture, before: Option<&Picture>) -> io::Result<()> {
        let mut text = String::new();
        if self.json {
            text = json::object(now, self.watch.is_none())?;
        } else {
            let is_screen = self.watch.is_some() && io::stdout().is_terminal();
            if is_screen {
                // Home, and clear what is below.
                text += "\x1b[H\x1b[J";
            } else if before.is_some() {
                text += "\n";
            }
            text += &plain::text(now, before, self.all);
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The embedded devices by name: sums over all processes of a network namespace, which has addresses of its own as a host has.
fn embedded(processes: &[Process]) -> Vec<Port> {
    let mut sums: BTreeMap<(u64, String), Values> = BTreeMap::new();
    for process in processes {
        for port in &process.ports {
            *sums.entry((process.netns, port.device.clone())).or_default() += &port.values;
        }
    }
    let own = scan::network(std::process::id());
    let port = |((netns, device), values): ((u64, String), Values)| {
        let netns = Some(netns).filter(|netns| *netns != own);
        Port { device, number: 1, kind: Kind::Embedded { netns }, set: Set::from(&values) }
    };
    sums.into_iter().map(port).collect()
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_string())?;
    if (0.05..=86400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("expected 0.05 to 86400 seconds".into())
    }
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.ok().filter(|n| *n <= 0xff_ffff).ok_or_else(|| "expected a number of 24 bits".into())
}

fn fail(why: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("anyverbs stats: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_named_in_either_base() {
        assert_eq!((number("0x01abcd"), number("17")), (Ok(0x1abcd), Ok(17)));
        for bad in ["", "0x", "x1", "-1", "16777216", "0x1000000"] {
            assert!(number(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn intervals_are_seconds_within_reason() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }
}
