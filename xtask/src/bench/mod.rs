//! `cargo xtask bench`: what things take over urxe0 beside their floors, all in one run, as medians of interleaved repetitions.
//!
//! `host` is two processes of this host, `wire` two network namespaces, `guest` two in a guest with soft-RoCE; `table` says
//! how figures are judged and shown.
mod guest;
mod host;
pub mod table;
pub mod wire;

/// `bench [REPETITIONS]` or `bench wire [REPETITIONS]`.
pub fn bench(args: &[String]) -> Result<(), String> {
    match args.split_first() {
        Some((first, rest)) if first == "wire" => wire::bench(repetitions(rest)?),
        _ => host::bench(repetitions(args)?),
    }
}

/// Five, or as many as the argument says.
fn repetitions(args: &[String]) -> Result<u32, String> {
    match args.first().map_or(Ok(5), |n| n.parse().map_err(|_| format!("not a number: {n}")))? {
        0 => Err("no repetition is nothing measured".into()),
        n => Ok(n),
    }
}
