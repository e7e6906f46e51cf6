//! Memory of this process does not go while a thread of it copies.
use anyverbs_models::soft::mem::users::Blocks;
use anyverbs_models::sys::barrier;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;

const ENTRY: usize = 8;

/// As `MemTable::check` and `MemTable::deregister`, with `copiers` threads.
fn deregistration_waits_for(copiers: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let (blocks, key) = (Arc::new(Blocks::new()), Arc::new(AtomicU32::new(1)));
        #[expect(clippy::arc_with_non_send_sync, reason = "loom's threads take turns")]
        let memory = Arc::new(UnsafeCell::new(1u32));
        // The list's head is made before there is a second thread.
        assert!(!blocks.any(ENTRY));
        let copiers: Vec<_> = (0..copiers)
            .map(|_| {
                let (blocks, key, memory) = (blocks.clone(), key.clone(), memory.clone());
                thread::spawn(move || {
                    let block = blocks.take();
                    let word = block.enter(ENTRY).expect("a word is free");
                    if key.load(Ordering::Relaxed) != 0 {
                        // SAFETY: the entry is in use while a word names it, which is what is tested.
                        memory.with(|n| assert_eq!(unsafe { *n }, 1));
                    }
                    word.store(0, Ordering::Release);
                    block.give_back();
                })
            })
            .collect();
        key.store(0, Ordering::Relaxed);
        barrier::everywhere();
        while blocks.any(ENTRY) {
            thread::yield_now();
        }
        // SAFETY: nobody copies any more.
        memory.with_mut(|n| unsafe { *n = 0 });
        copiers.into_iter().for_each(|c| c.join().unwrap());
    });
}

#[test]
fn deregistration_waits_for_a_copy() {
    deregistration_waits_for(1, 3);
}

/// Of whom the second may take over the block of the first, or make one of its own.
#[test]
fn deregistration_waits_for_two_threads() {
    deregistration_waits_for(2, 2);
}
