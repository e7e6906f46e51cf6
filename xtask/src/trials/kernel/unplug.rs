//! Devices that go while messages run (`c-tests/kernel/unplug.c`): by deleting the RDMA link, and by deleting the network
//! device below it. What the program tells is the same in all columns, and all can be destroyed.
use std::{collections::BTreeSet, time::Duration};

use super::{
    inside::{Column, Guest},
    tell::{alike, equal},
    tools::Brief,
};
use crate::run::{self, Child, Outcome};

const SUITE: &str = "unplug";
const LIMIT: Duration = Duration::from_secs(40);

/// How a device goes; and what the program then says, where it notices.
const WAYS: [(&str, &str, &str, &str); 3] = [
    ("rdma link delete", "rdma", "link delete brief", ""),
    ("ip link delete below it", "ip", "link delete dummy9", "messages do not arrive any more"),
    ("ip link set down below it", "ip", "link set dummy9 down", "event: port error"),
];

pub fn unplug(guest: &Guest) {
    for (case, program, words, says) in WAYS {
        alike(SUITE, case, |column| goes(guest, column, program, words, says), equal);
    }
}

/// What the program tells from the moment that its device is told to go.
fn goes(
    guest: &Guest,
    column: Column,
    program: &str,
    words: &str,
    says: &str,
) -> Result<BTreeSet<String>, String> {
    let brief = Brief::new()?;
    let gid = brief.gid()?;
    let args = [format!("C_TESTS_DEVICE={}", Brief::NAME), format!("C_TESTS_GID={gid}"), guest.own("unplug")];
    let mut traffic = run::spawn(guest.command(column, "env", args))?;
    traffic.says("traffic", LIMIT)?;
    let mut going = run::spawn(run::command(program, words.split(' ')))?;
    traffic.says(says, LIMIT)?;
    // It may wait for the program to close the device, or not.
    let waits = !going.ended(Duration::from_secs(2));
    traffic.signal(libc::SIGUSR1);
    let told = traffic.finish(LIMIT).success()?;
    let gone = end(going)?;
    drop(brief);
    // Events and answers come in no order of theirs, and some events more than once.
    let mut lines: BTreeSet<String> = told.out.lines().map(String::from).collect();
    lines.insert(format!("it waits for the program: {waits}, and ends with {:?}", gone.code));
    if told.out.contains("close 0") { Ok(lines) } else { Err(told.to_string()) }
}

fn end(child: Child) -> Result<Outcome, String> {
    let outcome = child.finish(LIMIT);
    if outcome.code.is_some() { Ok(outcome) } else { Err(outcome.to_string()) }
}
