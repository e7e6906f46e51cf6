//! Files of a peer, in which regions of it lie, mapped into this process: WRITE and READ are then plain copies.
//!
//! A file is asked for by the number that stands in a region's entry when it is first needed, and comes over the connection
//! as a handle (O_PATH); until then, and where it does not come, there are other ways. The mapping ends when the peer shows that
//! the number is not in use any more. The peer may shrink a file that is not sealed: copies are guarded.
use crate::sys::errno::Errno;
use crate::sys::inode::{self, Inode};
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::map::{Mapping, page_size};
use crate::sys::{guard, memfd};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Files of one peer.
const MOST: usize = 4096;

/// A file of a peer.
#[derive(Debug)]
pub struct View {
    map: Mapping,
    /// It cannot shrink.
    is_sealed: bool,
}

impl View {
    /// Maps what a handle names. EPROTO where that is no file in memory.
    fn over(handle: &OwnedFd) -> Result<Self, Errno> {
        memfd::is_in_memory(handle.as_fd())?.then_some(()).ok_or(Errno::EPROTO)?;
        let file = inode::reopen(handle)?;
        if Inode::of(&file)? != Inode::of(handle)? {
            return Err(Errno::EPROTO);
        }
        let size = memfd::size_of_regular(file.as_fd())?.filter(|n| *n > 0).ok_or(Errno::EPROTO)?;
        let len = usize::try_from(size).ok().and_then(|n| n.checked_next_multiple_of(page_size()));
        let map = Mapping::shared(file.as_fd(), len.ok_or(Errno::EPROTO)?, true)?;
        Ok(Self { map, is_sealed: memfd::cannot_shrink(file.as_fd()) })
    }

    /// Where `len` bytes at `offset` of the file are, if they lie in it and this thread may touch them.
    #[inline]
    pub fn reach(&self, offset: u64, len: usize) -> Option<*mut u8> {
        self.whole(offset, len as u64).filter(|_| self.may_be_touched())
    }

    /// Where `len` bytes at `offset` of the file are, if they lie in it.
    #[inline]
    pub fn whole(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let all = self.map.len() as u64;
        (offset <= all && len <= all - offset).then(|| self.map.at(offset as usize))
    }

    /// This thread may touch its bytes: a fault must end in an error, as must one of the application's memory on the other side of
    /// a copy.
    #[inline(always)]
    pub fn may_be_touched(&self) -> bool {
        guard::mode() == guard::Mode::Handler && (self.is_sealed || guard::outlives_faults())
    }
}

/// What is known of a file.
#[derive(Debug)]
enum Known {
    /// It has been asked for.
    Asked,
    /// It cannot be mapped.
    Never,
    Mapped(Arc<View>),
}

/// What there is of a peer's files here.
#[derive(Debug, Default)]
pub struct Views(Lock<BTreeMap<u32, Known>>);

impl Views {
    /// The file, if it is mapped; `ask` asks the peer for it, the first time, and tells whether it could.
    pub fn find(&self, number: u32, ask: impl FnOnce() -> bool) -> Option<Arc<View>> {
        let mut views = self.0.lock();
        match views.get(&number) {
            Some(Known::Mapped(view)) => Some(view.clone()),
            Some(_) => None,
            None => {
                if views.len() < MOST && ask() {
                    views.insert(number, Known::Asked);
                }
                None
            }
        }
    }

    /// The file cannot be mapped.
    pub fn never(&self, number: u32) -> bool {
        matches!(self.0.lock().get(&number), Some(Known::Never))
    }

    /// Whether the file is in use still.
    pub fn has(&self, view: &Arc<View>) -> bool {
        let is_it = |known: &Known| matches!(known, Known::Mapped(known) if Arc::ptr_eq(known, view));
        self.0.lock().values().any(is_it)
    }

    /// The peer's answer; false where it was not asked.
    pub fn answer(&self, number: u32, handle: Option<OwnedFd>) -> bool {
        guard::install();
        let mut views = self.0.lock();
        let Some(known @ Known::Asked) = views.get_mut(&number) else { return false };
        *known = match handle.map(|handle| View::over(&handle)) {
            Some(Ok(view)) => Known::Mapped(Arc::new(view)),
            Some(Err(e)) => {
                explain(format_args!(
                    "shm: a file of a peer cannot be mapped ({e:?}); it is reached by copies of the kernel's"
                ));
                Known::Never
            }
            None => Known::Never,
        };
        true
    }

    /// Ends the mappings of files that are not `in_use` any more; true if there was one.
    pub fn sweep(&self, in_use: impl Fn(u32) -> bool) -> bool {
        let mut ended = Vec::new();
        let mut views = self.0.lock();
        views.retain(|number, known| {
            // An answer is on its way, which must find that it was asked for.
            let stays = in_use(*number) || matches!(known, Known::Asked);
            if let (false, Known::Mapped(view)) = (stays, known) {
                ended.push(view.clone());
            }
            stays
        });
        // Unmapping takes its time.
        drop(views);
        !ended.is_empty()
    }

    /// Ends all of them.
    pub fn clear(&self) {
        self.sweep(|_| false);
    }
}

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
