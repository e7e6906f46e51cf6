//! Folders as the kernel has them, past whatever a preloaded library shows in their place.
use super::{errno::Errno, uncancelled};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether the folder is there and holds anything.
pub fn has_entries(path: &Path) -> bool {
    let mut any = false;
    let _ = each(path, |_| {
        any = true;
        false
    });
    any
}

/// The names in a folder, as the kernel lists them.
///
/// # Errors
/// open(2)'s.
pub fn entries(path: &Path) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    each(path, |name| {
        names.push(String::from_utf8_lossy(name).into_owned());
        true
    })?;
    Ok(names)
}

/// The first 4 KiB of a text file without its last newline; none where it cannot be read.
pub fn text(path: &Path) -> Option<String> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let mut text = vec![0u8; 4096];
    // SAFETY: the buffer has the length that is told.
    let n = unsafe { uncancelled::read(file.as_raw_fd(), text.as_mut_ptr().cast(), text.len()) };
    text.truncate(usize::try_from(n).ok()?);
    let text = String::from_utf8_lossy(&text);
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// open(2) past the C library.
///
/// # Errors
/// open(2)'s; ENOENT for a path with a zero byte.
pub fn open(path: &Path, flags: i32) -> Result<OwnedFd, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::ENOENT)?;
    // SAFETY: the path is a C string; the call returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) } as i32;
    super::fd::adopt(fd)
}

/// Hands each name but `.` and `..` to `f`, until it says false.
fn each(path: &Path, mut f: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    let folder = open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
    let mut entries = [0u64; 256];
    loop {
        // SAFETY: the buffer has the size that is told.
        let filled = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                folder.as_raw_fd(),
                entries.as_mut_ptr(),
                size_of_val(&entries),
            )
        };
        if filled <= 0 || !each_name(bytes(&entries, filled as usize), &mut f) {
            return Ok(());
        }
    }
}

/// The same with `struct linux_dirent64` records.
fn each_name(mut records: &[u8], f: &mut impl FnMut(&[u8]) -> bool) -> bool {
    // ino 8, off 8, reclen 2, type 1, then the name.
    const RECLEN: usize = 16;
    const NAME: usize = 19;
    while records.len() > NAME {
        let length = usize::from(u16::from_ne_bytes([records[RECLEN], records[RECLEN + 1]]));
        let name = records[NAME..].split(|&b| b == 0).next().unwrap_or_default();
        if name != b"." && name != b".." && !f(name) {
            return false;
        }
        records = records.get(length.max(1)..).unwrap_or_default();
    }
    true
}

fn bytes(words: &[u64], length: usize) -> &[u8] {
    // SAFETY: any memory of words is memory of bytes, and the length is at most theirs.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), length.min(size_of_val(words))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_folder_has_no_entries() {
        let folder = std::env::temp_dir().join(format!("anyverbs-test-folder-{}", std::process::id()));
        assert!(!has_entries(&folder));
        std::fs::create_dir(&folder).unwrap();
        assert!(!has_entries(&folder));
        std::fs::write(folder.join("x"), "").unwrap();
        assert!(has_entries(&folder));
        assert_eq!(entries(&folder), Ok(vec!["x".to_owned()]));
        std::fs::write(folder.join("x"), "words\n\n").unwrap();
        assert_eq!(text(&folder.join("x")).as_deref(), Some("words\n"));
        assert_eq!((text(&folder.join("y")), entries(&folder.join("y"))), (None, Err(Errno::ENOENT)));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
