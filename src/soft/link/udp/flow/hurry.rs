//! How long the acknowledgements of a flow go at once: a program that answers at once is better off when they wait for its answer,
//! and one that does not is when they do not wait.
use crate::sys::atomic::{AtomicU32, Ordering};

/// An acknowledgement that waited longer than this was late, nanoseconds.
const LATE: u64 = 200_000;
/// After a late one so many go at once: few, since the thread that would have answered may just have lost its processor;
const LEAST: u32 = 16;
/// so many times more where that happens again before as many have been in time,
const GROWTH: u32 = 4;
/// and no more than this.
const MOST: u32 = 256;
/// One in so many of those left is let off by each answer that comes in time.
const EASE: u32 = 8;

/// What a flow has learned. Where two threads change it at once, a count is lost, which does no harm.
#[derive(Debug)]
pub(super) struct Hurry {
    /// Acknowledgements that do not wait,
    left: AtomicU32,
    /// and how many there will be after the next late one.
    next: AtomicU32,
}

impl Default for Hurry {
    fn default() -> Self {
        Self { left: AtomicU32::new(0), next: AtomicU32::new(LEAST) }
    }
}

impl Hurry {
    /// The acknowledgement that is ready goes at once.
    #[inline]
    pub(super) fn passes(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Something new leaves so many nanoseconds after a message has come. If that is its answer, its acknowledgement would not have been late.
    #[inline]
    pub(super) fn answered(&self, ns: u64) {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 && ns <= LATE {
            self.left.store(left - left.div_ceil(EASE), Ordering::Relaxed);
        }
    }

    /// One has waited for so many nanoseconds.
    #[inline]
    pub(super) fn waited(&self, ns: u64) {
        let next = self.next.load(Ordering::Relaxed);
        if ns > LATE {
            self.left.store(next, Ordering::Relaxed);
            self.next.store((next * GROWTH).min(MOST), Ordering::Relaxed);
        } else if next > LEAST {
            self.next.store(next - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many messages, how many are acknowledged at once by a program that answers each at once, or not where `is_late` says so.
    fn at_once(messages: u32, mut is_late: impl FnMut(u32) -> bool) -> u32 {
        let hurry = Hurry::default();
        let passes = (0..messages).filter(|n| {
            let (passes, ns) = (hurry.passes(), if is_late(*n) { LATE + 1 } else { LATE });
            if !passes {
                hurry.waited(ns);
            }
            hurry.answered(ns);
            passes
        });
        passes.count() as u32
    }

    #[test]
    fn acknowledgements_wait_for_a_program_that_answers_although_it_is_held_up_now_and_then() {
        assert!(at_once(10_000, |n| n < 10 || n % 100 == 0) < 1_000);
    }

    #[test]
    fn hardly_any_waits_for_a_program_that_does_not_answer() {
        assert!(at_once(10_000, |_| true) > 9_900);
    }

    #[test]
    fn most_do_not_wait_for_a_program_that_does_not_answer_every_tenth_time() {
        assert!(at_once(10_000, |n| n % 10 == 0) > 6_000);
    }
}
