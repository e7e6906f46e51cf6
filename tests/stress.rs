//! The stress programs of `c-tests/stress/`, and some of `c-tests/heavy/`, in short form, each also with direct access to peers' memory switched off.
//! They print their seed when something is wrong; `-s SEED` repeats it. Every program ends itself by an alarm.
mod toolchain;

use std::process::Stdio;

use toolchain::{
    Scratch, our_include,
    programs::{compiler, library_folder, root, wrapped},
    run,
};

/// One test for each program and its arguments.
macro_rules! programs {
    ($($test:ident: $program:literal $args:expr;)*) => {$(
        #[test]
        fn $test() {
            stress($program, &$args);
        }
    )*};
}

programs! {
    threads_of_one_process_mix_all_operations: "mixed" ["-n", "300"];
    two_processes_mix_all_operations: "mixed" ["-n", "300", "pair"];
    floods_both_ways_do_not_block_each_other: "flood" ["-n", "2"];
    the_last_operation_wins_within_a_process: "order" ["-n", "400"];
    the_last_operation_wins_between_processes: "order" ["-n", "400", "pair"];
    blocked_receivers_wake: "events" ["-n", "1500"];
    objects_come_and_go_under_traffic: "churn" ["-n", "60"];
    children_do_not_disturb: "forks" ["-n", "9"];
    deaths_are_noticed: "deaths" ["-n", "3"];
    a_crowd_of_threads_shares_queues: "heavy/crowd" ["-n", "200"];
    two_crowds_of_threads_share_queues: "heavy/crowd" ["-n", "200", "pair"];
    four_processes_meet_in_random_sessions: "heavy/soak" ["-n", "6"];
    retries_are_counted: "retries" ["-n", "1"];
}

fn stress(name: &str, args: &[&str]) {
    let source = if name.contains('/') { format!("{name}.c") } else { format!("stress/{name}.c") };
    let name = name.rsplit('/').next().expect("a program has a name");
    let (dir, lib) = (Scratch::new(name), library_folder());
    let program = dir.path(name);
    let mut cc = compiler(&our_include());
    cc.arg(root().join("c-tests").join(source)).arg("-o").arg(&program);
    run(cc.arg("-L").arg(lib.path("")).arg("-libverbs"));
    for direct in ["1", "0"] {
        let out = wrapped(&[], &program)
            .args(args)
            .env("LD_LIBRARY_PATH", lib.path(""))
            .env("ANYVERBS_SOFT", "1")
            .env("ANYVERBS_DIRECT", direct)
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(
            out.status.success() && stdout == "ok\n",
            "{name} {args:?}, ANYVERBS_DIRECT={direct}: {}\n{stdout}{stderr}",
            out.status
        );
    }
}
