//! PERFORMANCE.md: how it was measured, every row with its verdict, and what was written by hand below it.
use std::{fs, time::Duration};

use super::table::{self, Judged, Samples, Value};
use crate::run;

/// What stands below this line is kept when the page is written anew.
const BY_HAND: &str = "<!-- Below: by hand; `cargo xtask bench` keeps it. -->";

const HEAD: &str = "\
# Performance between two processes of one host

Written by `ANYVERBS_UPDATE_DOCS=1 cargo xtask bench`; every number below, floors and peers included, is of one run.
";

const HOW: &str = "\
## How it is measured

- Each process is pinned to a core of its own, the client to the first, the server to the second. All programs of a repetition run one after the
  other, a figure next to what it is compared with; a figure is the median of the repetitions, its spread how far the middle half of them lies apart.
- Clients are Debian's perftest programs as they are (`pt_` figures: typical latency, average rate), and programs of ours (`c-tests/bench`) for what they
  cannot do: rows 4, 6 with a target that polls, 9, 10, 11, 13, 14 and 16, and the rows without a number. No thread of ours
  spins.
- Floors are programs of ours in the same run: a cache line written on one core and read on the other (a hop, one way), loops of process_vm_writev and
  process_vm_readv, memcpy, and an eventfd on which each end sleeps in turn. READ is held to process_vm_readv. Row 7 takes
  their rate over the whole time, as perftest and UCX do; other figures of ours are medians of short chunks.
- Peers are the distribution's: UCX's `ucx_perftest` (median latency; rate of the whole test) with UCX_TLS=posix, sysv, or posix,cma, and libfabric's
  `fi_pingpong -p shm -e rdm`, the only benchmark in libfabric's package: it has no rate, so rows of rate have no libfabric beside them. `put_lat`,
  `put_bw`, `get` and `am_bw` are of UCX's lower layer (UCT): a store into memory that both have mapped, or one system call. The same over the layer
  that programs use (UCP) stands beside it without a limit.
- Row 8: UCX's tag_bw with posix,cma. Row 10: a list of 32 SENDs asks for one completion, 512 are under way, the receiver takes up to 32 completions a
  poll and posts receives in lists of 32.
- Row 11: callgrind counts inside the function that calls `ibv_post_send` (8 bytes, inline, signaled, RC, between two processes) and inside the one
  that calls `ibv_poll_cq` once, after the peer has said by TCP that it has the message: that poll takes the acknowledgement from the ring and
  returns the completion. Each of 200 calls is counted by itself, behind 400 that are not; nearly all take the same number, which is given (three
  quarters do not exceed it). Call and return are in it; polls in vain are not.
- Row 14: 32 senders share one core, 32 receivers the other; messages a second are those whose completions senders saw in the same second.
- Row 16: so many objects are made, then destroyed: nanoseconds for both, each. `connecting` is from RESET to RTS in both processes at the same time;
  the first SEND, with its completion, comes after it. Flat means here: 10,000 at a time cost at most 1.25 times as much each as 1,000.
";

const GUEST: &str = "\
Row 15 was measured in the guest (`cargo xtask bench guest`): the same programs between two processes over urxe0 and over the kernel's rxe, in one boot. Its
processor is emulated; only ratios mean anything. Row 16 there is of 200 objects at a time.
";

const NO_GUEST: &str = "\
Row 15, beside the kernel's rxe, is measured in a guest and was not asked for: `cargo xtask bench guest`.
";

/// Where and with what: names and values.
pub struct About(pub Vec<(String, String)>);

impl About {
    /// The machine, and the versions of these packages.
    pub fn here(repetitions: u32, guest: bool, packages: &[&str]) -> About {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let model = model.map_or("?", |(_, name)| name.trim());
        let cores = info.lines().filter(|line| line.starts_with("processor")).count();
        let version = |package: &str| {
            let words = ["-W", "-f", "${Version}", package];
            let said = run::run(run::command("dpkg-query", words), Duration::from_secs(10));
            said.ok().filter(run::Outcome::ok).map_or("?".into(), |said| said.out.trim().to_string())
        };
        let mut about = vec![
            ("processor".to_string(), format!("{model}, {cores} cores")),
            // The release; what a builder has added says nothing to others.
            (
                "kernel".into(),
                read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or("?").into(),
            ),
            ("repetitions".into(), repetitions.to_string()),
            ("guest".into(), if guest { "yes" } else { "no" }.into()),
        ];
        about.extend(packages.iter().map(|p| (p.to_string(), version(p))));
        About(about)
    }

