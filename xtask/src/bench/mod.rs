//! `cargo xtask bench`: what things take over urxe0 beside their floors, all in one run, as medians of interleaved repetitions.
//!
//! `host` is two processes of this host, in the order of `rows`, with what `client` (perftest), `own` (our C programs) and `peers` (UCX,
//! libfabric) say; `rxe` is the same in a guest with the kernel's soft-RoCE. `wire` is two network namespaces, `guest` two in the
//! guest. `table` says how figures are judged and shown, `json`, `chart`, `page` and `wire_page` what is written.
mod chart;
mod client;
mod guest;
mod host;
mod json;
mod own;
mod page;
mod peers;
mod rows;
mod rxe;
pub mod table;
pub mod wire;
mod wire_page;

use std::{fs, path::Path};

pub use rxe::inside;

/// `bench [REPETITIONS]`, `bench guest [REPETITIONS]` or `bench wire [REPETITIONS]`.
pub fn bench(args: &[String]) -> Result<(), String> {
    match args.split_first() {
        Some((first, rest)) if first == "wire" => wire::bench(repetitions(rest)?),
        Some((first, rest)) if first == "guest" => host::bench(repetitions(rest)?, true),
        _ => host::bench(repetitions(args)?, false),
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}

/// Five, or as many as the argument says.
fn repetitions(args: &[String]) -> Result<u32, String> {
    match args.first().map_or(Ok(5), |n| n.parse().map_err(|_| format!("not a number: {n}")))? {
        0 => Err("no repetition is nothing measured".into()),
        n => Ok(n),
    }
}
