//! A connection that counts what it would send.
use crate::soft::qp::Qp;
use crate::sys::atomic::{AtomicU32, Ordering};

/// Acknowledgements sent.
#[derive(Debug, Default)]
pub struct Flow(AtomicU32);

#[allow(missing_docs)]
impl Flow {
    pub fn owe(&self, _: u64) -> bool {
        true
    }
    pub fn pay(&self, _: &Qp) {
        self.0.store(self.paid() + 1, Ordering::Relaxed);
    }
    pub fn paid(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
