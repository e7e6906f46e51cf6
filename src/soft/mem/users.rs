//! Who copies now: each thread names the regions it uses in words of its own, which deregistration reads.
//!
//! A check stores the word and then loads the key without any fence between; deregistration takes the key away, makes
//! every CPU that runs this process pass a full barrier (membarrier(2)), and then reads the words. Either the check sees
//! that the key is gone or deregistration sees the word. Where the system call is missing the check pays for a fence.
use crate::sys::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*, compiler_fence, fence};
use crate::sys::barrier;
use std::cell::Cell;
use std::ptr;

/// Regions that one thread may use at a time before it falls back to a shared counter.
const WORDS: usize = 16;

/// The words of one thread, each 0 or the address of an entry in use.
#[repr(align(128))]
pub struct Block {
    words: [AtomicUsize; WORDS],
    taken: AtomicBool,
    next: *const Block,
}

impl Block {
    /// Says that the calling thread, which has the block, uses `entry`: as [`enter`].
    #[inline]
    pub fn enter(&self, entry: usize) -> Option<&AtomicUsize> {
        let word = self.words.iter().find(|w| w.load(Relaxed) == 0)?;
        // An earlier user's copy through this word is over before this one begins.
        word.store(entry, Relaxed);
        if barrier::is_available() {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
        Some(word)
    }

    /// Leaves it to later threads.
    pub fn give_back(&self) {
        self.taken.store(false, Release);
    }
}

/// All blocks. They are leaked, and taken over by later threads.
pub struct Blocks(AtomicPtr<Block>);

impl Default for Blocks {
    fn default() -> Self {
        Self::new()
    }
}

impl Blocks {
    /// None yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// A block for the calling thread alone, until it gives it back.
    pub fn take(&self) -> &'static Block {
        let free = |b: &&Block| !b.taken.load(Relaxed) && !b.taken.swap(true, Acquire);
        if let Some(block) = self.iter().find(free) {
            return block;
        }
        let block = Box::into_raw(Box::new(Block {
            words: Default::default(),
            taken: Default::default(),
            next: ptr::null(),
        }));
        // SAFETY: nobody else sees the block before the exchange.
        unsafe { (*block).taken.store(true, Relaxed) };
        let mut head = self.0.load(Acquire);
        loop {
            // SAFETY: nobody else sees the block before the exchange.
            unsafe { (*block).next = head };
            match self.0.compare_exchange(head, block, AcqRel, Acquire) {
                // SAFETY: it is leaked.
                Ok(_) => return unsafe { &*block },
                Err(now) => head = now,
            }
        }
    }

    /// Whether any thread names `entry`: as [`any`].
    pub fn any(&self, entry: usize) -> bool {
        self.iter().any(|b| b.words.iter().any(|w| w.load(Acquire) == entry))
    }

    fn iter(&self) -> impl Iterator<Item = &'static Block> {
        let mut next = self.0.load(Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: the list holds leaked blocks, whose links do not change once published.
            let block = unsafe { next.as_ref() }?;
            next = block.next;
            Some(block)
        })
    }
}

static BLOCKS: Blocks = Blocks::new();

thread_local! {
    static MINE: Cell<*const Block> = const { Cell::new(ptr::null()) };
    static LEAVING: Leaving = const { Leaving };
}

/// Frees the thread's block when it ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let block = MINE.replace(ptr::null());
        // SAFETY: MINE is null or a leaked block.
        if let Some(block) = unsafe { block.as_ref() } {
            block.give_back();
        }
    }
}

/// Says that the calling thread uses `entry` from now on, in a word that is to be set to 0 afterwards; `None` where it has
/// no word left. The key is to be loaded after this.
#[inline]
pub fn enter(entry: usize) -> Option<&'static AtomicUsize> {
    // SAFETY: MINE is null or a leaked block.
    match unsafe { MINE.get().as_ref() } {
        Some(block) => block.enter(entry),
        None => enter_first(entry),
    }
}

#[cold]
fn enter_first(entry: usize) -> Option<&'static AtomicUsize> {
    LEAVING.try_with(|_| MINE.set(BLOCKS.take())).ok()?;
    enter(entry)
}

/// Whether any thread names `entry`. The caller has taken the key away and called [`barrier::everywhere`].
pub fn any(entry: usize) -> bool {
    BLOCKS.any(entry)
}

/// To be called before a table is used, and again in a forked child, where the words of the parent's threads mean nothing.
pub fn prepare() {
    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    let now = crate::sys::fork::generation() as usize;
    if GENERATION.swap(now, AcqRel) != now {
        BLOCKS.iter().flat_map(|b| &b.words).for_each(|w| w.store(0, Relaxed));
        barrier::prepare();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_out_of_words_and_gets_them_back() {
        prepare();
        let entry = &raw const BLOCKS as usize;
        let words: Vec<_> = std::iter::from_fn(|| enter(entry)).collect();
        assert!(words.len() <= WORDS && any(entry));
        words.iter().for_each(|w| w.store(0, Release));
        assert!(!any(entry) && !words.is_empty());
    }

    #[test]
    fn blocks_are_taken_over() {
        for _ in 0..200 {
            std::thread::spawn(|| enter(8).unwrap().store(0, Release)).join().unwrap();
        }
        // Other tests have threads too, but far fewer.
        assert!(BLOCKS.iter().count() < 150);
    }
}
