//! A mutex of one word.
use anyverbs_models::sys::latch::Latch;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

#[test]
fn two_threads_exclude_each_other() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(|| {
        let latch = Arc::new(Latch::new(UnsafeCell::new(0)));
        // SAFETY: the latch is held, which is what is tested.
        let enter = |latch: &Latch<UnsafeCell<u32>>| latch.lock().with_mut(|n| unsafe { *n += 1 });
        enter(&latch);
        let others = latch.clone();
        let other = thread::spawn(move || (0..2).for_each(|_| enter(&others)));
        (0..2).for_each(|_| enter(&latch));
        other.join().unwrap();
        // SAFETY: nobody else is left.
        assert_eq!(latch.lock().with(|n| unsafe { *n }), 5);
    });
}
