//! The picture as JSON. `schema` changes its number when something is taken away or changes its meaning.
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use anyverbs_counters::scan::{Port, Process, Qp};
use serde_json::{Map, Value, json};

use super::{Kind, Picture, Set};

/// One object and a newline, in one line unless it is to be read by people.
pub fn object(now: &Picture, pretty: bool) -> io::Result<String> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
    let ports = now.ports.iter().map(|port| {
        let (kind, netns) = match port.kind {
            Kind::Embedded { netns } => ("embedded", netns),
            Kind::Kernel => ("kernel", None),
        };
        with(json!({"name": port.device, "kind": kind, "port": port.number, "netns": netns}), &port.set)
    });
    let whole = json!({
        "schema": "anyverbs-stats-1",
        "time_ns": time,
        "devices": ports.collect::<Vec<_>>(),
        "processes": now.processes.iter().map(process).collect::<Vec<_>>(),
    });
    let text = if pretty { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) };
    Ok(text? + "\n")
}

fn process(process: &Process) -> Value {
    let port = |port: &Port| with(json!({"device": port.device, "port": 1}), &Set::from(&port.values));
    json!({
        "pid": process.pid,
        "name": process.name,
        "uid": process.uid,
        "netns": process.netns,
        "ports": process.ports.iter().map(port).collect::<Vec<_>>(),
        "qps": process.qps.iter().map(qp).collect::<Vec<_>>(),
    })
}

fn qp(qp: &Qp) -> Value {
    let peer = qp.peer.map(|peer| {
        json!({
            "qpn": peer.qpn,
            "address": peer.address.map(|address| address.to_string()),
            "pid": peer.pid,
        })
    });
    let about = json!({
        "qpn": qp.qpn,
        "device": qp.device,
        "type": qp.kind,
        "state": qp.state,
        "path": qp.path,
        "mtu": qp.mtu,
        "peer": peer,
    });
    with(about, &Set::from(&qp.values))
}

fn with(mut object: Value, set: &Set) -> Value {
    let map =
        |all: &[(String, u64)]| all.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<Map<_, _>>();
    object["counters"] = map(&set.counters).into();
    object["hw_counters"] = map(&set.hw_counters).into();
    object
}
