//! What others do between two processes of one host, by their own benchmarks: UCX's ucx_perftest and libfabric's fi_pingpong, a
//! core for each side, and the distribution's libraries.
use std::time::Duration;

use crate::{
    place::Place,
    run::{self, Outcome},
};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: f64 = 1_048_576.0;

/// Runs `ucx_perftest ARGS` with these transports and gives the value for a figure of this name: the median latency for
/// `_ns`, the rate of the whole test for `_gbs` and `_mps`.
pub fn ucx(place: &Place, figure: &str, transports: &str, args: &str) -> Result<f64, String> {
    let place = place.clone().with_env("UCX_TLS", transports).with_env("UCX_WARN_UNUSED_ENV_VARS", "n");
    let port = run::port();
    let out = pair(&place, port, &format!("ucx_perftest -f -v -p {port} {args}"), "127.0.0.1")?.out;
    ucx_value(figure, &out).ok_or(format!("no figure in: {out}"))
}

/// Runs libfabric's ping-pong over shared memory: one way, nanoseconds.
pub fn fabric(place: &Place, bytes: u32, iterations: u32) -> Result<f64, String> {
    let port = run::port();
    let all = format!("fi_pingpong -p shm -e rdm -I {iterations} -S {bytes}");
    let mut server = run::spawn(place.command("/pin", words("1", &format!("{all} -B {port}"), "")))?;
    server.listens(port, LIMIT)?;
    let words = words("0", &format!("{all} -P {port}"), "127.0.0.1");
    let client = run::run(place.command("/pin", words), LIMIT)?;
    let out = ended(client, server)?.out;
    fabric_value(&out).ok_or(format!("no figure in: {out}"))
}

fn pair(place: &Place, port: u16, all: &str, host: &str) -> Result<Outcome, String> {
    let mut server = run::spawn(place.command("/pin", words("1", all, "")))?;
    server.listens(port, LIMIT)?;
    let client = run::run(place.command("/pin", words("0", all, host)), LIMIT)?;
    ended(client, server)
}

fn ended(client: Outcome, server: run::Child) -> Result<Outcome, String> {
    let server = server.finish(Duration::from_secs(5));
    if client.ok() && server.ok() { Ok(client) } else { Err(format!("{client}\n    server: {server}")) }
}

fn words(core: &str, all: &str, host: &str) -> Vec<String> {
    [core]
        .into_iter()
        .chain(all.split(' '))
        .chain([host])
        .filter(|w| !w.is_empty())
        .map(String::from)
        .collect()
}

/// The line of numbers behind the names that `-v` prints.
fn ucx_value(figure: &str, out: &str) -> Option<f64> {
    let (head, line) = out.split_once("iterations,")?.1.split_once('\n')?;
    let (title, scale) = match figure.rsplit_once('_')?.1 {
        "ns" => ("50.0_percentile_lat", 1e3),
        "gbs" => ("overall_bw", MIB / 1e9),
        "mps" => ("overall_mr", 1e-6),
        _ => return None,
    };
    let column = head.split(',').position(|name| name.trim() == title)? + 1;
    let value: f64 = line.lines().next()?.split(',').nth(column)?.trim().parse().ok()?;
    (value > 0.0).then_some(value * scale)
}

/// The column `usec/xfer` of the only line.
fn fabric_value(out: &str) -> Option<f64> {
    let (head, line) = out.split_once("bytes")?.1.split_once('\n')?;
    let column = head.split_whitespace().position(|name| name == "usec/xfer")? + 1;
    let value: f64 = line.lines().next()?.split_whitespace().nth(column)?.parse().ok()?;
    (value > 0.0).then_some(value * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_column() {
        let out = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                   1000,0.151,4.444,3.251,1.72,1024.0,225036,307588\n";
        assert_eq!(ucx_value("ucx_tag8_ns", out), Some(151.0));
        assert_eq!(ucx_value("ucx_tag1m_gbs", out), Some(1.073741824));
        assert_eq!(ucx_value("ucx_am8_mps", out), Some(0.307588));
        assert_eq!(ucx_value("ucx_am8_mps", "UCX  ERROR"), None);
        let out = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                   64      10k     =10k     1.2m        0.08s     16.99       3.77       0.27\n";
        assert_eq!(fabric_value(out), Some(3770.0));
    }
}
