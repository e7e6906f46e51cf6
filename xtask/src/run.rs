//! Child processes: spawn with captured output, wait with a limit, kill whole process groups, find free ports.
use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, Read},
    net::TcpListener,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{self, Command, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Process groups that are alive and ours.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Set by [`kill_all`]: nothing more is started until [`allow`].
static STOPPED: AtomicBool = AtomicBool::new(false);

/// In the environment of every child, with our process id: so that [`is_ours`] knows even an orphan.
const MARK: &str = "ANYVERBS_TEST_RUN";

/// A running child, leader of its own process group; dropped, the group is killed.
pub struct Child {
    inner: process::Child,
    pidfd: OwnedFd,
    line: String,
    out: Arc<Capture>,
    err: Arc<Capture>,
    started: Instant,
    done: Option<ExitStatus>,
}

/// What a child left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command as typed.
    pub line: String,
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one ended it; `None` and no code: it ran past its limit and was killed.
    pub signal: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Outcome {
    /// Exited with 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }
    /// `Err` with everything a reader needs unless it exited with 0.
    pub fn success(self) -> Result<Outcome, String> {
        if self.ok() { Ok(self) } else { Err(self.to_string()) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "`{}` exited with {code}", self.line)?,
            (_, Some(signal)) => write!(f, "`{}` was ended by signal {signal}", self.line)?,
            _ => write!(f, "`{}` ran past its limit", self.line)?,
        }
        write!(f, " after {:.1} s", self.took.as_secs_f64())?;
        for (name, text) in [("stdout", &self.out), ("stderr", &self.err)] {
            if !text.trim().is_empty() {
                write!(f, "\n      {name}: {}", tail(text, 12).replace('\n', "\n              "))?;
            }
        }
        Ok(())
    }
}

/// Starts `cmd` without input, in a process group of its own, output captured.
pub fn spawn(mut cmd: Command) -> Result<Child, String> {
    let line = describe(&cmd);
    if STOPPED.load(Ordering::SeqCst) {
        return Err(format!("`{line}` not started: the step ran past its limit"));
    }
    cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    cmd.env(MARK, process::id().to_string());
    unblock_signals(&mut cmd);
    let mut inner = cmd.spawn().map_err(|e| format!("`{line}`: {e}"))?;
    groups().insert(inner.id() as i32);
    let out = Capture::of(inner.stdout.take());
    let err = Capture::of(inner.stderr.take());
    let pidfd = pidfd(inner.id()).map_err(|e| format!("`{line}`: pidfd: {e}"))?;
    Ok(Child { inner, pidfd, line, out, err, started: Instant::now(), done: None })
}

/// Runs `cmd` to its end, at most `limit` long.
pub fn run(cmd: Command, limit: Duration) -> Result<Outcome, String> {
    spawn(cmd).map(|child| child.finish(limit))
}

/// Runs `cmd` with our own output, for builds; `Err` unless it exits with 0.
pub fn inherit(mut cmd: Command) -> Result<(), String> {
    let line = describe(&cmd);
    unblock_signals(&mut cmd);
    let status = cmd.stdin(Stdio::null()).status().map_err(|e| format!("`{line}`: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}`: {status}")) }
}

/// A command from a program and its arguments.
pub fn command<S: AsRef<std::ffi::OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut cmd = Command::new(program);
    cmd.args(args);
    cmd
}

/// Whether `program` is found in the path or in the sbin folders.
pub fn have(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| fs::metadata(format!("{dir}/{program}")).is_ok())
}

