//! The files in which regions lie that peers of this user may map: each has a number, which peers ask its process by.
//!
//! A number names one file for good; the publication has, for each number that is in use, the number itself, so that a peer
//! sees that a file is used no more and ends its mapping.
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};

use super::{InFile, mapped};
use crate::soft::types::Access;
use crate::sys::inode::Inode;

/// Files at a time, of which number 0 is none; regions in others are not for mapping.
pub const FILES: usize = 4096;
const INDEX: u32 = FILES as u32 - 1;

/// What is published: at the index of each number that number, or 0.
pub type Shown = [AtomicU32; FILES];

/// Whether file `number` is in use still, as its owner shows it.
pub fn is_in_use(shown: &Shown, number: u32) -> bool {
    number != 0 && shown[(number & INDEX) as usize].load(SeqCst) == number
}

/// What peers must be allowed before it matters in which file a region lies.
const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// The file that peers could map to reach a region, and where in it the region begins.
pub fn find(addr: u64, len: u64, access: Access) -> Option<(Inode, u64)> {
    // What is paged on demand is whatever is mapped there when it is accessed.
    let worth = access.intersects(REMOTE) && !access.contains(Access::ON_DEMAND) && len > 0 && len < 1 << 47;
    worth.then(|| mapped::file_of(addr, len)).flatten()
}

/// The files of a process.
#[derive(Debug, Default)]
pub struct Files {
    shown: Option<NonNull<Shown>>,
    by_inode: BTreeMap<Inode, Known>,
    /// Numbers that were in use, and how many indices ever were.
    free: Vec<u32>,
    used: u32,
}

#[derive(Debug)]
struct Known {
    number: u32,
    regions: u32,
}

// SAFETY: `shown` is an array of atomics.
unsafe impl Send for Files {}

impl Files {
    /// No files, to be shown at `shown`, where nothing is yet.
    ///
    /// # Safety
    /// The array is zero, outlives the value, and nobody else writes it.
    pub unsafe fn shown_at(shown: NonNull<Shown>) -> Self {
        Self { shown: Some(shown), used: 1, ..Self::default() }
    }

    /// One more region lies where `find` has found it; what is published of that.
    pub fn enter(&mut self, found: Option<(Inode, u64)>) -> InFile {
        let Some((inode, offset)) = found else { return InFile::default() };
        InFile { number: self.number(inode), offset }
    }

    /// One more region lies in the file; gives its number, 0 where there are too many files or nobody sees them.
    fn number(&mut self, inode: Inode) -> u32 {
        if let Some(known) = self.by_inode.get_mut(&inode) {
            known.regions += 1;
            return known.number;
        }
        let Some(shown) = self.shown else { return 0 };
        let number = match self.free.pop() {
            // Another number at the same index.
            Some(number) => number.wrapping_add(FILES as u32),
            None if self.used < FILES as u32 => {
                self.used += 1;
                self.used - 1
            }
            None => return 0,
        };
        self.by_inode.insert(inode, Known { number, regions: 1 });
        show(shown, number, number);
        number
    }

    /// A region is gone that lay in file `number`; true if it was the last one, and the file is not to be mapped any more.
    pub fn leave(&mut self, file: InFile) -> bool {
        if file.number == 0 {
            return false;
        }
        let found = self.by_inode.iter_mut().find(|(_, known)| known.number == file.number);
        let Some((&inode, known)) = found else { return false };
        known.regions -= 1;
        if known.regions > 0 {
            return false;
        }
        self.by_inode.remove(&inode);
        self.free.push(file.number);
        if let Some(shown) = self.shown {
            show(shown, file.number, 0);
        }
        true
    }

    /// The file of a number that is in use.
    pub fn inode(&self, number: u32) -> Option<Inode> {
        self.by_inode.iter().find(|(_, known)| known.number == number).map(|(inode, _)| *inode)
    }
}

/// Writes `value` at the index of `number`.
fn show(shown: NonNull<Shown>, number: u32, value: u32) {
    // SAFETY: an array that outlives the files, by `shown_at`'s condition.
    let shown = unsafe { shown.as_ref() };
    shown[(number & INDEX) as usize].store(value, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_files_and_ends_with_its_last_region() {
        // SAFETY: atomics of zero; the array outlives `files`.
        let shown: Box<Shown> = unsafe { Box::new(std::mem::zeroed()) };
        // SAFETY: as above.
        let mut files = unsafe { Files::shown_at(NonNull::from(&*shown)) };
        let inode = |number| Inode { device: 1, number };
        let (a, b) = (files.number(inode(1)), files.number(inode(2)));
        let in_file = |number| InFile { number, offset: 0 };
        assert!(a != b && files.number(inode(1)) == a && files.inode(b) == Some(inode(2)));
        assert!(!files.leave(in_file(a)) && is_in_use(&shown, a));
        assert!(files.leave(in_file(a)) && !is_in_use(&shown, a) && is_in_use(&shown, b));
        assert!(files.inode(a).is_none() && !files.leave(in_file(a)) && !files.leave(in_file(0)));
        let again = files.number(inode(1));
        assert!(again != a && is_in_use(&shown, again) && !is_in_use(&shown, a));
    }

    #[test]
    fn files_beyond_the_room_and_those_that_nobody_sees_have_no_number() {
        assert_eq!(Files::default().number(Inode { device: 1, number: 1 }), 0);
        // SAFETY: atomics of zero; the array outlives `files`.
        let shown: Box<Shown> = unsafe { Box::new(std::mem::zeroed()) };
        // SAFETY: as above.
        let mut files = unsafe { Files::shown_at(NonNull::from(&*shown)) };
        let numbers: Vec<_> =
            (0..FILES as u64).map(|number| files.number(Inode { device: 1, number })).collect();
        assert!(numbers[..FILES - 1].iter().all(|n| *n != 0) && numbers[FILES - 1] == 0);
    }
}
