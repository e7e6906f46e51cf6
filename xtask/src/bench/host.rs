//! Everything between two processes of this host, each on a core of its own, and its floors and peers; in the guest, beside the
//! kernel's rxe, on request. target/bench.json, target/bench.svg, target/PERFORMANCE.md.
use std::{fs, path::Path, time::Instant};

use super::{
    chart,
    client::Device,
    json, own,
    page::{self, About},
    rows::{MEASURES, ROWS},
    rxe,
    table::{self, Samples},
    write,
};
use crate::{
    apt,
    place::{Place, User, Via},
    stage,
};

const NEEDS: &[apt::Need] = &[
    ("ib_send_lat", "perftest"),
    ("ucx_perftest", "ucx-utils"),
    ("fi_pingpong", "libfabric-bin"),
    ("valgrind", "valgrind"),
];

/// Measures, shows the table, and writes the files; with ANYVERBS_UPDATE_DOCS also docs/PERFORMANCE.md and its chart.
pub fn bench(repetitions: u32, guest: bool) -> Result<(), String> {
    apt::ensure(NEEDS)?;
    let stage = stage::stage()?;
    let place = |via| Place::new(stage.lib.parent().unwrap_or(Path::new(".")), via, User::Me);
    let ours = place(Via::Path).with_env("ANYVERBS_SOFT", "1").with_env("C_TESTS_DEVICE", "urxe0");
    let theirs = place(Via::System);
    let device = Device { name: "urxe0", gid: "0".into() };
    let mut samples = Samples::default();
    for repetition in 1..=repetitions {
        let begin = Instant::now();
        for measure in MEASURES {
            measure.run(&ours, &theirs, &device, &mut samples)?;
        }
        eprintln!("repetition {repetition} of {repetitions}: {:.0} s", begin.elapsed().as_secs_f64());
    }
    // Once: they are counted, not measured.
    own::instructions(&ours, &mut samples)?;
    let mut rows = samples.judge(ROWS)?;
    if guest {
        rxe::measure(&stage, repetitions, &mut samples)?;
        rows.extend(samples.judge(&rxe::ROWS)?);
    }
    println!(
        "medians of {repetitions} interleaved repetitions, one run, each process on a core of its own; one way, where it is latency\n"
    );
    print!("{}", table::text(&rows));
    if !guest {
        println!("15 beside the kernel's rxe: cargo xtask bench guest");
    }
    let about = About::here(repetitions, guest, &["perftest", "libucx0", "libfabric1", "valgrind"]);
    write(&stage::target().join("bench.json"), &json::text(&about, &rows, &samples))?;
    write(&stage::target().join("bench.svg"), &chart::draw(&rows))?;
    write(&stage::target().join("PERFORMANCE.md"), &page::compose(&about, &rows, &samples, "bench.svg", ""))?;
    if std::env::var_os("ANYVERBS_UPDATE_DOCS").is_some() {
        let docs = stage::root().join("docs");
        let kept = fs::read_to_string(docs.join("PERFORMANCE.md")).unwrap_or_default();
        write(&docs.join("performance.svg"), &chart::draw(&rows))?;
        let page = page::compose(&about, &rows, &samples, "performance.svg", &kept);
        write(&docs.join("PERFORMANCE.md"), &page)?;
    }
    let (figures, target) = (samples.figures().count(), stage::target());
    println!(
        "\n{figures} figures in {0}/bench.json, chart and page in {0}/bench.svg and {0}/PERFORMANCE.md; {1} of {2} rows with a limit are short",
        target.display(),
        table::short(&rows),
        rows.iter().filter(|row| row.limit.is_some()).count(),
    );
    Ok(())
}
