//! `anyverbs doctor`: what this machine offers the embedded device, one line each, and what to do where something is missing.
use std::{
    env,
    ffi::{CStr, CString, OsStr},
    fs,
    io::{self, Write},
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use crate::libraries;
use socket2::{Domain, Protocol, Socket, Type};

/// How a line begins.
enum Verdict {
    Good,
    /// It works with a loss, which the line names.
    Note,
    Bad,
}

/// Prints all lines; fails if the device cannot be used at all.
pub fn doctor() -> ExitCode {
    let (mut usable, mut unwritten) = (true, None);
    let mut say = |topic: &str, (verdict, text): (Verdict, String)| {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        usable &= !matches!(verdict, Verdict::Bad);
        let written = writeln!(io::stdout(), "{mark} {topic}: {text}");
        // Whoever reads may have seen enough.
        if let Err(why) = written
            && why.kind() != io::ErrorKind::BrokenPipe
        {
            unwritten = Some(why);
        }
    };
    say("libraries", library());
    say("a program by itself", by_itself());
    let devices = devices();
    let is_alone = is_alone(&devices);
    for (topic, line) in devices {
        say(&topic, line);
    }
    say("kernel devices", kernel_devices());
    say("cross-memory attach", cross_memory());
    say("UDP port 4791", wire_port(is_alone));
    say("locked memory", locked_memory());
    say("processors", processors());
    if let Some(why) = &unwritten {
        eprintln!("anyverbs doctor: {why}");
    }
    if usable && unwritten.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn library() -> (Verdict, String) {
    match libraries::folder() {
        Ok(folder) => (Verdict::Good, folder.display().to_string()),
        Err(why) => (Verdict::Bad, why.to_string()),
    }
}

/// What a program gets that is started as it is: the loader is asked by this program, which has no path of its own.
fn by_itself() -> (Verdict, String) {
    let ours = libraries::folder().and_then(|folder| folder.join(libraries::VERBS).canonicalize()).ok();
    match loaded() {
        Some(file) if Some(&file) == ours.as_ref() => {
            (Verdict::Good, format!("loads {} of these libraries", libraries::VERBS))
        }
        Some(file) => {
            (Verdict::Note, format!("loads {}, not these: start programs by `anyverbs run`", file.display()))
        }
        None => (Verdict::Note, format!("finds no {}: start programs by `anyverbs run`", libraries::VERBS)),
    }
}

/// The file that the loader takes for libibverbs in this environment: by LD_PRELOAD, LD_LIBRARY_PATH or its cache.
fn loaded() -> Option<PathBuf> {
    let name = CString::new(libraries::VERBS).ok()?;
    // SAFETY: the names are C strings; the library stays loaded, and with it what the answer points to.
    let file = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() {
            return None;
        }
        let function = libc::dlsym(library, c"ibv_get_device_list".as_ptr());
        let mut about: libc::Dl_info = std::mem::zeroed();
        if function.is_null() || libc::dladdr(function, &mut about) == 0 {
            return None;
        }
        Path::new(OsStr::from_bytes(CStr::from_ptr(about.dli_fname).to_bytes())).to_path_buf()
    };
    Some(file.canonicalize().unwrap_or(file))
}

/// The devices with their GIDs, as a program under `anyverbs run` sees them: this program itself, started that way.
fn devices() -> Vec<(String, (Verdict, String))> {
    let shown = env::current_exe().and_then(|own| {
        let mut command = Command::new(own);
        command.args(["run", "sh", "-c", LIST]).env("ANYVERBS_EXPLAIN", "1").stdin(Stdio::null()).output()
    });
    let (text, told) = match shown {
        Ok(shown) => (lossy(&shown.stdout), lossy(&shown.stderr)),
        Err(why) => return vec![("devices".into(), (Verdict::Bad, why.to_string()))],
    };
    let mut lines: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(topic, text)| (topic.to_string(), (Verdict::Good, text.to_string())))
        .collect();
    // The reasons, once each: the shell and its children look by themselves.
    let mut reasons: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("anyverbs: ")).collect();
    reasons.sort_unstable();
    reasons.dedup();
    if lines.is_empty() {
        lines.push(("devices".into(), (Verdict::Bad, why_none(!reasons.is_empty()).into())));
    }
    lines.extend(
        reasons.into_iter().map(|reason| ("library says".into(), (Verdict::Note, reason.to_string()))),
    );
    lines
}

