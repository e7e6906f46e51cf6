//! What a person does beside the tests: install below a prefix, build against it with pkg-config, run our own pingpong.
use std::{env, fs, process::id, time::Duration};

use crate::{
    install,
    pingpong::Run,
    report::{Ctx, Trial},
    run, stage,
    trials::here,
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "install", limit: Duration::from_secs(120), run: installed },
    Trial { name: "own-pingpong", limit: Duration::from_secs(60), run: own_pingpong },
];

fn installed(ctx: &mut Ctx<'_>) {
    let folder = env::temp_dir().join(format!("anyverbs-test-install-{}", id()));
    let prefix = folder.display().to_string();
    ctx.check("install --prefix", install::install(&["--prefix".into(), prefix.clone()]));
    let built = (|| {
        let ask = |what: &str| {
            let mut cmd = run::command("pkg-config", [what, "libibverbs"]);
            cmd.env("PKG_CONFIG_PATH", folder.join("lib/pkgconfig"));
            run::run(cmd, Duration::from_secs(10))?.success().map(|o| o.out.trim().to_string())
        };
        let flags = format!("{} {}", ask("--cflags")?, ask("--libs")?);
        if !flags.contains(&prefix) {
            return Err(format!("pkg-config says {flags:?}, which is not in {prefix}"));
        }
        let source = stage::root().join("c-tests/trials/pingpong.c").display().to_string();
        let program = folder.join("pingpong").display().to_string();
        let rpath = format!("-Wl,-rpath,{prefix}/lib");
        let words =
            ["-std=gnu11", "-pthread", "-o", &program, &source].into_iter().chain(flags.split_whitespace());
        run::run(run::command("cc", words.chain([rpath.as_str()])), Duration::from_secs(60))?.success()?;
        let maps = run::run(run::command("ldd", [&program]), Duration::from_secs(10))?.success()?.out;
        if !maps.contains(&format!("{prefix}/lib/libibverbs.so.1")) {
            return Err(format!("linked with another library: {maps}"));
        }
        let port = run::port().to_string();
        let args = ["-g", "0", "-c", "-p", &port];
        let server = run::spawn(run::command(&program, args))?;
        run::run(run::command(&program, args.iter().chain(&["127.0.0.1"])), Duration::from_secs(20))?
            .success()?;
        server.finish(Duration::from_secs(5)).success().map(drop)
    })();
    ctx.check("a program built with pkg-config runs", built);
    let page = fs::read_to_string(folder.join("share/man/man1/anyverbs.1"));
    let has_page = page.map_err(|why| format!("share/man/man1/anyverbs.1: {why}")).map(drop);
    ctx.check("the man page of anyverbs", has_page);
    let _ = fs::remove_dir_all(&folder);
}

/// What `cargo xtask demo` runs where ibverbs-utils cannot be installed.
fn own_pingpong(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    for args in ["-g 0 -c", "-g 0 -c -s 1048576 -n 100", "-g 0 -c -s 1 -n 10000"] {
        ctx.check(format!("pingpong {args}"), Run::new("/pingpong", &place, &place, args).good().map(drop));
    }
}
