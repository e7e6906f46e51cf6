//! Counters: what scripted exchanges count on every path, and how other processes see it: `anyverbs stats`, sysfs in the view.
use std::{fs, time::Duration};

use serde_json::Value;

use crate::{
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    trials::{netns, pair_at, view::under},
};

pub const TRIALS: &[Trial] = &[Trial { name: "stats", limit: Duration::from_secs(240), run: stats }];

const LIMIT: Duration = Duration::from_secs(60);
/// Packets of the client's requests in the script `exchange` of c-tests/trials/counters.c, and of their answers.
const REQUESTS: u64 = 20;
const ANSWERS: u64 = 14;
/// Scripts of c-tests/trials/unreliable.c.
const UNRELIABLE: [&str; 2] = ["uc", "ud"];

fn stats(ctx: &mut Ctx<'_>) {
    let folder = ctx.stage.public.path().to_path_buf();
    let me = Place::new(&folder, Via::Path, User::Me).with_env("ANYVERBS_SOFT", "1");
    let ring = me.clone().with_env("ANYVERBS_DIRECT", "0");
    let local = run::run(me.command("/counters", ["server", "-", "0", "local"]), LIMIT);
    ctx.check("one process", local.and_then(run::Outcome::success).map(drop));
    for script in UNRELIABLE {
        let port = run::port().to_string();
        let local = run::run(me.command("/unreliable", ["local", "-", &port, script]), LIMIT);
        ctx.check(format!("{script}, one process"), local.and_then(run::Outcome::success).map(drop));
    }
    for (what, place) in [("direct access", &me), ("rings alone", &ring)] {
        for script in ["exchange", "rnr"] {
            let good = pair_at("127.0.0.1", "/counters", place, place, &[script], LIMIT);
            ctx.check(format!("{script}, two processes, {what}"), good);
        }
        for script in UNRELIABLE {
            let good = pair_at("127.0.0.1", "/unreliable", place, place, &[script], LIMIT);
            ctx.check(format!("{script}, two processes, {what}"), good);
        }
    }
    let mut places = vec![("as we are", me.clone())];
    match run::is_root() {
        true => places
            .push(("as nobody", Place::new(&folder, Via::Path, User::Nobody).with_env("ANYVERBS_SOFT", "1"))),
        false => ctx.skip("as another user", "needs root"),
    }
    for (who, place) in &places {
        ctx.check(format!("seen by others, {who}"), seen(place));
    }
    ctx.check("--watch ends by SIGINT", watch(&me));
    ctx.check("a reader that has seen enough", pipe(&me));
    ctx.check("what does not exist", absent(&me));
    if !run::is_root() {
        return ctx.skip("two hosts", "needs root");
    }
    match netns::Net::new() {
        Ok(net) => two_hosts(ctx, &net),
        Err(why) => ctx.check("making two namespaces", Err(why)),
    }
}

fn two_hosts(ctx: &mut Ctx<'_>, net: &netns::Net) {
    let [server, client] = [0, 1].map(|host| net.place(ctx.stage, host));
    let pair = |script| pair_at(netns::SERVER, "/counters", &server, &client, &[script], LIMIT);
    ctx.check("exchange, two hosts", pair("exchange"));
    ctx.check("rnr, two hosts", pair("rnr"));
    for script in UNRELIABLE {
        let good = pair_at(netns::SERVER, "/unreliable", &server, &client, &[script], LIMIT);
        ctx.check(format!("{script}, two hosts"), good);
    }
    ctx.check("a rule that drops one packet in a hundred", net.lose(1));
    ctx.check("load, two hosts, 1 % lost", pair("load"));
}

