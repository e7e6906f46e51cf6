//! Whether a range of this process's memory is mapped with the rights that a registration needs, as the kernel finds out by
//! pinning it. Nothing is touched, so that large sparse regions stay sparse.
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;

use crate::sys::guard;
use crate::sys::inode::Inode;

/// The file that the whole range is a shared mapping of, and the offset there of its first byte; none where /proc does not tell.
pub fn file_of(addr: u64, len: u64) -> Option<(Inode, u64)> {
    let maps = File::open("/proc/self/maps").ok()?;
    let found = match query(&maps, addr) {
        Ok(found) => found.map(Vma::from),
        Err(Unknown) => search(addr),
    };
    let vma = found.filter(|vma| vma.shared && vma.inode.number != 0)?;
    (vma.from <= addr && len <= vma.to.checked_sub(addr)?)
        .then(|| (vma.inode, vma.offset + (addr - vma.from)))
}

/// A mapping.
#[derive(Debug, PartialEq, Eq)]
struct Vma {
    from: u64,
    to: u64,
    shared: bool,
    offset: u64,
    inode: Inode,
}

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
const SHARED: u64 = 8;
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;

/// The kernel does not have the ioctl.
struct Unknown;

impl From<Query> for Vma {
    fn from(q: Query) -> Self {
        let inode = Inode { device: libc::makedev(q.dev[0], q.dev[1]), number: q.inode };
        Vma {
            from: q.vma_start,
            to: q.vma_end,
            shared: q.vma_flags & SHARED != 0,
            offset: q.vma_offset,
            inode,
        }
    }
}

/// The mapping at `at`, if there is one.
fn query(maps: &File, at: u64) -> Result<Option<Query>, Unknown> {
    let mut query = Query { size: size_of::<Query>() as u64, query_addr: at, ..Query::default() };
    // SAFETY: `query` is complete and has the size that it states.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &mut query) } == 0 {
        return Ok(Some(query));
    }
    if crate::sys::errno::Errno::last().0 == libc::ENOENT { Ok(None) } else { Err(Unknown) }
}

/// One ioctl a mapping; `None` where the kernel does not have it.
fn ask(maps: &File, mut at: u64, end: u64, writable: bool) -> Option<Result<(), u64>> {
    let need = READABLE | if writable { WRITABLE } else { 0 };
    while at < end {
        match query(maps, at).ok()? {
            Some(vma) if vma.vma_flags & need == need && vma.vma_end > at => at = vma.vma_end,
            _ => return Some(Err(at)),
        }
    }
    Some(Ok(()))
}

/// The mapping at `at` by the text of /proc/self/maps.
fn search(at: u64) -> Option<Vma> {
    let maps = BufReader::with_capacity(16 << 10, File::open("/proc/self/maps").ok()?);
    maps.split(b'\n').map_while(Result::ok).find_map(|line| whole(&line).filter(|vma| vma.to > at))
}

/// A line of it, its name left out.
fn whole(line: &[u8]) -> Option<Vma> {
    let (from, to, _) = parse(line)?;
    let text = std::str::from_utf8(line.get(..line.len().min(96))?).ok()?;
    let mut fields = text.split_ascii_whitespace().skip(1);
    let rights = fields.next()?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let [major, minor] = [major, minor].map(|number| u32::from_str_radix(number, 16));
    let inode =
        Inode { device: libc::makedev(major.ok()?, minor.ok()?), number: fields.next()?.parse().ok()? };
    Some(Vma { from, to, shared: rights.ends_with('s'), offset, inode })
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
    use std::os::fd::AsFd;

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
    fn the_file_of_a_shared_mapping_is_seen_alike_by_ioctl_and_text() {
        let page = page_size() as u64;
        let file = crate::sys::memfd::create(c"anyverbs-test", 8 * page as usize).unwrap();
        let map =
            crate::sys::map::Mapping::shared_at(file.as_fd(), 2 * page, 4 * page as usize, true).unwrap();
        let (base, inode) = (map.base() as u64, Inode::of(&file).unwrap());
        assert_eq!(file_of(base, 4 * page), Some((inode, 2 * page)));
        assert_eq!(file_of(base + page + 7, 9), Some((inode, 3 * page + 7)));
        assert_eq!(file_of(base, 4 * page + 1), None);
        let maps = File::open("/proc/self/maps").unwrap();
        let by_text = search(base + page).unwrap();
        if let Ok(Some(asked)) = query(&maps, base + page) {
            assert_eq!(by_text, Vma::from(asked));
        }
        assert_eq!((by_text.inode, by_text.shared, by_text.offset), (inode, true, 2 * page));
        let private = Patchwork::new();
        assert_eq!(file_of(private.0 as u64, page), None);
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
