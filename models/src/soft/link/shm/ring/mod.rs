//! Both ends of a ring as they are, over an array of words instead of a memory file.
#[path = "../../../../../../src/soft/link/shm/ring/consumer.rs"]
mod consumer;
#[path = "../../../../../../src/soft/link/shm/ring/format.rs"]
mod format;
#[path = "../../../../../../src/soft/link/shm/ring/producer.rs"]
mod producer;

pub use consumer::{Consumer, Peeked, Watch};
pub use format::*;
pub use producer::{Producer, Slot};

use crate::sys::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

const WORDS: usize = LINE / 8;
/// Any number: there is one such word.
const STARVED: usize = 0;

/// A ring of a few lines.
#[derive(Debug)]
pub struct Ring {
    words: Vec<AtomicU64>,
    /// Only addresses are made of it: the models send no payload.
    bytes: Box<[u8]>,
    consumed: AtomicU64,
    starved: AtomicU32,
    rung: AtomicU32,
    lines: u32,
}

impl Ring {
    /// A ring of so many lines.
    pub fn of(lines: u32) -> Arc<Self> {
        let lines_of = lines as usize;
        Arc::new(Self {
            words: (0..lines_of * WORDS).map(|_| AtomicU64::made(0)).collect(),
            bytes: vec![0; lines_of * LINE].into(),
            consumed: AtomicU64::made(0),
            starved: AtomicU32::made(0),
            rung: AtomicU32::made(0),
            lines,
        })
    }

    /// As the library's.
    pub fn start_ringing(&self) -> bool {
        self.rung.swap(1, Ordering::AcqRel) == 0
    }

    /// As the library's.
    pub fn stop_ringing(&self) {
        self.rung.swap(0, Ordering::AcqRel);
    }

    fn word32(&self, _: usize) -> &AtomicU32 {
        &self.starved
    }

    fn consumed(&self) -> &AtomicU64 {
        &self.consumed
    }

    fn line(&self, line: u32) -> *mut u8 {
        self.bytes[line as usize * LINE..].as_ptr().cast_mut()
    }

    fn prefetch(&self, _: u32) {}

    fn words(&self, line: u32) -> &[AtomicU64; WORDS] {
        self.words[line as usize * WORDS..].first_chunk().expect("the line is inside the ring")
    }

    fn word(&self, line: u32, index: usize) -> &AtomicU64 {
        &self.words[line as usize * WORDS + index]
    }
}
