//! A process that sleeps or not.
use crate::sys::atomic::{AtomicU32, Ordering, fence};

#[allow(missing_docs)]
#[derive(Debug, Default)]
pub struct Node {
    pub wires: Wires,
}

#[allow(missing_docs)]
#[derive(Debug, Default)]
pub struct Wires(Own);

#[allow(missing_docs)]
impl Wires {
    pub fn own(&self) -> &Own {
        &self.0
    }
}

#[allow(missing_docs)]
#[derive(Debug, Default)]
pub struct Own(AtomicU32);

/// As the library's.
#[allow(missing_docs)]
impl Own {
    pub fn set_asleep(&self, asleep: bool) {
        self.0.store(asleep.into(), Ordering::Relaxed);
        if asleep {
            fence(Ordering::SeqCst);
        }
    }
    pub fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
