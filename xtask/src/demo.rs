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
    let shown = program.trim_start_matches('/');
    let lib = stage.lib.display();
    println!("$ LD_LIBRARY_PATH={lib} {shown} -g 0 -c &");
    println!("$ LD_LIBRARY_PATH={lib} {shown} -g 0 -c 127.0.0.1\n");
    let pair = Run::new(program, &place, &place, "-g 0 -c").good()?;
    for (side, outcome) in [("server", &pair.server), ("client", &pair.client)] {
        println!("{side}:");
        outcome.out.lines().chain(outcome.err.lines()).for_each(|line| println!("    {}", line.trim_end()));
        println!();
    }
    println!("{}", closing(&pair.client.out, &format!("{}{}", pair.client.err, pair.server.err))?);
    Ok(())
}

/// `8192000 bytes in 1000 iterations over shared memory (urxe0, same host), 1.85 microseconds each`.
fn closing(out: &str, explained: &str) -> Result<String, String> {
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
    let path = match explained.lines().find_map(|l| l.split_once(" path: ")) {
        Some((_, path)) => path.trim(),
        None => "shared-memory rings between two processes",
    };
    Ok(format!(
        "urxe0: {bytes} bytes moved in {iters} iterations over {path}, {usec} microseconds per iteration"
    ))
}
