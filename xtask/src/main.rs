//! `cargo xtask demo | test | bench | fuzz | guest | install`.
use std::{env, process::ExitCode, thread};

mod apt;
mod bench;
mod beside;
mod demo;
mod fuzz;
mod guest;
mod install;
mod judges;
mod pingpong;
mod place;
mod report;
mod run;
mod stage;
mod test;
mod trials;

const USAGE: &str = "\
cargo xtask demo                             build, run a server and a client over urxe0, show what moved
cargo xtask test [--distro sid] [-v] [NAME...]
                                             run everything, or the steps whose name contains a NAME
cargo xtask bench [REPETITIONS]              two processes of this host, floors and peers; target/bench.json
cargo xtask bench guest [REPETITIONS]        the same, and beside the kernel's rxe in the guest
cargo xtask bench wire [REPETITIONS]         between two network namespaces; target/bench-wire.json
cargo xtask fuzz [SECONDS [TARGET]]          fuzz on an idle processor; `fuzz merge` keeps what was found
cargo xtask bench kernel                     instructions on the kernel's rxe beside Debian's library, in the guest
cargo xtask guest COMMAND...                 run a command in a guest that has a kernel RDMA device
cargo xtask guest --distro sid COMMAND...    the same in a Debian sid root there
cargo xtask install --prefix P [--destdir D] libraries, anyverbs, man page, headers, pkg-config file
cargo xtask stage                            build libraries and tools, print the folder for LD_LIBRARY_PATH";

fn main() -> ExitCode {
    end_children_on_signals();
    let args: Vec<String> = env::args().skip(1).collect();
    let (name, rest) = args.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    let asks = |word: &String| ["-h", "--help"].contains(&word.as_str());
    // What the guest runs has options of its own.
    let own = if name == "guest" { &rest[..rest.len().min(1)] } else { rest };
    let help = if args.first().is_some_and(asks) { Some(USAGE.to_string()) } else { usage(name) };
    if let Some(help) = help.filter(|_| args.first().into_iter().chain(own).any(asks)) {
        println!("{help}");
        return ExitCode::SUCCESS;
    }
    let result = match name {
        "demo" => demo::demo(),
        "test" => match test::test(rest) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(why) => Err(why),
        },
        "bench" if rest == ["kernel"] => trials::kernel::cost::bench(),
        "bench" => bench::bench(rest),
        "fuzz" => fuzz::fuzz(rest),
        "guest" if !rest.is_empty() => guest::guest(rest),
        "in-guest" => trials::kernel::inside(rest),
        "in-guest-bench" => bench::inside(rest),
        "install" => install::install(rest),
        "stage" => stage::library().map(|lib| println!("{}", lib.display())),
        _ => {
            println!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The lines of one command.
fn usage(name: &str) -> Option<String> {
    let mut lines = Vec::new();
    let mut is_named = false;
    for line in USAGE.lines() {
        // A line that begins with spaces goes on with the one before.
        if let Some(words) = line.strip_prefix("cargo xtask ") {
            is_named = words.split(' ').next() == Some(name);
        }
        if is_named {
            lines.push(line);
        }
    }
    let steps = if name == "test" { format!("\nsteps: {}", test::steps().join(" ")) } else { String::new() };
    (!lines.is_empty()).then(|| lines.join("\n") + &steps)
}

/// On SIGINT and SIGTERM our children go first. They run in groups of their own and would otherwise stay.
fn end_children_on_signals() {
    // SAFETY: the set is filled before it is used, and the mask is changed before any other thread exists.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    thread::spawn(move || {
        let mut number = 0;
        // SAFETY: both point to live values of this thread.
        unsafe { libc::sigwait(&set, &mut number) };
        run::kill_all();
        std::process::exit(128 + number);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_a_command_is_its_lines() {
        let lines = |name| usage(name).unwrap_or_default().lines().count();
        assert_eq!([lines("install"), lines("bench"), lines("guest"), lines("nosuch")], [1, 4, 2, 0]);
        let test = usage("test").unwrap();
        assert!(
            test.starts_with("cargo xtask test ") && test.contains("\nsteps: cargo-test simulation"),
            "{test}"
        );
    }
}
