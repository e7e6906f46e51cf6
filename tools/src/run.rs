//! `anyverbs run`, `faults` and `trace`: the environment that makes a program use our libraries, and exec.
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{self, Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;

use crate::libraries;

/// The program and what it gets.
#[derive(Args)]
pub struct Run {
    /// The program, looked for as a shell does
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Faults, and the program that gets them.
#[derive(Args)]
pub struct Faults {
    /// What goes wrong, with commas between the items
    faults: OsString,
    #[command(flatten)]
    run: Run,
}

/// A file, and the program whose messages go there.
#[derive(Args)]
pub struct Trace {
    /// The pcapng file, begun anew; %p in its name is the number of each process, which then has a file of its own
    file: PathBuf,
    #[command(flatten)]
    run: Run,
}

impl Run {
    /// Becomes the program; what is returned is for when it cannot be started: 127 not found, 126 otherwise, as in a shell.
    pub fn exec(self) -> ExitCode {
        self.exec_with(&[])
    }

    /// The same with more variables.
    fn exec_with(self, variables: &[(&str, OsString)]) -> ExitCode {
        let folder = match libraries::folder() {
            Ok(folder) => folder,
            Err(why) => return fail(&self.program, &why, 126),
        };
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        // libibverbs first: a program may bring another one under a name of its own.
        let preload = [libraries::VERBS, libraries::VIEW].map(|name| folder.join(name).into_os_string());
        command.env("LD_PRELOAD", joined(preload, "LD_PRELOAD"));
        command.env("LD_LIBRARY_PATH", joined([folder.into_os_string()], "LD_LIBRARY_PATH"));
        if env::var_os("ANYVERBS_EXPLAIN").is_none() {
            command.env("ANYVERBS_EXPLAIN", "1");
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let why = command.exec();
        let code = if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        fail(&self.program, &why, code)
    }
}

impl Faults {
    /// Becomes the program, whose devices open only where the faults are well said.
    pub fn exec(self) -> ExitCode {
        self.run.exec_with(&[("ANYVERBS_FAULTS", self.faults)])
    }
}

impl Trace {
    /// Becomes the program. A file that is no trace stays as it is; the program is not started then.
    pub fn exec(self) -> ExitCode {
        let begun = path::absolute(&self.file).and_then(|file| {
            begin(&file)?;
            Ok(file)
        });
        match begun {
            Ok(file) => self.run.exec_with(&[("ANYVERBS_PCAP", file.into_os_string())]),
            Err(why) => fail(self.file.as_os_str(), &why, 126),
        }
    }
}

/// Empties a trace that is there.
fn begin(file: &Path) -> io::Result<()> {
    /// What a pcapng file begins with.
    const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
    let mut head = Vec::new();
    match File::open(file) {
        Ok(there) => there.take(SECTION.len() as u64).read_to_end(&mut head)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(why),
    };
    if !head.is_empty() && head != SECTION {
        return Err(io::Error::other("it is there, and no pcapng file"));
    }
    OpenOptions::new().write(true).truncate(true).open(file).map(drop)
}

/// `first`, then what the variable holds, with colons.
fn joined<const N: usize>(first: [OsString; N], name: &str) -> OsString {
    let given = env::var_os(name).filter(|value| !value.is_empty());
    let all: Vec<OsString> = first.into_iter().chain(given).collect();
    all.join(OsStr::new(":"))
}

fn fail(program: &OsStr, why: &io::Error, code: u8) -> ExitCode {
    eprintln!("anyverbs: {}: {why}", program.display());
    ExitCode::from(code)
}