/// Two processes stand still after an exchange: `anyverbs stats` and the view show what they have counted.
fn seen(place: &Place) -> Result<(), String> {
    let port = run::port().to_string();
    let start = |role| run::spawn(place.command("/counters", [role, "127.0.0.1", &port, "exchange", "hold"]));
    let (mut server, mut client) = (start("server")?, start("client")?);
    let checked = (|| {
        server.says("ready", LIMIT)?;
        client.says("ready", LIMIT)?;
        let pids = [server.pid(), client.pid()];
        // Nothing is asked of the processes: they are stopped meanwhile.
        server.signal(libc::SIGSTOP);
        client.signal(libc::SIGSTOP);
        let all = json(place, &["--json"])?;
        let one = json(place, &["--json", "--pid", &pids[0].to_string()])?;
        check_pair(&all, pids)?;
        let told = &one["processes"];
        if told.as_array().map(Vec::len) != Some(1) || told[0]["pid"] != pids[0] {
            return Err(format!("--pid {} shows {told}", pids[0]));
        }
        let qpn = told[0]["qps"][0]["qpn"].as_u64().ok_or("no queue pair")?;
        let plain = text(place, &["--qp", &format!("{qpn:#x}"), "--all"])?;
        for part in
            [&format!("0x{qpn:06x} RC RTS shm"), &format!("{} counters", pids[0]), "counters/port_rcv_data "]
        {
            if !plain.contains(part) {
                return Err(format!("no {part:?} in {plain}"));
            }
        }
        check_view(place, pids)
    })();
    for child in [&server, &client] {
        child.signal(libc::SIGCONT);
        child.signal(libc::SIGUSR1);
    }
    let (client, server) = (client.finish(LIMIT), server.finish(LIMIT));
    checked?;
    client.success().and(server.success()).map(drop)
}

/// Every number, and who is connected to whom.
fn check_pair(all: &Value, [server, client]: [u32; 2]) -> Result<(), String> {
    check_schema(all)?;
    let process = |pid: u32| {
        let processes = all["processes"].as_array().into_iter().flatten();
        let mut found = processes.filter(|p| p["pid"] == pid);
        found.next().ok_or_else(|| format!("no process {pid} in {all}"))
    };
    let (s, c) = (process(server)?, process(client)?);
    let (sq, cq) = (&s["qps"][0], &c["qps"][0]);
    let counts = [
        ("the client's requests", &cq["counters"]["port_xmit_packets"], REQUESTS),
        ("the client's answers", &cq["counters"]["port_rcv_packets"], ANSWERS),
        ("requests at the server", &sq["counters"]["port_rcv_packets"], REQUESTS),
        ("answers of the server", &sq["counters"]["port_xmit_packets"], ANSWERS),
        ("READs at the server", &sq["hw_counters"]["rx_read_requests"], 2),
        ("the client's port", &c["ports"][0]["hw_counters"]["sent_pkts"], REQUESTS),
        ("the server's port", &s["ports"][0]["hw_counters"]["rcvd_pkts"], REQUESTS),
        ("the client's peer", &cq["peer"]["pid"], server.into()),
        ("the server's peer", &sq["peer"]["qpn"], cq["qpn"].as_u64().unwrap_or(0)),
        ("the MTU", &sq["mtu"], 1024),
    ];
    for (what, got, expected) in counts {
        if *got != expected {
            return Err(format!("{what}: {got}, expected {expected}"));
        }
    }
    for (what, got, expected) in
        [("name", &c["name"], "counters"), ("state", &cq["state"], "RTS"), ("path", &cq["path"], "shm")]
    {
        if *got != expected {
            return Err(format!("{what}: {got}, expected {expected}"));
        }
    }
    Ok(())
}

/// The shape of the whole: which keys there are, and of which type.
fn check_schema(all: &Value) -> Result<(), String> {
    let object = |value: &Value, keys: &[(&str, &str)]| {
        let got = value.as_object().ok_or_else(|| format!("no object: {value}"))?;
        let names: Vec<&str> = got.keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = keys.iter().map(|k| k.0).collect();
        expected.sort_unstable();
        if names != expected {
            return Err(format!("keys {names:?}, expected {expected:?}"));
        }
        for (key, kind) in keys {
            let value = &got[*key];
            let fits = match *kind {
                "number" => value.is_u64(),
                "text" => value.is_string(),
                "list" => value.is_array(),
                "number or null" => value.is_u64() || value.is_null(),
                "object or null" => value.is_object() || value.is_null(),
                _ => value.as_object().is_some_and(|map| map.values().all(Value::is_u64)),
            };
            if !fits {
                return Err(format!("{key} is no {kind}: {value}"));
            }
        }
        Ok(())
    };
    let each = |list: &Value, keys: &[(&str, &str)]| {
        list.as_array().into_iter().flatten().try_for_each(|value| object(value, keys))
    };
    let sets = [("counters", "counts"), ("hw_counters", "counts")];
    let with = |keys: &[(&'static str, &'static str)]| [keys, &sets].concat();
    object(all, &[("schema", "text"), ("time_ns", "number"), ("devices", "list"), ("processes", "list")])?;
    if all["schema"] != "anyverbs-stats-1" {
        return Err(format!("schema {}", all["schema"]));
    }
    each(
        &all["devices"],
        &with(&[("name", "text"), ("kind", "text"), ("port", "number"), ("netns", "number or null")]),
    )?;
    for process in all["processes"].as_array().into_iter().flatten() {
        object(
            process,
            &[
                ("pid", "number"),
                ("name", "text"),
                ("uid", "number"),
                ("netns", "number"),
                ("ports", "list"),
                ("qps", "list"),
            ],
        )?;
        each(&process["ports"], &with(&[("device", "text"), ("port", "number")]))?;
        each(
            &process["qps"],
            &with(&[
                ("qpn", "number"),
                ("device", "text"),
                ("type", "text"),
                ("state", "text"),
                ("path", "text"),
                ("mtu", "number"),
                ("peer", "object or null"),
            ]),
        )?;
    }
    Ok(())
}

