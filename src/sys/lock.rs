//! A mutex that a forked child may find held without harm: a futex word, no global tables, no poisoning.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A futex mutex whose guard is handed out even after a panic elsewhere; panics never unwind into C anyway.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

/// Holds the lock until dropped.
pub type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}
