//! A mutex that a forked child may find held without harm: one word, no global tables, no poisoning.
//!
//! It is held for a few hundred nanoseconds at most, so waiters spin, then yield, then nap; in return unlocking is a plain
//! store, which does not wait for the stores before it to reach the other CPU.
use super::uncancelled;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Looks at the word before a waiter yields, yields before it naps: the holder may have been preempted.
const SPINS: u32 = 100;
const YIELDS_END: u32 = SPINS + 20;
/// Also lets a holder of lower real-time priority run.
const NAP: Duration = Duration::from_micros(50);

/// A mutex. `lock_raw` and `unlock_raw` serve `ibv_wr_start`, whose critical section spans calls.
#[derive(Debug, Default)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one thread at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns its value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Holds the lock until dropped.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_raw();
        Guard(self)
    }

    /// Takes the lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard(self))
    }

    /// Waits for the lock and leaves it held when this returns.
    #[inline]
    pub fn lock_raw(&self) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
    }

    /// Ends what `lock_raw` began.
    ///
    /// # Safety
    /// The caller holds the lock by `lock_raw`, and no reference to the value outlives this call.
    #[inline]
    pub unsafe fn unlock_raw(&self) {
        self.word.store(FREE, Ordering::Release);
    }

    /// The value, for the thread between `lock_raw` and `unlock_raw`.
    ///
    /// # Safety
    /// The caller holds the lock by `lock_raw` and has no other reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller promises to hold the lock.
        unsafe { &mut *self.value.get() }
    }

    #[cold]
    fn lock_slow(&self) {
        for round in 0u32.. {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            match round {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS_END => std::thread::yield_now(),
                _ => uncancelled::nap(NAP),
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock, and its borrows end with it.
        unsafe { self.0.unlock_raw() }
    }
}

/// A value that a lock elsewhere guards beside its own: two that are always taken together need one lock.
#[derive(Debug, Default)]
pub struct Beside<T>(UnsafeCell<T>);

// SAFETY: the lock that guards it admits one thread at a time.
unsafe impl<T: Send> Sync for Beside<T> {}

impl<T> Beside<T> {
    /// The value, while `_guard` is held.
    ///
    /// # Safety
    /// The guard is always that of the same lock, and no other reference to the value lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn with<'a, U>(&'a self, _guard: &Guard<'a, U>) -> &'a mut T {
        // SAFETY: the caller holds the lock that guards it.
        unsafe { &mut *self.0.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_other_threads() {
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn try_lock_fails_while_held() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "a failed try releases nothing");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
