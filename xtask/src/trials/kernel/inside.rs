//! What runs in the guest: `xtask in-guest`.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{commands, conformance, cost, later, python, rdmacm, resize, tools, unplug};
use crate::{
    place::{Place, User, Via},
    run,
};

/// Who serves the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Column {
    /// Our library and provider.
    Native,
    /// Debian's provider on our library.
    Plugin,
    /// Debian's library.
    Debian,
}

impl Column {
    pub const ALL: [Column; 3] = [Column::Native, Column::Plugin, Column::Debian];
    /// Those with our library.
    pub const OURS: [Column; 2] = [Column::Native, Column::Plugin];

    pub fn name(self) -> &'static str {
        match self {
            Column::Native => "native",
            Column::Plugin => "plugin",
            Column::Debian => "Debian",
        }
    }
}

/// What suites need to know.
pub struct Guest {
    /// With our library in `lib`.
    public: PathBuf,
    /// With the programs in `bin`, and pyverbs' suite.
    pub scratch: PathBuf,
    /// All rows of each suite.
    pub whole: bool,
    /// Index of rxe0's IPv4 GID.
    pub gid: String,
}

/// The device, and its address.
pub const DEVICE: &str = "rxe0";
pub const ADDRESS: &str = "10.9.0.1";

impl Guest {
    /// Where programs run in a column.
    pub fn place(&self, column: Column) -> Place {
        let via = if column == Column::Debian { Via::System } else { Via::Path };
        let place = Place::new(&self.public, via, User::Me);
        let place = place.with_env("C_TESTS_DEVICE", DEVICE).with_env("C_TESTS_GID", &self.gid);
        match column {
            Column::Native => place.with_env("ANYVERBS_PROVIDER", "native"),
            Column::Plugin => place.with_env("ANYVERBS_PROVIDER", "plugin"),
            Column::Debian => place,
        }
    }

    /// A program in a column, with a `/` in front one of those in `bin`.
    pub fn command<S: AsRef<str>>(
        &self,
        column: Column,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let program = match program.strip_prefix('/') {
            Some(own) => self.own(own),
            None => program.to_string(),
        };
        // `env` runs it: what begins with a `/` would be taken for one of the public folder's.
        let words = [program].into_iter().chain(args.into_iter().map(|a| a.as_ref().to_string()));
        let words: Vec<String> = words.collect();
        self.place(column).command("env", words)
    }

    /// The path of one of the programs in `bin`.
    pub fn own(&self, program: &str) -> String {
        self.scratch.join("bin").join(program).display().to_string()
    }
}

/// A suite's name and what runs it.
type Suite = (&'static str, fn(&Guest));

const SUITES: &[Suite] = &[
    ("tools", tools::tools),
    ("commands", commands::commands),
    ("unplug", unplug::unplug),
    ("resize", resize::resize),
    ("later", later::later),
    ("rdmacm", rdmacm::rdmacm),
    ("perftest", rdmacm::perftest),
    ("pyverbs", python::python),
    ("conformance", conformance::conformance),
    ("cost", cost::cost),
];

/// `xtask in-guest PUBLIC SCRATCH whole|usual SUITE...`
pub fn inside(args: &[String]) -> Result<(), String> {
    let [public, scratch, size, suites @ ..] = args else { return Err("not for you".into()) };
    let guest = Guest {
        public: PathBuf::from(public),
        scratch: PathBuf::from(scratch),
        whole: size == "whole",
        gid: gid_of_rxe0()?,
    };
    for suite in suites {
        let (name, run) = SUITES.iter().find(|s| s.0 == suite).ok_or(format!("no suite {suite}"))?;
        let start = run::monotonic_ns();
        run(&guest);
        println!("@\t{name}\tall\ttime\ttime\t{:.1}", (run::monotonic_ns() - start) as f64 / 1e9);
    }
    Ok(())
}

/// The row of [`ADDRESS`].
/// Index of rxe0's IPv4 GID.
pub fn gid_of_rxe0() -> Result<String, String> {
    gid_index(Path::new("/sys/class/infiniband").join(DEVICE).join("ports/1/gids"))
}

fn gid_index(gids: PathBuf) -> Result<String, String> {
    let row = |i: &u32| fs::read_to_string(gids.join(i.to_string())).unwrap_or_default();
    let found = (0..16).find(|i| row(i).trim() == "0000:0000:0000:0000:0000:ffff:0a09:0001");
    found.map(|i| i.to_string()).ok_or(format!("no GID of {ADDRESS} in {}", gids.display()))
}
