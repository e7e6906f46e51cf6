//! A CQ that is resized with completions in it (`c-tests/kernel/resize.c`).
use std::time::Duration;

use super::{
    inside::Guest,
    tell::{alike, equal},
};
use crate::run;

pub fn resize(guest: &Guest) {
    let says = |column| {
        let cmd = guest.command(column, "env", [guest.own("resize")]);
        Ok(run::run(cmd, Duration::from_secs(70))?.success()?.out)
    };
    alike("resize", "a CQ with completions in it", says, equal);
}
