//! A fixed program's commands to the kernel (`c-tests/kernel/commands.c`, listed by `trace.c`): the same in all columns,
//! one by one, with lengths, flags and small numbers of their attributes.
use std::time::Duration;

use super::{
    inside::{Column, Guest},
    tell::alike,
};
use crate::run;

const SUITE: &str = "commands";
/// What the program cannot do with fewer.
const LEAST: usize = 40;

pub fn commands(guest: &Guest) {
    alike(
        SUITE,
        "the same commands in the same order",
        |column| list(guest, column),
        |mine, debian| compare(mine, debian),
    );
}

/// The commands, one a line, between opening and closing.
fn list(guest: &Guest, column: Column) -> Result<Vec<String>, String> {
    let cmd = guest.command(column, "/trace", [guest.own("commands")]);
    let outcome = run::run(cmd, Duration::from_secs(60))?.success()?;
    if !outcome.out.contains("close 0") {
        return Err(outcome.to_string());
    }
    let all: Vec<String> = outcome
        .out
        .lines()
        .filter(|line| ["ioctl ", "write ", "mmap:"].iter().any(|kind| line.starts_with(kind)))
        .map(String::from)
        .collect();
    if all.len() >= LEAST { Ok(all) } else { Err(format!("only {} commands: {outcome}", all.len())) }
}

/// The first command that differs.
fn compare(mine: &[String], debian: &[String]) -> Result<(), String> {
    let most = mine.len().max(debian.len());
    let at = |list: &[String], i: usize| list.get(i).cloned().unwrap_or("nothing".into());
    match (0..most).find(|&i| at(mine, i) != at(debian, i)) {
        None => Ok(()),
        Some(i) => Err(format!("command {i} is {:?}, and Debian's {:?}", at(mine, i), at(debian, i))),
    }
}