    /// As lines of a table.
    pub fn lines(&self) -> String {
        self.0.iter().map(|(name, value)| format!("| {name} | {value} |\n")).collect()
    }
}

/// The page; `chart` is where the picture lies, `before` the page as it was.
pub fn compose(about: &About, rows: &[Judged], samples: &Samples, chart: &str, before: &str) -> String {
    let held = rows.iter().filter(|row| row.limit.is_some()).count();
    let parts = |name: &str| samples.median(name).map_or("?".into(), |value| format!("{value:.0}"));
    let about_lines = about.lines();
    let guest = if about.0.contains(&("guest".into(), "yes".into())) { GUEST } else { NO_GUEST };
    let kept = before.split_once(BY_HAND).map_or("\n", |(_, kept)| kept);
    format!(
        "{HEAD}\n{} of {held} rows with a limit keep it.\n\n![Each row beside its reference]({chart})\n\n{}\n{guest}\n\
         Row 11 is {} instructions for the post and {} for the poll.\n\n{HOW}\n| | |\n|---|---|\n{about_lines}\n{BY_HAND}{kept}",
        held - table::short(rows),
        table(rows),
        parts("post_ir"),
        parts("poll_ir"),
    )
}

/// The rows as a table of the page.
pub fn table(rows: &[Judged]) -> String {
    let mut out = "| row | measured | spread | reference | | spread | ratio | limit | |\n\
                   |---|---:|---:|---|---:|---:|---:|---|---|\n"
        .to_string();
    for row in rows {
        let floor = row.floor.as_ref();
        let verdict = match row.kept {
            Some(false) => "**short**",
            _ => row.verdict(),
        };
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {verdict} |\n",
            row.what,
            row.figure,
            row.figure.spread(),
            row.floor_is,
            floor.map_or("-".into(), Value::to_string),
            floor.map_or("-".into(), Value::spread),
            row.ratio(),
            row.limit.map_or(String::new(), |limit| limit.to_string()),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::tests::judged;

    #[test]
    fn every_row_stands_there_with_its_verdict() {
        let wanted = "\
| row | measured | spread | reference | | spread | ratio | limit | |
|---|---:|---:|---|---:|---:|---:|---|---|
| 1 a | 90.00 ns | 11 % | bee | 100.00 ns | 0 % | 0.90 | at most 1 | pass |
| 2 c | 8.00 GB/s | 0 % | dee | 16.00 GB/s | 0 % | 0.50 | at least 0.95 | **short** |
| 2 c & <d> | 16.00 GB/s | 0 % | cee | 8.00 GB/s | 0 % | 2.00 |  |  |
| 11 e | 350.00 instr. | 0 % |  | - | - | - | at most 400 | pass |
";
        assert_eq!(table(&judged()), wanted);
    }

    #[test]
    fn what_was_written_by_hand_stays() {
        let about = About(vec![("guest".into(), "no".into()), ("kernel".into(), "6.1".into())]);
        let (rows, mut samples) = (judged(), Samples::default());
        samples.read("", "post_ir 300\npoll_ir 99.6\n");
        let page = compose(&about, &rows, &samples, "c.svg", "");
        assert!(page.starts_with(HEAD) && page.contains("2 of 3 rows with a limit keep it."));
        assert!(page.contains("(c.svg)") && page.contains("| kernel | 6.1 |") && page.contains(NO_GUEST));
        assert!(page.contains("is 300 instructions for the post and 100 for the poll"));
        assert!(page.ends_with(&format!("{BY_HAND}\n")));
        let again = compose(&about, &rows, &samples, "c.svg", &format!("{page}\n## Short rows\n"));
        assert_eq!(again, format!("{page}\n## Short rows\n"));
    }
}
