//! Folders as the kernel has them, past whatever a preloaded library shows in their place.
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether the folder is there and holds anything.
pub fn has_entries(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string; the call returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) } as i32;
    let Ok(folder) = super::fd::adopt(fd) else { return false };
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
        if filled <= 0 {
            return false;
        }
        if !only_dots(bytes(&entries, filled as usize)) {
            return true;
        }
    }
}

/// Whether `struct linux_dirent64` records name nothing but `.` and `..`.
fn only_dots(mut records: &[u8]) -> bool {
    // ino 8, off 8, reclen 2, type 1, then the name.
    const RECLEN: usize = 16;
    const NAME: usize = 19;
    while records.len() > NAME {
        let length = usize::from(u16::from_ne_bytes([records[RECLEN], records[RECLEN + 1]]));
        let name = records[NAME..].split(|&b| b == 0).next().unwrap_or_default();
        if name != b"." && name != b".." {
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
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
