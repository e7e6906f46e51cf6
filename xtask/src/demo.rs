//! `cargo xtask demo`: a server and a client over urxe0, what they print, and what moved over what.
use crate::{
    apt,
    pingpong::Run,
    place::{Place, User, Via},
    run, stage,
};

/// Builds, runs, prints.
pub fn demo() -> Result<(), String> {
    let program = match apt::ensure(&[apt::IBVERBS_UTILS]) {
        Ok(()) => "ibv_rc_pingpong",
        Err(why) => {
            println!("{why}\nwithout it: c-tests/trials/pingpong.c, our own\n");
            "/pingpong"
        }
    };
    let stage = stage::stage()?;
    let folder = stage.lib.parent().ok_or("the library folder has no parent")?;
    let place = Place::new(folder, Via::Path, User::Me).with_env("ANYVERBS_EXPLAIN", "1");
    // At level 3 the log says how each connected QP reaches its peer.
    let log = std::env::temp_dir().join(format!("anyverbs-demo-{}.log", std::process::id()));
    let place = place.with_env("VERBS_LOG_LEVEL", "3").with_env("VERBS_LOG_FILE", &log.display().to_string());
    let shown = program.trim_start_matches('/');
    let lib = stage.lib.display();
    println!("$ LD_LIBRARY_PATH={lib} {shown} -g 0 -c &");
    println!("$ LD_LIBRARY_PATH={lib} {shown} -g 0 -c 127.0.0.1\n");
    let pair = Run::new(program, &place, &place, "-g 0 -c").good();
    let logged = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let pair = pair?;
    for (side, outcome) in [("server", &pair.server), ("client", &pair.client)] {
        println!("{side}:");
        outcome.out.lines().chain(outcome.err.lines()).for_each(|line| println!("    {}", line.trim_end()));
        println!();
    }
    println!("{}", closing(&pair.client.out, &logged)?);
    Ok(())
}

/// The last line: bytes, path, microseconds.
fn closing(out: &str, logged: &str) -> Result<String, String> {
    let before = |line: &str, word: &str| {
        let head = line.split(word).next()?.trim_end();
        head.rsplit(' ').next().map(String::from)
    };
    let missing = || format!("no result line in: {}", run::tail(out, 5));
    let bytes = out
        .lines()
        .find(|l| l.contains(" bytes in "))
        .and_then(|l| before(l, " bytes in "))
        .ok_or_else(missing)?;
    let line = out.lines().find(|l| l.contains(" iters in ")).ok_or_else(missing)?;
    let iters = before(line, " iters in ").ok_or_else(missing)?;
    let usec = before(line, " usec/iter").ok_or_else(missing)?;
    let path = logged
        .lines()
        .find_map(|l| l.split_once(" path: "))
        .map_or("a path it did not log", |(_, path)| path.trim());
    Ok(format!(
        "urxe0: {bytes} bytes moved in {iters} iterations over {path}, {usec} microseconds per iteration"
    ))
}

#[cfg(test)]
mod tests {
    use super::closing;

    #[test]
    fn the_closing_line_tells_bytes_path_and_time() {
        let out = "8192000 bytes in 0.01 seconds = 5000.00 Mbit/sec\n1000 iters in 0.01 seconds = 13.10 usec/iter\n";
        let line = closing(out, "qp 0x000123 to 0x000456, path: shared memory\n").unwrap();
        let want = "urxe0: 8192000 bytes moved in 1000 iterations over shared memory, 13.10 microseconds per iteration";
        assert_eq!(line, want);
        assert!(closing("nothing", "").is_err());
    }
}
