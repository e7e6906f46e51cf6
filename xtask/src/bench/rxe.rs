//! The rows of two processes of one host over urxe0 beside the same over the kernel's rxe, in one boot of the guest, on request. The
//! processor is emulated: ratios only.
use std::{env, path::Path, time::Duration};

use super::{
    client::{self, Device},
    own,
    rows::twice,
    table::{Limit, Row, Samples, row},
};
use crate::{
    guest,
    place::{Place, User, Via},
    run,
    stage::Stage,
};

const TENTH: Option<Limit> = Some(Limit::Most(0.1));
const FASTER: Option<Limit> = Some(Limit::Most(1.0));
const MORE: Option<Limit> = Some(Limit::Least(1.0));

/// perftest: figure, program, arguments.
const CLIENTS: [(&str, &str, &str); 12] = [
    ("send8_ns", "send_lat", "-s 8 -n 1000"),
    ("send4k_ns", "send_lat", "-s 4096 -m 4096 -n 1000"),
    ("write8_ns", "write_lat", "-s 8 -n 1000"),
    ("read8_ns", "read_lat", "-s 8 -n 1000"),
    ("fadd_ns", "atomic_lat", "-n 1000"),
    ("events8_ns", "send_lat", "-e -s 8 -n 1000"),
    ("write64k_gbs", "write_bw", "-s 65536 -m 4096 -n 500"),
    ("write1m_gbs", "write_bw", "-s 1048576 -m 4096 -n 50"),
    ("read64k_gbs", "read_bw", "-s 65536 -m 4096 -n 500"),
    ("read1m_gbs", "read_bw", "-s 1048576 -m 4096 -n 50"),
    ("send64k_gbs", "send_bw", "-s 65536 -m 4096 -n 500"),
    ("send1m_gbs", "send_bw", "-s 1048576 -m 4096 -n 50"),
];

/// Our programs: what stands before their names, program, arguments.
const OWN: [(&str, &str, &str); 4] = [
    ("", "many", "1 500"),
    ("rate1_", "rate", "1 1000 1 polls"),
    ("rate32_", "rate", "1 4000 32 polls"),
    ("", "setup", "50 200"),
];

const fn beside(
    what: &'static str,
    ours: &'static str,
    rxe: &'static str,
    limit: Option<Limit>,
) -> Row<'static> {
    row(what, ours, rxe, "kernel rxe", limit)
}

pub const ROWS: [Row<'_>; 19] = [
    beside("15 guest: SEND 8 B", "guest.urxe.send8_ns", "guest.rxe.send8_ns", TENTH),
    beside("15 guest: SEND 4 KiB", "guest.urxe.send4k_ns", "guest.rxe.send4k_ns", TENTH),
    beside("15 guest: WRITE 8 B", "guest.urxe.write8_ns", "guest.rxe.write8_ns", FASTER),
    beside("15 guest: READ 8 B", "guest.urxe.read8_ns", "guest.rxe.read8_ns", FASTER),
    beside("15 guest: fetch-and-add", "guest.urxe.fadd_ns", "guest.rxe.fadd_ns", FASTER),
    beside("15 guest: receiver sleeps", "guest.urxe.events8_ns", "guest.rxe.events8_ns", FASTER),
    beside("15 guest: WRITE 64 KiB", "guest.urxe.write64k_gbs", "guest.rxe.write64k_gbs", MORE),
    beside("15 guest: WRITE 1 MiB", "guest.urxe.write1m_gbs", "guest.rxe.write1m_gbs", MORE),
    beside("15 guest: READ 64 KiB", "guest.urxe.read64k_gbs", "guest.rxe.read64k_gbs", MORE),
    beside("15 guest: READ 1 MiB", "guest.urxe.read1m_gbs", "guest.rxe.read1m_gbs", MORE),
    beside("15 guest: SEND 64 KiB", "guest.urxe.send64k_gbs", "guest.rxe.send64k_gbs", MORE),
    beside("15 guest: SEND 1 MiB", "guest.urxe.send1m_gbs", "guest.rxe.send1m_gbs", MORE),
    beside("15 guest: 256 QPs in one CQ", "guest.urxe.qp256_ns", "guest.rxe.qp256_ns", FASTER),
    beside("15 guest: lists of 32", "guest.urxe.rate1_mps", "guest.rxe.rate1_mps", MORE),
    beside("15 guest: 32 pairs", "guest.urxe.rate32_mps", "guest.rxe.rate32_mps", MORE),
    beside("16 guest: MR of 1 MiB", "guest.urxe.reg1m_many_ns", "guest.rxe.reg1m_many_ns", None),
    beside("16 guest: CQ", "guest.urxe.cq_many_ns", "guest.rxe.cq_many_ns", None),
    beside("16 guest: QP", "guest.urxe.qp_many_ns", "guest.rxe.qp_many_ns", None),
    beside("16 guest: connect", "guest.urxe.connect_many_ns", "guest.rxe.connect_many_ns", None),
];

/// Adds the figures of `repetitions` rounds in one guest, which runs this program with `inside`.
pub fn measure(stage: &Stage, repetitions: u32, samples: &mut Samples) -> Result<(), String> {
    let me = env::current_exe().map_err(|e| e.to_string())?;
    let words = [&me, Path::new("in-guest-bench"), stage.public.path()].map(|p| p.display().to_string());
    let words: Vec<String> = words.into_iter().chain([repetitions.to_string()]).collect();
    let seconds = 300 + 300 * repetitions;
    let limit = Duration::from_secs(u64::from(seconds) + 30);
    let outcome = run::run(guest::command(&words, seconds)?, limit)?.success()?;
    if !outcome.out.contains("bench done") {
        return Err(format!("{outcome}"));
    }
    samples.read("guest.", &outcome.out);
    Ok(())
}

/// `xtask in-guest-bench FOLDER REPETITIONS`: prints each figure as it comes.
pub fn inside(args: &[String]) -> Result<(), String> {
    let [folder, repetitions] = args else { return Err("in-guest-bench FOLDER REPETITIONS".into()) };
    let repetitions: u32 = repetitions.parse().map_err(|_| "not a number".to_string())?;
    let place = |via| Place::new(Path::new(folder), via, User::Me);
    let urxe = place(Via::Path).with_env("ANYVERBS_SOFT", "1").with_env("C_TESTS_DEVICE", "urxe0");
    let gid = crate::trials::kernel::gid_of_rxe0()?;
    let rxe = place(Via::System).with_env("C_TESTS_DEVICE", "rxe0").with_env("C_TESTS_GID", &gid);
    let ends = [
        ("urxe.", urxe, Device { name: "urxe0", gid: "0".into() }),
        ("rxe.", rxe, Device { name: "rxe0", gid }),
    ];
    for _ in 0..repetitions {
        for (figure, program, args) in CLIENTS {
            for (kind, place, device) in &ends {
                let value = twice(|| client::measure(place, device, figure, program, args))?;
                println!("{kind}{figure} {value}");
            }
        }
        for (prefix, program, args) in OWN {
            for (kind, place, _) in &ends {
                let prefix = format!("{kind}{prefix}");
                let samples = twice(|| {
                    let mut samples = Samples::default();
                    own::measure(place, &prefix, program, args, &mut samples).map(|()| samples)
                })?;
                for (name, values) in samples.figures() {
                    values.iter().for_each(|value| println!("{name} {value}"));
                }
            }
        }
    }
    println!("bench done");
    Ok(())
}