/// The view's files are the sums over all processes, those of this pair at least.
fn check_view(place: &Place, pids: [u32; 2]) -> Result<(), String> {
    let folder = "/sys/class/infiniband/urxe0/ports/1";
    let files = ["counters/port_xmit_packets", "hw_counters/rcvd_pkts", "hw_counters/lifespan"];
    let paths = files.map(|file| format!("{folder}/{file}"));
    let words: Vec<&str> = ["cat"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let shown = run::run(under(place, &words), LIMIT)?.success()?;
    let numbers: Vec<u64> = shown.out.lines().filter_map(|line| line.parse().ok()).collect();
    let [sent, received, 0] = numbers[..] else { return Err(format!("not three numbers: {shown}")) };
    if sent < REQUESTS + ANSWERS || received < REQUESTS + ANSWERS {
        return Err(format!("{sent} sent, {received} received by {pids:?} and others"));
    }
    let list = run::run(under(place, &["ls", &format!("{folder}/hw_counters")]), LIMIT)?.success()?;
    let missing =
        ["sent_pkts", "rdma_sends", "rx_icrc_encapsulated"].iter().find(|name| !list.out.contains(**name));
    missing.map_or(Ok(()), |name| Err(format!("no {name} in {list}")))
}

fn text(place: &Place, args: &[&str]) -> Result<String, String> {
    let words = ["stats"].iter().chain(args);
    let outcome = run::run(place.command("/anyverbs", words), LIMIT)?.success()?;
    if outcome.err.is_empty() { Ok(outcome.out) } else { Err(format!("speaks on stderr: {outcome}")) }
}

fn json(place: &Place, args: &[&str]) -> Result<Value, String> {
    let text = text(place, args)?;
    serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))
}

/// One object a line, and the end when it is interrupted.
fn watch(place: &Place) -> Result<(), String> {
    let mut child = run::spawn(place.command("/anyverbs", ["stats", "--json", "--watch", "0.1"]))?;
    // The second object has begun: it comes round.
    child.says("}\n{", LIMIT)?;
    child.signal(libc::SIGINT);
    let outcome = child.finish(Duration::from_secs(10)).success()?;
    if !outcome.out.ends_with("}\n") || !outcome.err.is_empty() {
        return Err(format!("ends in the midst: {outcome}"));
    }
    outcome.out.lines().try_for_each(|line| {
        let value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        check_schema(&value)
    })
}

fn pipe(place: &Place) -> Result<(), String> {
    let program = place.command("/anyverbs", [""; 0]);
    let words: Vec<String> = [program.get_program()]
        .into_iter()
        .chain(program.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let script = format!("{{ {} stats --watch 0.05; echo $? >&2; }} | head -n 1", words.join(" "));
    let outcome = run::run(run::command("sh", ["-c", &script]), Duration::from_secs(20))?.success()?;
    if outcome.err == "0\n" { Ok(()) } else { Err(format!("not silent: {outcome}")) }
}

fn absent(place: &Place) -> Result<(), String> {
    // Beyond what the kernel gives.
    let pid = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let outcome = run::run(place.command("/anyverbs", ["stats", "--pid", pid.trim()]), LIMIT)?;
    if outcome.code == Some(1) && outcome.out.is_empty() && outcome.err.starts_with("anyverbs stats: ") {
        Ok(())
    } else {
        Err(outcome.to_string())
    }
}
