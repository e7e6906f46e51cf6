//! The library's only words: one-line reasons for refusals (`explain`) and the log of `VERBS_LOG_LEVEL` and `VERBS_LOG_FILE`.
//!
//! Silent unless asked: `ANYVERBS_EXPLAIN=1` sends reasons to stderr, `IBV_SHOW_WARNINGS` rdma-core's warnings; a log file that opens receives everything up to
//! its level. The environment is read once, at the first line. `errno` is left as it was.
use crate::sys::{errno::Errno, fd, uncancelled};
use std::ffi::{CString, OsString};
use std::fmt::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The setting that sends reasons to stderr.
pub const EXPLAIN: &str = "ANYVERBS_EXPLAIN";

/// Severities of `VERBS_LOG_LEVEL`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something is odd.
    Warning = 2,
    /// Something happened.
    Info = 3,
    /// For whoever works on the library.
    Debug = 4,
}

/// True where a reason would reach anybody: lets a caller skip work that only `explain` needs.
#[inline]
pub fn enabled() -> bool {
    let sinks = Sinks::current();
    sinks.stderr || sinks.logs(Level::Error)
}

/// True where a line of this level would be written.
#[inline]
pub fn enabled_at(level: Level) -> bool {
    Sinks::current().logs(level)
}

/// Says why a call was refused, in one line naming call, object, attribute, value and what was expected:
/// `ibv_modify_qp qp=0x012abc INIT->RTR: attr_mask lacks IBV_QP_DEST_QPN`.
#[cold]
pub fn explain(reason: fmt::Arguments<'_>) {
    let sinks = Sinks::current();
    if sinks.stderr {
        write_line(libc::STDERR_FILENO, reason);
    }
    if sinks.logs(Level::Error) {
        write_line(sinks.file, reason);
    }
}

/// Writes one of rdma-core's warnings to stderr, as it words them, where `IBV_SHOW_WARNINGS` asks for them.
#[cold]
pub fn warn(warning: fmt::Arguments<'_>) {
    if std::env::var_os("IBV_SHOW_WARNINGS").is_some() {
        write_as("libibverbs: Warning", libc::STDERR_FILENO, warning);
    }
}

/// Writes a line to the log file when `VERBS_LOG_LEVEL` includes `level`.
#[cold]
pub fn log(level: Level, line: fmt::Arguments<'_>) {
    let sinks = Sinks::current();
    if sinks.logs(level) {
        write_line(sinks.file, line);
    }
}

/// Where lines go. Kept packed in one atomic word, so that a forked child never finds it half made.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Sinks {
    stderr: bool,
    level: u32,
    file: i32,
}

/// 0 until read; else bit 63 set, bit 62 stderr, bits 32..48 level, low word the log file's descriptor.
static SINKS: AtomicU64 = AtomicU64::new(0);
/// One thread opens the log file; a forked child of a process in the middle of it goes without.
static OPENING: AtomicU32 = AtomicU32::new(0);

impl Sinks {
    #[inline]
    fn current() -> Self {
        match SINKS.load(Ordering::Acquire) {
            0 => Self::read_environment(),
            word => Self::unpack(word),
        }
    }

    fn logs(self, level: Level) -> bool {
        self.file >= 0 && level as u32 <= self.level
    }

    #[cold]
    fn read_environment() -> Self {
        let stderr = std::env::var_os(EXPLAIN).is_some_and(|v| !v.is_empty() && v != "0");
        let level = std::env::var_os("VERBS_LOG_LEVEL").map_or(0, parse_level);
        if OPENING.swap(1, Ordering::AcqRel) != 0 {
            return Self { stderr, level: 0, file: -1 };
        }
        let name = std::env::var_os("VERBS_LOG_FILE").filter(|_| level > 0 && !crate::sys::is_setuid());
        let sinks = Self { stderr, level, file: name.map_or(-1, open_log) };
        SINKS.store(sinks.pack(), Ordering::Release);
        sinks
    }

