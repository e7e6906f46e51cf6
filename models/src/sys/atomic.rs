//! loom's atomics. Where the library calls its const constructor, in which loom's cannot be called, the first access makes them, which
//! must be before there is a second thread; a default is made at once.
use std::fmt;
use std::sync::OnceLock;

pub use loom::sync::atomic::{Ordering, fence};

/// The frequent side of membarrier(2), which makes a full barrier of it whenever that matters.
pub fn compiler_fence(_: Ordering) {
    fence(Ordering::SeqCst);
}

macro_rules! atomics {
    ($($name:ident: $value:ty),*) => { $(
        #[allow(missing_docs)]
        pub struct $name {
            initial: $value,
            cell: OnceLock<loom::sync::atomic::$name>,
        }

        #[allow(missing_docs)]
        impl $name {
            pub const fn new(initial: $value) -> Self {
                Self { initial, cell: OnceLock::new() }
            }
            /// One that is made at once.
            pub fn made(initial: $value) -> Self {
                let new = Self::new(initial);
                new.cell();
                new
            }
            fn cell(&self) -> &loom::sync::atomic::$name {
                self.cell.get_or_init(|| loom::sync::atomic::$name::new(self.initial))
            }
            pub fn load(&self, order: Ordering) -> $value {
                self.cell().load(order)
            }
            pub fn store(&self, value: $value, order: Ordering) {
                self.cell().store(value, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.cell().swap(value, order)
            }
            #[allow(clippy::missing_errors_doc)]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.cell().compare_exchange(current, new, success, failure)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::made(Default::default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )* };
}
impl AtomicU32 {
    #[allow(missing_docs)]
    pub fn fetch_max(&self, value: u32, order: Ordering) -> u32 {
        self.cell().fetch_max(value, order)
    }
}
atomics! { AtomicBool: bool, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize }

#[allow(missing_docs)]
pub struct AtomicPtr<T> {
    initial: *mut T,
    cell: OnceLock<loom::sync::atomic::AtomicPtr<T>>,
}

// SAFETY: as the standard library's: it holds an address.
unsafe impl<T> Send for AtomicPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for AtomicPtr<T> {}

#[allow(missing_docs)]
impl<T> AtomicPtr<T> {
    pub const fn new(initial: *mut T) -> Self {
        Self { initial, cell: OnceLock::new() }
    }
    fn cell(&self) -> &loom::sync::atomic::AtomicPtr<T> {
        self.cell.get_or_init(|| loom::sync::atomic::AtomicPtr::new(self.initial))
    }
    pub fn load(&self, order: Ordering) -> *mut T {
        self.cell().load(order)
    }
    pub fn store(&self, value: *mut T, order: Ordering) {
        self.cell().store(value, order);
    }
    #[allow(clippy::missing_errors_doc)]
    pub fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        self.cell().compare_exchange(current, new, success, failure)
    }
}

impl<T> fmt::Debug for AtomicPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtomicPtr")
    }
}
