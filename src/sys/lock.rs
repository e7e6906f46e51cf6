//! A mutex that a forked child may find held without harm: one futex word, no global tables, no poisoning.
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a waiter looks at the word before it sleeps; on two cores a holder may have been preempted.
const SPINS: u32 = 100;

/// A futex mutex. `lock_raw` and `unlock_raw` serve `ibv_wr_start`, whose critical section spans calls.
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
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            self.wake();
        }
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
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            // SAFETY: FUTEX_WAIT only reads the word, which lives as long as `self`.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.word.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    CONTENDED,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        }
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: FUTEX_WAKE uses the word's address only.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
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
