//! PERFORMANCE-WIRE.md: how it was measured between two hosts, and every row with its verdict.
use super::{
    page::{About, table},
    table::{Judged, Samples, short},
};

const HEAD: &str = "\
# Performance between two hosts

Written by `ANYVERBS_UPDATE_DOCS=1 cargo xtask bench wire`; every number below, floors included, is of one run. `docs/PERFORMANCE.md` is about two processes
of one host.
";

const HOW: &str = "\
## How it is measured

- Two network namespaces joined by veth stand for two hosts; no packet leaves the machine, so all that takes time is software. Each end polls on a core of
  its own. All programs of a repetition run one after the other; a figure is the median of the repetitions, its spread how far the middle half of
  them lies apart.
- `SEND 64 B one way`: half a round trip, one message each way under way, a completion asked for every 32nd; `all complete`: for each. `WRITE 64 B, peer
  looks at memory`: `ib_write_lat`, typical; the peer makes no call while it waits, so its progress thread takes the packet. The others are rates of
  many messages under way; `lists` are lists of requests.
- `UDP echo` is a datagram of the same size between two sockets and back, halved; `UDP with GSO and GRO` is a sender whose kernel cuts
  datagrams of 64 KiB into packets of the same size, and a receiver that counts them without a copy of its own and without a checksum.
  iperf3 sends TCP, whose segments the kernel joins.
- Rows `guest` are measured in a guest with two emulated processors: perftest over urxe0 beside the kernel's soft-RoCE with Debian's library, in one
  boot. Only ratios mean anything there. A program whose messages need an acknowledgement over sockets sends and takes two packets where an echo has
  one: `UDP echo` beside `kernel rxe` shows what is left for that.

## Why rows are short

- SEND: our packets have addresses, TTL and TOS by control message, and an ICRC; where every message is complete, its acknowledgement is a packet more. What
  that costs of an echo is in `docs/ARCHITECTURE.md`, \"What a socket costs is the floor of latency\".
- WRITE beside iperf3: TCP copies once where it receives, from the kernel to the program. A RoCEv2 packet is looked at before it may touch the
  program's memory (its ICRC covers all of it), so there are two copies and a checksum: of the receiver's time, 33 %, 27 % and 12 %. The ratio follows the
  machine's memory bandwidth: 0.8 to 1.1.
- SEND in the guest: each instruction of a program is emulated, 2,900 of ours and two more system calls a message; soft-RoCE needs none for a packet.
";

/// The page.
pub fn compose(repetitions: u32, rows: &[Judged], samples: &Samples) -> Result<String, String> {
    let held = rows.iter().filter(|row| row.limit.is_some()).count();
    let has_guest = rows.iter().any(|row| row.what.starts_with("guest"));
    let [sends, receives] = ["sends", "receives"].map(|side| samples.median(&format!("instructions_{side}")));
    let about = About::here(repetitions, has_guest, &["iperf3", "perftest", "valgrind"]);
    Ok(format!(
        "{HEAD}\n{} of {held} rows with a limit keep it.\n\n{}\n\
         A packet of a WRITE of 1 MiB, MTU 9000, takes {:.0} instructions of ours where it is sent, {:.0} where it is received.\n\n\
         {HOW}\n| | |\n|---|---|\n{}",
        held - short(rows),
        table(rows),
        sends?,
        receives?,
        about.lines(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::tests::judged;

    #[test]
    fn the_page_has_every_row_and_what_a_packet_takes() {
        let mut samples = Samples::default();
        samples.read("", "instructions_sends 300\ninstructions_receives 99.6\n");
        let page = compose(3, &judged(), &samples).unwrap();
        assert!(page.starts_with(HEAD) && page.contains("2 of 3 rows with a limit keep it."));
        assert!(
            page.contains("| 2 c | 8.00 GB/s |")
                && page.contains("takes 300 instructions of ours where it is sent, 100 where")
        );
        assert!(page.contains("| repetitions | 3 |") && page.contains("| guest | no |"));
        assert!(compose(3, &judged(), &Samples::default()).is_err());
    }
}