/// Whether we are root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A TCP port that was free a moment ago, below the ephemeral range; no two calls give the same one.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = (process::id() as u16).wrapping_mul(131) % 10_000;
    loop {
        let port = 20_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds, the clock that our C programs print.
pub fn monotonic_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: ts is a valid timespec that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Asks `ready` every few milliseconds until it is true or `limit` is over.
pub fn until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if ready() {
            return true;
        }
        if Instant::now() >= end || STOPPED.load(Ordering::SeqCst) {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills every group that we started and lets nothing start until [`allow`].
pub fn kill_all() {
    STOPPED.store(true, Ordering::SeqCst);
    for &group in groups().iter() {
        signal(-group, libc::SIGKILL);
    }
}

/// Whether [`kill_all`] was called and [`allow`] not yet.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Lets children start again.
pub fn allow() {
    STOPPED.store(false, Ordering::SeqCst);
}

impl Child {
    /// The process id, which is also its group.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }
    /// SIGKILL to the process alone, not its group.
    pub fn kill(&self) {
        signal(self.pid() as i32, libc::SIGKILL);
    }
    /// Another signal to the process alone.
    pub fn signal(&self, number: i32) {
        signal(self.pid() as i32, number);
    }
    /// Whether it ended within `limit`.
    pub fn ended(&mut self, limit: Duration) -> bool {
        if self.done.is_none() && readable(&self.pidfd, limit) {
            self.done = self.inner.wait().ok();
        }
        self.done.is_some()
    }
    /// Waits until standard output or standard error holds `text`; `Err` when it ends or `limit` is over first.
    pub fn says(&mut self, text: &str, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        let said = |child: &Child| child.out.text().contains(text) || child.err.text().contains(text);
        while !said(self) {
            let gone = self.ended(Duration::from_millis(3));
            if gone {
                self.out.closed(Duration::from_secs(1));
                self.err.closed(Duration::from_secs(1));
            }
            if (gone && !said(self)) || Instant::now() >= end {
                return Err(format!("`{}` never said {text:?}: {}", self.line, tail(&self.err.text(), 8)));
            }
        }
        Ok(())
    }
    /// Waits until the process, in its own network namespace, listens on TCP `port`.
    pub fn listens(&mut self, port: u16, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !listening(self.pid(), port) {
            if self.ended(Duration::from_millis(2)) || Instant::now() >= end {
                return Err(format!(
                    "`{}` does not listen on port {port}: {}",
                    self.line,
                    tail(&self.err.text(), 8)
                ));
            }
        }
        Ok(())
    }
    /// Whether the process listens on TCP `port` now.
    pub fn is_listening(&self, port: u16) -> bool {
        listening(self.pid(), port)
    }
    /// Waits for the end, at most `limit`; then kills what is left of the group.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let ended = self.ended(limit);
        let took = self.started.elapsed();
        self.reap();
        for capture in [&self.out, &self.err] {
            capture.closed(Duration::from_secs(2));
        }
        let status = self.done.filter(|_| ended);
        Outcome {
            line: self.line.clone(),
            code: status.and_then(|s| s.code()),
            signal: status.and_then(|s| s.signal()),
            out: self.out.text(),
            err: self.err.text(),
            took,
        }
    }
    fn reap(&mut self) {
        let group = self.pid() as i32;
        if groups().remove(&group) {
            signal(-group, libc::SIGKILL);
        }
        if self.done.is_none() {
            self.done = self.inner.wait().ok();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.reap();
    }
}

/// Clock ticks in a second.
pub const TICKS: u64 = 100;

/// User and system time of a process so far, in clock ticks.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Whether a process was started by us, however far down.
pub fn is_ours(pid: u32) -> bool {
    let mark = format!("{MARK}={}", process::id());
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// What a child wrote to one of its streams.
struct Capture {
    state: Mutex<(Vec<u8>, bool)>,
    change: Condvar,
}

impl Capture {
    fn of(stream: Option<impl Read + Send + 'static>) -> Arc<Capture> {
        let capture = Arc::new(Capture { state: Mutex::default(), change: Condvar::new() });
        if let Some(mut stream) = stream {
            let to = capture.clone();
            thread::spawn(move || {
                let mut chunk = [0; 8192];
                while let Ok(n @ 1..) = stream.read(&mut chunk) {
                    let mut state = to.state.lock().unwrap_or_else(PoisonError::into_inner);
                    if state.0.len() < 8 << 20 {
                        state.0.extend_from_slice(&chunk[..n]);
                    }
                }
                to.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
                to.change.notify_all();
            });
        }
        capture
    }
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.state.lock().unwrap_or_else(PoisonError::into_inner).0).into_owned()
    }
    fn closed(&self, limit: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.change.wait_timeout_while(state, limit, |s| !s.1));
    }
}

/// We block SIGINT and SIGTERM to wait for them; a child must not inherit that.
fn unblock_signals(cmd: &mut Command) {
    let empty = || {
        // SAFETY: sigset_t is plain data that sigemptyset fills; both calls are async-signal-safe.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure makes async-signal-safe calls only.
    unsafe { cmd.pre_exec(empty) };
}

fn describe(cmd: &Command) -> String {
    let words = std::iter::once(cmd.get_program()).chain(cmd.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn groups() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(target: i32, number: i32) {
    // SAFETY: kill takes plain numbers; the target is a child of ours that has not been waited for, or its group.
    unsafe { libc::kill(target, number) };
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn readable(fd: &OwnedFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, limit.as_millis().min(i32::MAX as u128) as i32) > 0 }
}

fn listening(pid: u32, port: u16) -> bool {
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
        })
    })
}
