//! Text files under sysfs, read for tools and providers.
use std::{
    ffi::{CStr, CString, c_char, c_int},
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::OnceLock,
};

use crate::sys::errno::Errno;
use crate::sys::log::explain;

export!(ibv_get_sysfs_path => "ibv_get_sysfs_path" @@ "IBVERBS_1.0");
export!(ibv_read_sysfs_file => "ibv_read_sysfs_file" @@ "IBVERBS_1.0");

/// Where sysfs is mounted: `SYSFS_PATH`, or `/sys`. A set-user-id program does not look at the environment.
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        // SAFETY: the four calls only read this process's ids.
        let own = unsafe { libc::getuid() == libc::geteuid() && libc::getgid() == libc::getegid() };
        let said = std::env::var_os("SYSFS_PATH").filter(|p| own && !p.is_empty());
        let path = said.as_ref().map_or(&b"/sys"[..], |p| p.as_bytes());
        CString::new(path.strip_suffix(b"/").unwrap_or(path)).unwrap_or_default()
    })
    .as_ptr()
}

/// Reads `dir/file` into `buf` without its last newline, ended by NUL where there is room. Returns the bytes without
/// NUL, or -1 with errno.
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() {
        explain(format_args!("ibv_read_sysfs_file: dir, file or buf is NULL"));
        Errno::EINVAL.store();
        return -1;
    }
    // SAFETY: the caller gives two C strings and `size` writable bytes.
    unsafe {
        let path = Path::new(std::ffi::OsStr::from_bytes(CStr::from_ptr(dir).to_bytes()))
            .join(std::ffi::OsStr::from_bytes(CStr::from_ptr(file).to_bytes()));
        read_text(&path, buf, size)
    }
}

/// Reads the first `size` bytes of a file into `buf` by the rules of `ibv_read_sysfs_file`.
///
/// # Safety
/// `buf` must have `size` writable bytes.
pub(super) unsafe fn read_text(path: &Path, buf: *mut c_char, size: usize) -> c_int {
    let mut text = vec![0; size];
    let read = File::open(path).and_then(|mut f| f.read(&mut text));
    let mut length = match read {
        Ok(n) => n,
        Err(e) => {
            Errno::from(e).store();
            return -1;
        }
    };
    if length > 0 && text[length - 1] == b'\n' {
        length -= 1;
        text[length] = 0;
    }
    // SAFETY: the caller gives `size` bytes; at most that many are written.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, size.min(length + 1)) };
    length as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &CStr, size: usize) -> (c_int, Vec<u8>) {
        let mut buf = vec![b'#'; size + 1];
        // SAFETY: `buf` has `size` bytes; both names are C strings.
        let n = unsafe {
            ibv_read_sysfs_file(c"/proc/self".as_ptr(), path.as_ptr(), buf.as_mut_ptr().cast(), size)
        };
        (n, buf)
    }

    #[test]
    fn newline_at_the_end_is_cut() {
        let (n, buf) = read(c"oom_score_adj", 16);
        assert!(n > 0 && buf[..n as usize].iter().all(|b| b.is_ascii_digit() || *b == b'-'));
        assert_eq!(buf[n as usize], 0);
    }

    #[test]
    fn nothing_is_written_beyond_the_buffer() {
        let (n, buf) = read(c"status", 8);
        assert_eq!((n, buf[8]), (8, b'#'));
    }

    #[test]
    fn missing_file_gives_minus_one() {
        assert_eq!(read(c"no such file", 8).0, -1);
        assert_eq!(Errno::last(), Errno::ENOENT);
    }
}
