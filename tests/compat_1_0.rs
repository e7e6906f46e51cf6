//! A C program with the structures of IBVERBS_1.0, bound to that node, works through the whole life of its objects.
use std::{
    path::Path,
    process::{Command, Output},
};

#[test]
fn program_of_2006_sends_writes_and_adds() {
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compat10-{}", std::process::id()));
    std::fs::create_dir_all(&work).unwrap();
    std::fs::copy(dir.join("libibverbs.so"), work.join("libibverbs.so.1")).unwrap();
    let program = work.join("compat10");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c-tests/compat10.c"))
        .arg(work.join("libibverbs.so.1"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built));
    let ran = Command::new("timeout")
        .arg("60")
        .arg(&program)
        .envs([
            ("LD_LIBRARY_PATH", work.as_os_str()),
            ("ANYVERBS_SOFT", "1".as_ref()),
            ("ANYVERBS_EXPLAIN", "1".as_ref()),
        ])
        .output()
        .unwrap();
    std::fs::remove_dir_all(&work).unwrap();
    assert!(ran.status.success(), "{:?}\n{}", ran.status, text(&ran));
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
