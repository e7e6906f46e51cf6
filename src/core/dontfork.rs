//! Fork protection for kernels before 5.12, which let a child's first write to a pinned page take that page from the device: once
//! `ibv_fork_init` was called, pages of registered memory are not inherited (madvise(2), MADV_DONTFORK). Later kernels copy
//! pinned pages at the fork, and memory of the embedded device is never pinned, so nothing is marked there.
use crate::kernel::discover;
use crate::sys::errno::Errno;
use crate::sys::map::page_size;
use crate::sys::{folder, lock::Lock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Nobody has asked for protection nor registered anything.
const UNTOUCHED: u8 = 0;
/// Something was registered without it.
const TOO_LATE: u8 = 1;
/// Ranges are marked.
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNTOUCHED);
static RANGES: Lock<Option<Ranges>> = Lock::new(None);

/// Whether this kernel needs marks.
fn needed() -> bool {
    static NEEDED: OnceLock<bool> = OnceLock::new();
    *NEEDED.get_or_init(|| discover::pins_across_fork(&discover::Places::system()))
}

/// Whether protection is on; none where nothing needs it.
pub fn is_on() -> Option<bool> {
    needed().then(|| STATE.load(Ordering::Relaxed) == ON)
}

/// Turns it on where this kernel needs it.
///
/// # Errors
/// EINVAL after memory was registered, ENOSYS where the kernel does not know the marks, ENOMEM.
pub fn init() -> Result<(), Errno> {
    if !needed() {
        return Ok(());
    }
    let mut ranges = RANGES.lock();
    if ranges.is_some() {
        return Ok(());
    }
    try_marks()?;
    if STATE.compare_exchange(UNTOUCHED, ON, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return Err(Errno::EINVAL);
    }
    *ranges = Some(Ranges::default());
    Ok(())
}

/// Marks a page of ours and takes the mark away.
fn try_marks() -> Result<(), Errno> {
    let size = page_size();
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which nobody else knows, unmapped again.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), size, rights, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(Errno::ENOMEM);
        }
        let marked = libc::madvise(page, size, libc::MADV_DONTFORK) == 0
            && libc::madvise(page, size, libc::MADV_DOFORK) == 0;
        libc::munmap(page, size);
        if marked { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
    }
}

/// Neither `pin` nor `unpin` has anything to do any more: the first memory was registered without protection.
#[inline(always)]
pub fn is_out() -> bool {
    STATE.load(Ordering::Relaxed) == TOO_LATE
}