    fn pack(self) -> u64 {
        1 << 63
            | u64::from(self.stderr) << 62
            | u64::from(self.level.min(0xffff)) << 32
            | u64::from(self.file as u32)
    }

    fn unpack(word: u64) -> Self {
        Self { stderr: word & 1 << 62 != 0, level: (word >> 32) as u32 & 0xffff, file: word as u32 as i32 }
    }
}

/// A number as strtol with base 0 reads it; what is no number, or negative, is 0.
pub fn parse_level(value: OsString) -> u32 {
    let text = String::from_utf8_lossy(value.as_bytes()).trim_start().to_ascii_lowercase();
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) => (hex, 16),
        (None, Some(octal)) => (octal, 8),
        _ => (text.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], radix).unwrap_or(0)
}

fn open_log(name: OsString) -> i32 {
    let saved = Errno::last();
    let fd = CString::new(name.into_vec()).map_or(-1, |name| {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let fd = unsafe { libc::open(name.as_ptr(), flags, 0o666) };
        fd::adopt(fd).map_or(-1, IntoRawFd::into_raw_fd)
    });
    saved.store();
    fd
}

/// One write call a line, so that lines of several threads and processes do not mix; too long a line is cut.
fn write_line(fd: i32, line: fmt::Arguments<'_>) {
    write_as("anyverbs", fd, line);
}

fn write_as(who: &str, fd: i32, line: fmt::Arguments<'_>) {
    let saved = Errno::last();
    let mut buffer = LineBuffer { bytes: [0; 640], len: 0 };
    let _ = write!(buffer, "{who}: {line}");
    let len = buffer.len;
    buffer.bytes[len] = b'\n';
    // SAFETY: `len + 1` bytes of the buffer are initialised; LineBuffer keeps one byte free for the newline.
    let _ = unsafe { uncancelled::write(fd, buffer.bytes.as_ptr().cast(), len + 1) };
    saved.store();
}

struct LineBuffer {
    bytes: [u8; 640],
    len: usize,
}

impl Write for LineBuffer {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let take = s.len().min(room);
        self.bytes[self.len..self.len + take].copy_from_slice(&s.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_through_pipe(line: fmt::Arguments<'_>) -> String {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for both descriptors.
        assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        write_line(fds[1], line);
        let mut buffer = [0u8; 1024];
        // SAFETY: the buffer has the length given; the descriptors are ours to close.
        let n = unsafe {
            let n = libc::read(fds[0], buffer.as_mut_ptr().cast(), buffer.len());
            libc::close(fds[0]);
            libc::close(fds[1]);
            n
        };
        String::from_utf8(buffer[..n as usize].to_vec()).unwrap()
    }

    #[test]
    fn a_line_is_written_whole_and_keeps_errno() {
        Errno::ENODATA.store();
        assert_eq!(
            line_through_pipe(format_args!("ibv_x qp=0x{:06x}: no", 0x12abc)),
            "anyverbs: ibv_x qp=0x012abc: no\n"
        );
        Errno::ENODATA.store();
        write_line(-1, format_args!("nobody reads this"));
        assert_eq!(Errno::last(), Errno::ENODATA);
    }

    #[test]
    fn a_long_line_is_cut_not_lost() {
        let line = line_through_pipe(format_args!("{}", "x".repeat(5000)));
        assert!(line.len() == 640 && line.ends_with("x\n"));
    }

    #[test]
    fn levels_read_like_strtol_base_0() {
        for (text, level) in [("4", 4), ("0x3", 3), ("02", 2), ("", 0), ("-1", 0), ("abc", 0), ("2x", 2)] {
            assert_eq!(parse_level(text.into()), level, "{text:?}");
        }
    }

    #[test]
    fn sinks_survive_packing() {
        for sinks in [Sinks { stderr: true, level: 4, file: 7 }, Sinks { stderr: false, level: 0, file: -1 }]
        {
            assert_eq!(Sinks::unpack(sinks.pack()), sinks);
        }
    }
}
