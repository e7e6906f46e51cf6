//! Whether a range of this process's memory is mapped with the rights that a registration needs, as the kernel finds out by
//! pinning it. Nothing is touched, so that large sparse regions stay sparse.
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;

use crate::sys::guard;

/// Looks at every mapping from `addr` to `addr + len`, which does not overflow. Where /proc is missing every range passes.
///
/// # Errors
/// The first address that is not mapped readable, or not `writable` though asked for.
pub fn check(addr: u64, len: u64, writable: bool) -> Result<(), u64> {
    let Ok(maps) = File::open("/proc/self/maps") else { return Ok(()) };
    let mut at = addr;
    loop {
        let Err(hole) = walk(&maps, at, addr + len, writable) else { return Ok(()) };
        // A stack grows when it is touched below its end; pinning would grow it too.
        let mut byte = 0u8;
        // SAFETY: reads into a local.
        let readable = unsafe { guard::copy(&mut byte, hole as *const u8, 1) }.is_ok();
        if !readable || walk(&maps, hole, hole + 1, writable).is_err() {
            return Err(hole);
        }
        at = hole;
    }
}

/// The first address of `at..end` that lacks the rights.
fn walk(maps: &File, at: u64, end: u64, writable: bool) -> Result<(), u64> {
    ask(maps, at, end, writable).unwrap_or_else(|| read(at, end, writable))
}

/// `struct procmap_query` of linux/fs.h (Linux 6.11).
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;

/// One ioctl a mapping; `None` where the kernel does not have it.
fn ask(maps: &File, mut at: u64, end: u64, writable: bool) -> Option<Result<(), u64>> {
    let need = READABLE | if writable { WRITABLE } else { 0 };
    while at < end {
        let mut query = Query { size: size_of::<Query>() as u64, query_addr: at, ..Query::default() };
        // SAFETY: `query` is complete and has the size that it states.
        let failed = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &mut query) } != 0;
        if failed && crate::sys::errno::Errno::last().0 != libc::ENOENT {
            return None;
        }
        if failed || query.vma_flags & need != need || query.vma_end <= at {
            return Some(Err(at));
        }
        at = query.vma_end;
    }
    Some(Ok(()))
}

/// The same by the text of /proc/self/maps.
fn read(mut at: u64, end: u64, writable: bool) -> Result<(), u64> {
    let Ok(maps) = File::open("/proc/self/maps") else { return Ok(()) };
    let mut maps = BufReader::with_capacity(16 << 10, maps);
    let mut line = Vec::new();
    while at < end {
        line.clear();
        if !matches!(maps.read_until(b'\n', &mut line), Ok(1..)) {
            return Err(at);
        }
        let Some((from, to, rights)) = parse(&line) else { continue };
        if to <= at {
            continue;
        }
        if from > at || rights[0] != b'r' || (writable && rights[1] != b'w') {
            return Err(at);
        }
        at = to;
    }
    Ok(())
}

fn parse(line: &[u8]) -> Option<(u64, u64, [u8; 2])> {
    let text = std::str::from_utf8(line.get(..line.len().min(64))?).ok()?;
    let (range, rest) = text.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let rights = rest.as_bytes().first_chunk::<2>()?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, *rights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::map::page_size;

    /// Four pages: writable, writable, read-only, none.
    struct Patchwork(*mut u8);

    impl Patchwork {
        fn new() -> Self {
            let (page, rights) = (page_size(), libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, and parts of it.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), 4 * page, rights, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                libc::mprotect(at.add(2 * page), page, libc::PROT_READ);
                libc::mprotect(at.add(3 * page), page, libc::PROT_NONE);
                Self(at.cast())
            }
        }
    }

    impl Drop for Patchwork {
        fn drop(&mut self) {
            // SAFETY: the range is ours.
            unsafe { libc::munmap(self.0.cast(), 4 * page_size()) };
        }
    }

    #[test]
    fn rights_are_seen_alike_by_ioctl_and_text() {
        guard::install();
        let (patchwork, page) = (Patchwork::new(), page_size() as u64);
        let base = patchwork.0 as u64;
        let maps = File::open("/proc/self/maps").unwrap();
        for (from, to, writable, first_bad) in [
            (0, 2, true, None),
            (0, 3, false, None),
            (0, 3, true, Some(2)),
            (1, 4, false, Some(3)),
            (2, 3, true, Some(2)),
            (3, 4, false, Some(3)),
        ] {
            let (at, end) = (base + from * page, base + to * page);
            let expected = first_bad.map_or(Ok(()), |bad| Err(base + bad * page));
            assert_eq!(read(at, end, writable), expected, "{from}..{to} {writable}");
            assert_eq!(check(at, end - at, writable), expected, "{from}..{to} {writable}");
            if let Some(asked) = ask(&maps, at, end, writable) {
                assert_eq!(asked, expected, "{from}..{to} {writable}");
            }
        }
        assert!(check(16, 1, false).is_err());
        assert!(check(u64::MAX - 4096, 1, false).is_err());
    }

    #[test]
    fn a_stack_that_has_not_grown_yet_counts_as_mapped() {
        // Only the first thread's stack grows; its current end is in the maps.
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(stack) = text.lines().find(|l| l.ends_with("[stack]")) else { return };
        let (from, _, _) = parse(stack.as_bytes()).unwrap();
        guard::install();
        let page = page_size() as u64;
        assert_eq!(check(from - 8 * page, 9 * page, true), Ok(()));
    }
}