/// The memory is about to be pinned.
///
/// # Errors
/// madvise(2)'s, where protection is on.
pub fn pin(start: usize, len: usize) -> Result<(), Errno> {
    match STATE.load(Ordering::Relaxed) {
        ON => change(start, len, true),
        UNTOUCHED => {
            // Turned on just now by another thread?
            let before = STATE.compare_exchange(UNTOUCHED, TOO_LATE, Ordering::Relaxed, Ordering::Relaxed);
            if before == Err(ON) { change(start, len, true) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// The memory is pinned no longer, by whoever called `pin`.
///
/// # Errors
/// madvise(2)'s, where protection is on: the application may have unmapped it.
pub fn unpin(start: usize, len: usize) -> Result<(), Errno> {
    if STATE.load(Ordering::Relaxed) == ON { change(start, len, false) } else { Ok(()) }
}

fn change(start: usize, len: usize, pinned: bool) -> Result<(), Errno> {
    let mut ranges = RANGES.lock();
    let Some(ranges) = ranges.as_mut().filter(|_| len > 0) else { return Ok(()) };
    let page = page_of(start, len);
    let end = start.saturating_add(len).div_ceil(page).saturating_mul(page);
    let range = start & !(page - 1)..end;
    let advice = |range: Range<usize>, marked: bool| {
        let advice = if marked { libc::MADV_DONTFORK } else { libc::MADV_DOFORK };
        let at = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: neither advice touches what lies in the pages, and a range that is not mapped is refused.
        match unsafe { libc::madvise(at, range.len(), advice) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    };
    if pinned { ranges.add(range, advice) } else { ranges.remove(range, advice) }
}

/// The size of the largest page in a range, where `RDMAV_HUGEPAGES_SAFE` says that there may be others than the usual ones.
fn page_of(start: usize, len: usize) -> usize {
    static HUGE: OnceLock<bool> = OnceLock::new();
    if !*HUGE.get_or_init(|| std::env::var_os("RDMAV_HUGEPAGES_SAFE").is_some()) {
        return page_size();
    }
    let maps = folder::text(Path::new("/proc/self/smaps")).unwrap_or_default();
    largest_page(&maps, start..start.saturating_add(len)).max(page_size())
}

/// The largest `KernelPageSize` of the mappings that a range touches, in bytes; 0 where there is none.
fn largest_page(smaps: &str, range: Range<usize>) -> usize {
    let (mut touched, mut largest) = (false, 0);
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if let Some((from, to)) = first.split_once('-') {
            if let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)) {
                touched = from < range.end && range.start < to;
            }
        } else if let Some(size) = line.strip_prefix("KernelPageSize:").filter(|_| touched) {
            let kib: usize = size.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            largest = largest.max(kib << 10);
        }
    }
    largest
}

/// How many regions lie over each address: from each key on, up to the next.
#[derive(Default)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    fn at(&self, address: usize) -> usize {
        self.0.range(..=address).next_back().map_or(0, |(_, &n)| n)
    }

    /// The pieces of a range that have one number each, and which.
    fn pieces(&self, range: &Range<usize>) -> Vec<(Range<usize>, usize)> {
        let inner = self.0.range(range.start + 1..range.end).map(|(&at, _)| at);
        let starts: Vec<usize> = std::iter::once(range.start).chain(inner).collect();
        let ends = starts.iter().skip(1).copied().chain([range.end]);
        starts.iter().zip(ends).map(|(&from, to)| (from..to, self.at(from))).collect()
    }

    fn set(&mut self, pieces: &[(Range<usize>, usize)]) {
        for (range, number) in pieces {
            let behind = self.at(range.end);
            self.0.insert(range.start, *number);
            self.0.entry(range.end).or_insert(behind);
        }
        let mut before = 0;
        self.0.retain(|_, number| std::mem::replace(&mut before, *number) != *number);
    }

    /// One more region lies over this range; `mark` gets what had none.
    fn add(
        &mut self,
        range: Range<usize>,
        mut mark: impl FnMut(Range<usize>, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut pieces = self.pieces(&range);
        let bare: Vec<Range<usize>> =
            pieces.iter().filter(|(_, n)| *n == 0).map(|(piece, _)| piece.clone()).collect();
        for (i, piece) in bare.iter().enumerate() {
            if let Err(e) = mark(piece.clone(), true) {
                // What was marked before, and perhaps a part of this one.
                bare[..=i].iter().for_each(|piece| _ = mark(piece.clone(), false));
                return Err(e);
            }
        }
        pieces.iter_mut().for_each(|(_, n)| *n += 1);
        self.set(&pieces);
        Ok(())
    }

    /// One region less; `mark` gets what has none now. The first failure is told when all is done.
    fn remove(
        &mut self,
        range: Range<usize>,
        mut mark: impl FnMut(Range<usize>, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut pieces = self.pieces(&range);
        let mut result = Ok(());
        for (piece, number) in &mut pieces {
            if *number == 1 {
                result = result.and(mark(piece.clone(), false));
            }
            *number = number.saturating_sub(1);
        }
        self.set(&pieces);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds (`+`) or removes (`-`) ranges one by one; what was marked and unmarked at each step.
    fn marks(steps: &[(char, Range<usize>)]) -> Vec<String> {
        let mut ranges = Ranges::default();
        let all = steps.iter().map(|(sign, range)| {
            let mut text = String::new();
            let mark = |piece: Range<usize>, marked| {
                text += &format!("{}{}..{} ", if marked { '+' } else { '-' }, piece.start, piece.end);
                Ok(())
            };
            let done = if *sign == '+' {
                ranges.add(range.clone(), mark)
            } else {
                ranges.remove(range.clone(), mark)
            };
            assert_eq!(done, Ok(()));
            text.trim_end().to_string()
        });
        let all = all.collect();
        assert!(ranges.0.values().zip(ranges.0.values().skip(1)).all(|(a, b)| a != b), "equal neighbours");
        all
    }

    #[test]
    fn a_page_is_marked_by_the_first_region_over_it_and_unmarked_by_the_last() {
        let steps =
            [('+', 10..20), ('+', 15..30), ('+', 10..20), ('-', 10..20), ('-', 15..30), ('-', 10..20)];
        assert_eq!(marks(&steps), ["+10..20", "+20..30", "", "", "-20..30", "-10..20"]);
    }

    #[test]
    fn a_region_over_others_marks_what_lies_between_them() {
        let steps = [('+', 10..20), ('+', 30..40), ('+', 5..45), ('-', 10..20), ('-', 5..45), ('-', 30..40)];
        let all =
            ["+10..20", "+30..40", "+5..10 +20..30 +40..45", "", "-5..10 -10..20 -20..30 -40..45", "-30..40"];
        // Pieces may be told apart or together.
        let joined = |text: &str| text.replace(" -10..20", "").replace("-5..10 -20..30", "-5..30");
        let got: Vec<String> = marks(&steps).iter().map(|t| joined(t)).collect();
        let want: Vec<String> = all.iter().map(|t| joined(t)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn what_nobody_has_added_is_not_unmarked() {
        assert_eq!(marks(&[('-', 10..20), ('+', 12..14), ('-', 10..20)]), ["", "+12..14", "-12..14"]);
    }

    #[test]
    fn a_mark_that_fails_takes_the_others_back() {
        let mut ranges = Ranges::default();
        ranges.add(10..20, |_, _| Ok(())).unwrap();
        let mut told = Vec::new();
        let failed = ranges.add(0..30, |piece, marked| {
            told.push((piece.start, marked));
            if marked && piece.start == 20 { Err(Errno::ENOMEM) } else { Ok(()) }
        });
        assert_eq!(failed, Err(Errno::ENOMEM));
        assert_eq!(told, [(0, true), (20, true), (0, false), (20, false)]);
        assert_eq!((ranges.at(5), ranges.at(15), ranges.at(25)), (0, 1, 0));
    }

    #[test]
    fn the_largest_page_of_the_mappings_touched_counts() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nKernelPageSize:        4 kB\n\
            200000-600000 rw-p 00000000 00:0f 7 /anon_hugepage\nKernelPageSize:     2048 kB\n\
            600000-601000 r--p 00000000 00:00 0\nKernelPageSize:        4 kB\n";
        assert_eq!(largest_page(smaps, 0x1000..0x2000), 4096);
        assert_eq!(largest_page(smaps, 0x2000..0x200001), 2 << 20);
        assert_eq!(largest_page(smaps, 0x600000..0x600800), 4096);
        assert_eq!(largest_page(smaps, 0x700000..0x700800), 0);
    }
}
