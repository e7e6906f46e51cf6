//! Who copies now: each thread names the regions it uses in words of its own, which deregistration reads.
//!
//! A check stores the word and then loads the key without any fence between; deregistration takes the key away, makes
//! every CPU that runs this process pass a full barrier (membarrier(2)), and then reads the words. Either the check sees
//! that the key is gone or deregistration sees the word. Where the system call is missing the check pays for a fence.
use crate::sys::barrier;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*, compiler_fence, fence};

/// Regions that one thread may use at a time before it falls back to a shared counter.
const WORDS: usize = 16;

/// The words of one thread, each 0 or the address of an entry in use. Blocks are leaked, and taken over by later threads.
#[repr(align(128))]
struct Block {
    words: [AtomicUsize; WORDS],
    taken: AtomicBool,
    next: *const Block,
}

static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());

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
            block.taken.store(false, Release);
        }
    }
}

/// Says that the calling thread uses `entry` from now on, in a word that is to be set to 0 afterwards; `None` where it has
/// no word left. The key is to be loaded after this.
#[inline]
pub fn enter(entry: usize) -> Option<&'static AtomicUsize> {
    let block = MINE.get();
    if block.is_null() {
        return enter_first(entry);
    }
    // SAFETY: MINE is null or a leaked block.
    let word = unsafe { &*block }.words.iter().find(|w| w.load(Relaxed) == 0)?;
    // An earlier user's copy through this word is over before this one begins.
    word.store(entry, Relaxed);
    if barrier::is_available() {
        compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
    Some(word)
}

#[cold]
fn enter_first(entry: usize) -> Option<&'static AtomicUsize> {
    LEAVING.try_with(|_| MINE.set(take_block())).ok()?;
    enter(entry)
}

fn take_block() -> *const Block {
    let free = |b: &&Block| !b.taken.load(Relaxed) && !b.taken.swap(true, Acquire);
    if let Some(block) = blocks().find(free) {
        return block;
    }
    let block = Box::into_raw(Box::new(Block {
        words: [const { AtomicUsize::new(0) }; WORDS],
        taken: AtomicBool::new(true),
        next: ptr::null(),
    }));
    let mut head = BLOCKS.load(Acquire);
    loop {
        // SAFETY: nobody else sees the block before the exchange.
        unsafe { (*block).next = head };
        match BLOCKS.compare_exchange_weak(head, block, AcqRel, Acquire) {
            Ok(_) => return block,
            Err(now) => head = now,
        }
    }
}

fn blocks() -> impl Iterator<Item = &'static Block> {
    let mut next = BLOCKS.load(Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: the list holds leaked blocks, whose links do not change once published.
        let block = unsafe { next.as_ref() }?;
        next = block.next;
        Some(block)
    })
}

/// Whether any thread names `entry`. The caller has taken the key away and called [`barrier::everywhere`].
pub fn any(entry: usize) -> bool {
    blocks().any(|b| b.words.iter().any(|w| w.load(Acquire) == entry))
}

/// To be called before a table is used, and again in a forked child, where the words of the parent's threads mean nothing.
pub fn prepare() {
    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    let now = crate::sys::fork::generation() as usize;
    if GENERATION.swap(now, AcqRel) != now {
        blocks().flat_map(|b| &b.words).for_each(|w| w.store(0, Relaxed));
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
        assert!(blocks().count() < 150);
    }
}
