//! Threads with numbers; who waits lets others run.
use std::sync::atomic::{AtomicUsize, Ordering};

#[allow(missing_docs)]
pub const SPINS: u32 = 1;
#[allow(missing_docs)]
pub const UNKNOWN: usize = usize::MAX;

loom::thread_local! {
    static ID: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed) * 8
    };
}

#[allow(missing_docs)]
pub fn id() -> usize {
    ID.with(|id| *id)
}

#[allow(missing_docs)]
pub fn spin_loop() {
    loom::thread::yield_now();
}

#[allow(missing_docs)]
pub fn yield_now() {
    loom::thread::yield_now();
}
