//! What valgrind's helgrind is told of our locks, which it cannot know as it knows pthread's: a build with
//! `--cfg anyverbs_helgrind` only. Elsewhere these are nothing.

#[cfg(not(all(anyverbs_helgrind, target_arch = "x86_64")))]
mod tell {
    #[inline(always)]
    pub fn acquired(_: usize) {}
    #[inline(always)]
    pub fn released(_: usize) {}
    #[inline(always)]
    pub fn handed(_: usize) {}
}

#[cfg(all(anyverbs_helgrind, target_arch = "x86_64"))]
mod tell {
    use std::arch::asm;

    /// `VG_USERREQ__HG_*` of helgrind.h, an interface that valgrind keeps: 'H', 'G', number.
    const MUTEX_UNLOCK_PRE: u64 = 0x4847_0000 + 261;
    const MUTEX_UNLOCK_POST: u64 = 0x4847_0000 + 262;
    const MUTEX_ACQUIRED: u64 = 0x4847_0000 + 264;
    const RWLOCK_ACQUIRED: u64 = 0x4847_0000 + 273;
    const RWLOCK_RELEASED: u64 = 0x4847_0000 + 274;

    /// A client request: instructions that do nothing on a processor.
    fn request(code: u64, first: u64, second: u64) {
        let words = [code, first, second, 0, 0, 0];
        // SAFETY: rotations by 128 bits in all restore rdi, and the exchange is of a register with itself; valgrind reads
        // `words` and writes rdx.
        unsafe {
            asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") words.as_ptr(),
                inout("rdx") 0u64 => _,
                options(nostack),
            )
        }
    }

    /// A mutex like pthread's, which may lie where a freed one of those lay.
    pub fn acquired(lock: usize) {
        request(MUTEX_ACQUIRED, lock as u64, 0);
    }

    pub fn released(lock: usize) {
        request(MUTEX_UNLOCK_PRE, lock as u64, 0);
        request(MUTEX_UNLOCK_POST, lock as u64, 0);
    }

    /// Of two threads that both say so of a word, the second one sees all that the first has done: an atomic has passed it on.
    pub fn handed(word: usize) {
        acquired(word);
        released(word);
    }

    pub fn shared(lock: usize, to_write: bool) {
        request(RWLOCK_ACQUIRED, lock as u64, to_write.into());
    }

    pub fn unshared(lock: usize) {
        request(RWLOCK_RELEASED, lock as u64, 0);
    }
}

pub use tell::{acquired, handed, released};

/// The standard library's, or ones that tell helgrind of themselves.
#[cfg(not(all(anyverbs_helgrind, target_arch = "x86_64")))]
pub use std::sync::{OnceLock, RwLock};

#[cfg(all(anyverbs_helgrind, target_arch = "x86_64"))]
pub use told::{OnceLock, RwLock};

#[cfg(all(anyverbs_helgrind, target_arch = "x86_64"))]
mod told {
    use super::tell::{shared, unshared};
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};

    /// As `std::sync::RwLock`, never poisoned.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(std::sync::RwLock<T>);

    /// Holds the lock until dropped.
    #[derive(Debug)]
    pub struct Told<G> {
        inner: Option<G>,
        at: usize,
    }

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            Self(std::sync::RwLock::new(value))
        }

        fn told<G>(&self, inner: G, to_write: bool) -> LockResult<Told<G>> {
            let at = std::ptr::from_ref(self) as usize;
            shared(at, to_write);
            Ok(Told { inner: Some(inner), at })
        }

        #[allow(missing_docs)]
        pub fn read(&self) -> LockResult<Told<std::sync::RwLockReadGuard<'_, T>>> {
            self.told(self.0.read().unwrap_or_else(PoisonError::into_inner), false)
        }

        #[allow(missing_docs)]
        pub fn write(&self) -> LockResult<Told<std::sync::RwLockWriteGuard<'_, T>>> {
            self.told(self.0.write().unwrap_or_else(PoisonError::into_inner), true)
        }
    }

    impl<G: Deref> Deref for Told<G> {
        type Target = G::Target;
        fn deref(&self) -> &G::Target {
            self.inner.as_ref().expect("held until dropped")
        }
    }

    impl<G: DerefMut> DerefMut for Told<G> {
        fn deref_mut(&mut self) -> &mut G::Target {
            self.inner.as_mut().expect("held until dropped")
        }
    }

    impl<G> Drop for Told<G> {
        fn drop(&mut self) {
            unshared(self.at);
            self.inner = None;
        }
    }
    /// As `std::sync::OnceLock`: who gets the value sees all that was done before it was set.
    #[derive(Debug)]
    pub struct OnceLock<T>(std::sync::OnceLock<T>);

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self(std::sync::OnceLock::new())
        }
    }

    impl<T> OnceLock<T> {
        fn tell(&self, to_write: bool) {
            let at = std::ptr::from_ref(self) as usize;
            shared(at, to_write);
            unshared(at);
        }

        #[allow(missing_docs)]
        pub fn get(&self) -> Option<&T> {
            let value = self.0.get()?;
            self.tell(false);
            Some(value)
        }

        #[allow(missing_docs)]
        pub fn set(&self, value: T) -> Result<(), T> {
            if self.0.get().is_none() {
                self.tell(true);
            }
            self.0.set(value)
        }

        #[allow(missing_docs)]
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            self.0.get_or_init(|| {
                let value = make();
                self.tell(true);
                value
            })
        }
    }
}
