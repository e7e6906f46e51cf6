//! perftest as it is: a server and a client on a core each, and the value that the client's one line has.
use std::time::Duration;

use crate::{place::Place, run};

/// Long for a machine that has other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Which device both sides take, and which of its GIDs.
pub struct Device {
    pub name: &'static str,
    pub gid: String,
}

/// Runs `ib_PROGRAM ARGS` in one place and gives the value for a figure of this name: typical latency for `_ns`, average rate for `_gbs`.
pub fn measure(
    place: &Place,
    device: &Device,
    figure: &str,
    program: &str,
    args: &str,
) -> Result<f64, String> {
    measure_between([place, place], "127.0.0.1", device, figure, program, args)
}

/// The same between two places: the server's, where it is `host` to the client, and the client's.
pub fn measure_between(
    [at_server, at_client]: [&Place; 2],
    host: &str,
    device: &Device,
    figure: &str,
    program: &str,
    args: &str,
) -> Result<f64, String> {
    let (port, program) = (run::port(), format!("ib_{program}"));
    let all = format!("{program} {args} -F -d {} -x {} -p {port}", device.name, device.gid);
    let words = |core: &str, host: &str| {
        let words = [core].into_iter().chain(all.split(' ')).chain([host]).filter(|word| !word.is_empty());
        words.map(String::from).collect::<Vec<_>>()
    };
    let mut server = run::spawn(at_server.command("/pin", words("1", "")))?;
    server.listens(port, LIMIT)?;
    let client = run::run(at_client.command("/pin", words("0", host)), LIMIT)?;
    let server = server.finish(Duration::from_secs(5));
    if !client.ok() || !server.ok() {
        return Err(format!("{client}\n    server: {server}"));
    }
    value(figure, &client.out).ok_or(format!("no figure in: {}", client.out))
}

/// The value in what a client has printed: behind a head that begins with `#bytes`, one line of numbers.
fn value(figure: &str, out: &str) -> Option<f64> {
    let (head, line) = out.split_once("#bytes")?.1.split_once('\n')?;
    let fields: Vec<f64> = line.lines().next()?.split_whitespace().map_while(|f| f.parse().ok()).collect();
    let (column, scale, title) = match figure.rsplit_once('_')?.1 {
        "ns" => (4, 1e3, "t_typical[usec]"),
        "gbs" => (3, 1_048_576.0 / 1e9, "BW average[MB/sec]"),
        _ => return None,
    };
    let there = head.contains(title) && fields.get(column).is_some_and(|&value| value > 0.0);
    there.then(|| fields[column] * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_latency_and_average_rate_are_taken() {
        let latency = "Local address\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       8       10000          0.32           6039.63      0.41     \t       1.49  \n------\n";
        assert_eq!(value("pt_send8_ns", latency), Some(410.0));
        let rate = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    1048576    1000             4528.03            1024.00\t\t   0.002978\n";
        assert_eq!(value("pt_send1m_gbs", rate), Some(1.073741824));
        assert_eq!(value("pt_send1m_gbs", latency), None);
        assert_eq!(value("pt_send8_ns", "nothing"), None);
    }
}
