//! A mutex of one word: a compare-and-exchange to take it, a plain store to give it back, as `pthread_spinlock_t`. For short sections
//! beside which a lock of one thread's own ([`Lock`](super::lock::Lock)) saves nothing: its owner is found by more instructions
//! than this has in all. A forked child may find it held without harm, too.
use super::annotate;
use super::atomic::{AtomicBool, Ordering};
use super::lock::wait_for;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// The mutex. `lock_raw` and `unlock_raw` serve `ibv_wr_start` and `ibv_start_poll`, whose critical sections span calls.
#[derive(Debug, Default)]
pub struct Latch<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the latch admits one thread at a time to the value.
unsafe impl<T: Send> Sync for Latch<T> {}

/// Holds the latch until dropped.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Latch<T>);

impl<T> Latch<T> {
    /// A latch around `value`.
    pub const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the latch.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_raw();
        Guard(self)
    }

    /// Waits for the latch and leaves it held when this returns.
    #[inline(always)]
    pub fn lock_raw(&self) {
        if !self.try_take() {
            self.wait();
        }
        annotate::acquired(self.place());
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        wait_for(|| !self.held.load(Ordering::Relaxed) && self.try_take());
    }

    #[inline(always)]
    fn try_take(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends what `lock_raw` began.
    ///
    /// # Safety
    /// The caller holds the latch by `lock_raw`, and no reference to the value outlives this call.
    #[inline(always)]
    pub unsafe fn unlock_raw(&self) {
        annotate::released(self.place());
        self.held.store(false, Ordering::Release);
    }

    /// The value, for the thread between `lock_raw` and `unlock_raw`.
    ///
    /// # Safety
    /// The caller holds the latch by `lock_raw` and has no other reference to the value.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller promises to hold the latch.
        unsafe { &mut *self.value.get() }
    }

    /// Names the latch to checkers.
    #[inline(always)]
    fn place(&self) -> usize {
        std::ptr::from_ref(&self.held) as usize
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the latch.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the latch and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard holds the latch, and its borrows end with it.
        unsafe { self.0.unlock_raw() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_other_threads() {
        let latch = Latch::new(0u64);
        std::thread::scope(|s| {
            for raw in [false, true, false, true] {
                let latch = &latch;
                s.spawn(move || {
                    for _ in 0..20_000 {
                        if raw {
                            // SAFETY: held in between.
                            unsafe {
                                latch.lock_raw();
                                *latch.held() += 1;
                                latch.unlock_raw();
                            }
                        } else {
                            let mut held = latch.lock();
                            let seen = *held;
                            std::hint::spin_loop();
                            *held = seen + 1;
                        }
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), 80_000);
    }

    #[test]
    fn a_waiter_gets_it_from_a_holder_that_sleeps() {
        let latch = Latch::new(1);
        std::thread::scope(|s| {
            let held = latch.lock();
            let waiter = s.spawn(|| *latch.lock());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiter.is_finished());
            drop(held);
            assert_eq!(waiter.join().unwrap(), 1);
        });
    }
}
