//! Our own C programs: what neither perftest nor a peer measures, and what it takes in instructions.
use std::{fs, path::Path, time::Duration};

use super::{rows::twice, table::Samples};
use crate::{place::Place, run, stage};

/// Calls that are counted.
const CALLS: u32 = 200;

/// Runs a program that prints `NAME VALUE` lines and adds them, each name behind `prefix`.
pub fn measure(
    place: &Place,
    prefix: &str,
    program: &str,
    args: &str,
    samples: &mut Samples,
) -> Result<(), String> {
    let command = place.command(&format!("/{program}"), args.split(' '));
    let outcome = run::run(command, Duration::from_secs(120))?.success()?;
    samples.read(prefix, &outcome.out);
    Ok(())
}

/// Adds `post_ir`, `poll_ir` and `post_poll_ir`: what one successful `ibv_post_send` of 8 bytes and the one `ibv_poll_cq` that takes its
/// acknowledgement and gives its completion take in the thread that calls them, as callgrind counts.
pub fn instructions(place: &Place, samples: &mut Samples) -> Result<(), String> {
    let folder = stage::target().join("bench-count");
    let mut both = 0.0;
    for what in ["post", "poll"] {
        let calls = twice(|| counted(place, what, &folder));
        let _ = fs::remove_dir_all(&folder);
        let each = usual(calls?).ok_or("callgrind counted nothing")?;
        samples.add(format!("{what}_ir"), each);
        both += each;
    }
    samples.add("post_poll_ir".into(), both);
    Ok(())
}

/// Instructions of each call of the client's function `counted_WHAT`, for each of which callgrind writes a file. The server runs by itself.
fn counted(place: &Place, what: &str, folder: &Path) -> Result<Vec<f64>, String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (port, calls) = (run::port().to_string(), CALLS.to_string());
    let server = run::spawn(place.command("/count", ["server", &port, &calls]))?;
    let [toggle, dump] = ["toggle-collect", "dump-after"].map(|option| format!("--{option}=counted_{what}"));
    let out = format!("--callgrind-out-file={}/out", folder.display());
    let program = place.own("count").display().to_string();
    let words = ["--tool=callgrind", &out, &toggle, &dump, &program, "client", &port, &calls];
    run::run(place.command("valgrind", words), Duration::from_secs(100))?.success()?;
    server.finish(Duration::from_secs(10)).success()?;
    let files = (1..=CALLS).map(|number| fs::read_to_string(folder.join(format!("out.{number}"))));
    let total =
        |text: String| text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    Ok(files.filter_map(|text| total(text.ok()?)).collect())
}

/// Nearly all calls take the same number. A poll takes less where a thread of the library has been faster, which is rare unless the
/// machine is busy, and now and then one has more to do: what three quarters do not exceed.
fn usual(mut calls: Vec<f64>) -> Option<f64> {
    calls.sort_by(f64::total_cmp);
    calls.get(calls.len() * 3 / 4).copied()
}

/// The number behind `Collected :` in what callgrind says.
pub fn collected(text: &str) -> Option<f64> {
    text.split_once("Collected :")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_do_less_or_more_than_most_do_not_count() {
        let calls = [[130.0; 60].as_slice(), &[1003.0; 130], &[1035.0; 10]].concat();
        assert_eq!(usual(calls), Some(1003.0));
        assert_eq!(usual(Vec::new()), None);
    }

    #[test]
    fn the_number_that_callgrind_says() {
        let said = "==1== Events    : Ir\n==1== Collected : 2098736\n==1== \n";
        assert_eq!(collected(said), Some(2_098_736.0));
        assert_eq!(collected("nothing"), None);
    }
}
