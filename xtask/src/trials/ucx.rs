//! Judge: Debian's UCX over urxe0. `ucx_info` lists it; `ucx_perftest` runs between two processes over rc_v and ud_v.
use std::time::Duration;

use crate::{
    apt,
    place::Place,
    report::{Ctx, Judge, Trial},
    run,
    trials::{here, view::under},
};

pub const TRIALS: &[Trial] = &[Trial { name: "ucx", limit: Duration::from_secs(150), run: ucx }];

/// The package that has both programs.
pub const NEEDS: &[apt::Need] = &[("ucx_perftest", "ucx-utils")];

/// Test of the UCP level, and the sizes: short, one packet and more, and by rendezvous.
const TESTS: &[(&str, &[&str])] = &[
    ("tag_lat", &["8", "4096", "1048576"]),
    ("tag_bw", &["8", "65536"]),
    ("tag_sync_lat", &["8"]),
    ("stream_lat", &["8"]),
    ("ucp_am_lat", &["8", "65536"]),
    ("ucp_am_bw", &["4096"]),
    ("ucp_put_lat", &["8", "65536"]),
    ("ucp_put_bw", &["4096"]),
    ("ucp_get", &["8", "65536"]),
    ("ucp_add", &["8"]),
    ("ucp_fadd", &["8", "4"]),
    ("ucp_swap", &["8"]),
    ("ucp_cswap", &["8", "4"]),
];
/// Test of the transport level, and the transport.
const UCT_TESTS: &[(&str, &str)] = &[
    ("am_lat", "rc_verbs"),
    ("put_lat", "rc_verbs"),
    ("fadd", "rc_verbs"),
    ("cswap", "rc_verbs"),
    ("am_lat", "ud_verbs"),
    ("am_bw", "ud_verbs"),
];

fn ucx(ctx: &mut Ctx<'_>) {
    if let Err(why) = apt::ensure(NEEDS) {
        return ctx.skip("ucx_info and ucx_perftest", &why);
    }
    let place = here(ctx).with_env("UCX_NET_DEVICES", "urxe0:1").with_env("UCX_WARN_UNUSED_ENV_VARS", "n");
    let mut verdict = Judge::new("UCX".into());
    let mut count = |ctx: &mut Ctx<'_>, name: String, result: Result<(), String>| {
        *(if result.is_ok() { &mut verdict.passed } else { &mut verdict.failed }) += 1;
        ctx.check(name, result);
    };
    count(ctx, "ucx_info -d".into(), listed(&place));
    for tls in ["rc_v", "ud_v"] {
        let place = place.clone().with_env("UCX_TLS", tls);
        for (test, sizes) in TESTS {
            for size in *sizes {
                let iterations = if size.len() > 4 { "50" } else { "500" };
                let args = ["-t", test, "-s", size, "-n", iterations, "-w", "10"];
                count(ctx, format!("{test} -s {size}, {tls}"), pair(&place, &args));
            }
        }
    }
    for (test, transport) in UCT_TESTS {
        let args = ["-t", test, "-d", "urxe0:1", "-x", transport, "-n", "500", "-w", "10"];
        count(ctx, format!("{test}, {transport}"), pair(&place, &args));
    }
    ctx.judge(verdict);
}

/// Both transports of the device are there, with what they are for.
fn listed(place: &Place) -> Result<(), String> {
    let shown = run::run(under(place, &["ucx_info", "-d"]), Duration::from_secs(20))?.success()?;
    let section = |name: &str| {
        let from = shown.out.split_once(&format!("Transport: {name}"))?.1;
        Some(from.split("Transport:").next().unwrap_or(from).to_string())
    };
    for (transport, capabilities) in [
        ("rc_verbs", &["urxe0:1", "put_zcopy", "get_zcopy", "am_bcopy", "atomic_cswap"][..]),
        ("ud_verbs", &["urxe0:1", "am_bcopy"]),
    ] {
        let text = section(transport).ok_or(format!("no {transport} in: {shown}"))?;
        if let Some(missing) = capabilities.iter().find(|c| !text.contains(**c)) {
            return Err(format!("{transport} has no {missing}: {text}"));
        }
    }
    Ok(())
}

/// A server and a client; both must exit with 0, and the client must show a result.
fn pair(place: &Place, args: &[&str]) -> Result<(), String> {
    let port = run::port();
    let number = port.to_string();
    let words: Vec<&str> = ["ucx_perftest", "-p", &number].into_iter().chain(args.iter().copied()).collect();
    let mut server = run::spawn(under(place, &words))?;
    server.listens(port, Duration::from_secs(20))?;
    let client = run::run(under(place, &[&words[..], &["127.0.0.1"]].concat()), Duration::from_secs(30))?;
    let server = server.finish(Duration::from_secs(5));
    match client.out.contains("Final:") {
        true if client.ok() && server.ok() => Ok(()),
        _ => Err(format!("server: {server}\n    client: {client}")),
    }
}