/// Why no embedded device is shown; `is_told` where the library has said something.
fn why_none(is_told: bool) -> &'static str {
    let asked = env::var_os("ANYVERBS_SOFT").unwrap_or_default();
    if asked == "0" {
        "none is listed: ANYVERBS_SOFT=0 hides them"
    } else if asked != "1" && !kernel_names().is_empty() {
        "none is listed: kernel devices hide them unless ANYVERBS_SOFT=1"
    } else if is_told {
        "none opens; why, the library says below"
    } else {
        "none opens, and the library does not say why"
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One line a device and one a GID, topic and text with a tab between; kernel devices are not ours to tell of.
const LIST: &str = r#"
for path in /sys/class/infiniband/*; do
    test -r "$path/hca_type" || continue
    read type < "$path/hca_type"
    test "$type" = urxe || continue
    name=${path##*/}
    read state < "$path/ports/1/state"; read rate < "$path/ports/1/rate"; read layer < "$path/ports/1/link_layer"
    printf '%s\t%s, %s, %s\n' "$name" "${state#*: }" "$layer" "$rate"
    index=0
    while test -r "$path/ports/1/gids/$index"; do
        read gid < "$path/ports/1/gids/$index"
        interface=; kind=
        test -r "$path/ports/1/gid_attrs/ndevs/$index" && read interface < "$path/ports/1/gid_attrs/ndevs/$index"
        test -r "$path/ports/1/gid_attrs/types/$index" && read kind < "$path/ports/1/gid_attrs/types/$index"
        printf '%s GID %s\t%s %s %s\n' "$name" "$index" "$gid" "$kind" "$interface"
        index=$((index + 1))
    done
done
"#;

fn kernel_names() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn kernel_devices() -> (Verdict, String) {
    let names = kernel_names();
    match names.is_empty() {
        true => (Verdict::Good, "none; the embedded device is listed without being asked for".into()),
        false => (
            Verdict::Note,
            format!("{}; ANYVERBS_SOFT=1 lists the embedded device beside them", names.join(" ")),
        ),
    }
}

/// Whether a process may read another one's memory, tried with a child.
fn cross_memory() -> (Verdict, String) {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope =
        scope.as_deref().map_or("no Yama".to_string(), |text| format!("ptrace_scope {}", text.trim()));
    let asked = scope == "ptrace_scope 1";
    let rings = "READ and WRITE between processes go through rings, with one copy more";
    match (read_of_child(), asked) {
        (Ok(()), true) => {
            (Verdict::Good, format!("allowed ({scope}: peers ask for it, unless ANYVERBS_PTRACER=0)"))
        }
        (Ok(()), false) => (Verdict::Good, format!("allowed ({scope})")),
        (Err(why), _) => (Verdict::Note, format!("refused ({scope}; {why}): {rings}")),
    }
}

fn read_of_child() -> io::Result<()> {
    let word = 0x1234_5678_u64;
    let mut read = 0_u64;
    // SAFETY: the child only waits for a signal, which is async-signal-safe; both buffers have the told length, and the child has the
    // same word at the same address.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        let to = libc::iovec { iov_base: (&raw mut read).cast(), iov_len: size_of::<u64>() };
        let from = libc::iovec { iov_base: (&raw const word).cast_mut().cast(), iov_len: size_of::<u64>() };
        let count = libc::process_vm_readv(child, &to, 1, &from, 1, 0);
        let result = if count == 8 && read == word { Ok(()) } else { Err(io::Error::last_os_error()) };
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        result
    }
}

/// Whether there are GIDs, and all are of the loopback interface.
fn is_alone(devices: &[(String, (Verdict, String))]) -> bool {
    let mut gids = devices.iter().filter(|(topic, _)| topic.contains(" GID ")).peekable();
    gids.peek().is_some() && gids.all(|(_, (_, text))| text.ends_with(" lo"))
}

/// Processes of ours share it; the kernel's soft-RoCE does not.
fn wire_port(is_alone: bool) -> (Verdict, String) {
    let bound = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).and_then(|socket| {
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], 4791)).into())
    });
    match bound {
        Ok(()) if is_alone => {
            (Verdict::Note, "free, but only lo has addresses: other hosts cannot be reached".into())
        }
        Ok(()) => (Verdict::Good, "other hosts can be reached".into()),
        Err(why) => (
            Verdict::Note,
            format!("{why}: the kernel's rdma_rxe or another program has it; only this host can be reached"),
        ),
    }
}

fn locked_memory() -> (Verdict, String) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a valid struct that the call fills.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    let amount = match limit.rlim_cur {
        libc::RLIM_INFINITY => "unlimited".into(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    (Verdict::Good, format!("{amount}; the embedded device locks none"))
}

fn processors() -> (Verdict, String) {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    match count {
        1 => (Verdict::Note, "1: two processes that poll take turns, by whole time slices".into()),
        n => (Verdict::Good, n.to_string()),
    }
}
