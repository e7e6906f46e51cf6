//! The picture as text: a line for each port, process and queue pair, with what is asked for most.
use std::fmt::Write;

use anyverbs_counters::{
    Values,
    scan::{self, Qp},
};

use super::{Kind, Picture, Port, Set};

/// A column: its head, what it means, the counters it is the sum of, by which names they go, and whether it is told as a rate.
struct Column {
    head: &'static str,
    means: &'static str,
    sum: &'static [&'static [&'static str]],
    bytes: bool,
    is_rate: bool,
}

const fn column(head: &'static str, means: &'static str, sum: &'static [&'static [&'static str]]) -> Column {
    Column { head, means, sum, bytes: false, is_rate: false }
}

/// `docs/COUNTERS.md` has the same table; a test holds it to this one.
const COLUMNS: [Column; 9] = [
    Column {
        is_rate: true,
        ..column(
            "sent",
            "packets sent, acknowledgements and retries too",
            &[&["port_xmit_packets", "sent_pkts"]],
        )
    },
    Column {
        is_rate: true,
        bytes: true,
        ..column("sent-bytes", "bytes of these, from BTH to ICRC", &[&["port_xmit_data"]])
    },
    Column { is_rate: true, ..column("rcvd", "packets received", &[&["port_rcv_packets", "rcvd_pkts"]]) },
    Column {
        is_rate: true,
        bytes: true,
        ..column("rcvd-bytes", "bytes of these, from BTH to ICRC", &[&["port_rcv_data"]])
    },
    column("retrans", "packets sent again", &[&["retrans_pkts"]]),
    column(
        "rnr",
        "RNR NAKs (no receive was posted), received and sent",
        &[&["rcvd_rnr_err", "rnr_nak_retry_err"], &["send_rnr_err", "out_of_buffer"]],
    ),
    column(
        "seq",
        "sequence error NAKs received, and requests received ahead of the one expected",
        &[&["rcvd_seq_err", "packet_seq_err"], &["out_of_seq_request", "out_of_sequence"]],
    ),
    column("timeout", "times that the local ACK timeout ran out", &[&["local_ack_timeout_err"]]),
    column(
        "errors",
        "packets received that were wrong or that no queue pair wanted, and requests that failed, flushed ones not",
        &[&["port_rcv_errors"], &["rx_drops"], &["req_cqe_error"], &["resp_cqe_error"]],
    ),
];

/// What the columns and lines mean, for the help.
pub fn legend() -> String {
    let mut text = "Columns:\n".to_string();
    for column in &COLUMNS {
        let _ = writeln!(text, "  {:<10}  {}", column.head, column.means);
    }
    text += "\nWith --watch the first four are told for a second (/s). A - means that the device has no such counter.\n\
             A queue pair is told by number, type, state, and where it is connected by way, number, process and\n\
             address of the other one. Which counters a column is the sum of: docs/COUNTERS.md.";
    text
}

/// A line: what it is about, its counters now, and those before, if it was there.
struct Line {
    about: String,
    set: Set,
    before: Option<Set>,
}

/// The whole picture; with one before it, traffic in what it is a second.
pub fn text(now: &Picture, before: Option<&Picture>, all: bool) -> String {
    let seconds = before.map(|before| now.at.duration_since(before.at).as_secs_f64());
    let mut out = String::new();
    let ports = now.ports.iter().map(|port| {
        let was = before.and_then(|b| {
            let name = |port: &Port| (port.device.clone(), port.number, port.kind);
            let is_same = |other: &&Port| name(other) == name(port);
            b.ports.iter().find(is_same).map(|port| port.set.clone())
        });
        let kind = match port.kind {
            Kind::Embedded { netns: None } => String::new(),
            Kind::Embedded { netns: Some(netns) } => format!(" (net:[{netns}])"),
            Kind::Kernel => " (kernel)".into(),
        };
        Line { about: format!("{}/{}{kind}", port.device, port.number), set: port.set.clone(), before: was }
    });
    table(&mut out, "device/port", ports.collect(), seconds, all);
    let mut lines = Vec::new();
    for process in &now.processes {
        let was = before.and_then(|b| b.processes.iter().find(|other| other.pid == process.pid));
        let sum = |all: &[scan::Port]| {
            let mut sum = Values::default();
            all.iter().for_each(|port| sum += &port.values);
            Set::from(&sum)
        };
        lines.push(Line {
            about: format!("{} {}", process.pid, printable(&process.name)),
            set: sum(&process.ports),
            before: was.map(|was| sum(&was.ports)),
        });
        for qp in &process.qps {
            let was = was.and_then(|was| was.qps.iter().find(|other| other.qpn == qp.qpn));
            lines.push(Line {
                about: format!("  {}", about(qp)),
                set: Set::from(&qp.values),
                before: was.map(|was| Set::from(&was.values)),
            });
        }
    }
    if lines.is_empty() {
        out += "No process that can be seen has had a queue pair of an embedded device.\n";
    } else {
        if !out.is_empty() {
            out += "\n";
        }
        table(&mut out, "process / queue pair", lines, seconds, all);
    }
    out
}

/// `0x012345 RC RTS shm to 0x054321 of 4711 at 10.0.0.1`.
fn about(qp: &Qp) -> String {
    let mut text = format!("0x{:06x} {} {}", qp.qpn, qp.kind, qp.state);
    if let Some(peer) = qp.peer {
        let _ = write!(text, " {} to 0x{:06x}", qp.path, peer.qpn);
        if let Some(pid) = peer.pid {
            let _ = write!(text, " of {pid}");
        }
        if let Some(address) = peer.address {
            let _ = write!(text, " at {address}");
        }
    }
    text
}

/// A name that may hold anything, without what a terminal would obey.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn table(out: &mut String, head: &str, lines: Vec<Line>, seconds: Option<f64>, all: bool) {
    if lines.is_empty() {
        return;
    }
    let heads = COLUMNS.iter().map(|c| match seconds {
        Some(_) if c.is_rate => format!("{}/s", c.head),
        _ => c.head.to_string(),
    });
    let mut rows: Vec<Vec<String>> = vec![[head.to_string()].into_iter().chain(heads).collect()];
    for line in &lines {
        let cells = COLUMNS.iter().map(|column| cell(column, line, seconds));
        rows.push([line.about.clone()].into_iter().chain(cells).collect());
    }
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=COLUMNS.len()).map(wide).collect();
    for (n, row) in rows.iter().enumerate() {
        let _ = write!(out, "{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row[1..].iter().zip(&widths[1..]) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
        if let (true, Some(line)) = (all, n.checked_sub(1).and_then(|n| lines.get(n))) {
            list(out, &line.set);
        }
    }
}

fn cell(column: &Column, line: &Line, seconds: Option<f64>) -> String {
    let sum = |set: &Set| {
        let found: Vec<u64> = column.sum.iter().filter_map(|names| set.get(names)).collect();
        (!found.is_empty()).then(|| found.iter().sum::<u64>() * if column.bytes { 4 } else { 1 })
    };
    let Some(now) = sum(&line.set) else { return "-".into() };
    match (seconds, column.is_rate) {
        (Some(seconds), true) => {
            let grown = now.saturating_sub(line.before.as_ref().and_then(sum).unwrap_or(now));
            scaled(grown as f64 / seconds.max(1e-3))
        }
        _ => now.to_string(),
    }
}

/// With three or four digits, in thousands of thousands.
fn scaled(mut n: f64) -> String {
    for unit in ["", "k", "M", "G"] {
        if n < 9999.5 {
            return if unit.is_empty() || n >= 100.0 {
                format!("{n:.0}{unit}")
            } else {
                format!("{n:.1}{unit}")
            };
        }
        n /= 1000.0;
    }
    format!("{n:.0}T")
}

fn list(out: &mut String, set: &Set) {
    for (folder, all) in [("counters", &set.counters), ("hw_counters", &set.hw_counters)] {
        for (name, n) in all.iter().filter(|(_, n)| *n != 0) {
            let _ = writeln!(out, "    {folder}/{name} {n}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        for (n, text) in
            [(0.0, "0"), (999.4, "999"), (9999.0, "9999"), (10_000.0, "10.0k"), (123_456.0, "123k")]
        {
            assert_eq!(scaled(n), text);
        }
        assert_eq!(
            (scaled(9_999_600.0), scaled(2.5e10), scaled(1e17)),
            ("10.0M".into(), "25.0G".into(), "100000T".into())
        );
    }

    #[test]
    fn the_page_explains_every_column() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COUNTERS.md");
        let page = std::fs::read_to_string(page).expect("docs/COUNTERS.md");
        let rows = COLUMNS.map(|column| {
            let counters = column
                .sum
                .iter()
                .map(|names| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "));
            let times = if column.bytes { " times 4" } else { "" };
            let sum = counters.collect::<Vec<_>>().join(", plus ");
            format!("| {} | {} | {sum}{times} |\n", column.head, column.means)
        });
        let table = "| column | what it says | sum of |\n| --- | --- | --- |\n".to_string() + &rows.concat();
        assert!(page.contains(&table), "docs/COUNTERS.md lacks:\n{table}");
    }

    #[test]
    fn control_characters_in_names_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a?[2Jb?");
    }
}
