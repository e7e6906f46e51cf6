//! How much memory of the heap a thread holds, so that a target sees what a stranger makes us keep.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting.
#[derive(Debug)]
pub struct Meter;

fn count(bytes: isize) {
    // A thread that ends counts no more.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static METER: Meter = Meter;

/// Does `work`, and adds to `held` the bytes that it has left allocated.
pub fn count_into<R>(held: &mut isize, work: impl FnOnce() -> R) -> R {
    let before = LIVE.get();
    let result = work();
    *held += LIVE.get() - before;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_counted_and_what_is_freed_is_not() {
        let mut held = 0;
        let kept = count_into(&mut held, || {
            drop(vec![0u8; 5000]);
            vec![1u8; 3000]
        });
        assert_eq!(held, 3000);
        count_into(&mut held, || drop(kept));
        assert_eq!(held, 0);
    }
}
