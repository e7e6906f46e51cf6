//! Full memory barriers on the other CPUs of this process, by membarrier(2).
//!
//! Two parties that each store and then look at what the other has stored need a barrier between the two on both sides.
//! With this one the rare side pays for both, and the frequent side only keeps the compiler from swapping its accesses.
//! `ANYVERBS_MEMBARRIER=0` does without it: race detectors do not know the call.
use std::sync::atomic::{AtomicBool, Ordering::*, fence};

/// Times in a row that one thread does something before it is worth a call of [`everywhere`] to make that cheaper for it.
pub const STREAK: u32 = 256;

/// Whether the call works here.
static AVAILABLE: AtomicBool = AtomicBool::new(false);

/// Whether [`everywhere`] reaches other CPUs: the frequent side then needs no barrier of its own.
#[inline]
pub fn is_available() -> bool {
    AVAILABLE.load(Relaxed)
}

/// Asks the kernel; once in every process, a forked child included. True if [`everywhere`] will work.
pub fn prepare() -> bool {
    let ready = !is_unwanted() && membarrier(REGISTER_PRIVATE_EXPEDITED);
    AVAILABLE.store(ready, SeqCst);
    ready
}

/// Every thread of this process passes a full barrier, this one too: each of its accesses comes before this call as a whole, or
/// after it. Where that is not available only this thread does, and the answer is false.
pub fn everywhere() -> bool {
    fence(SeqCst);
    if !is_available() {
        return false;
    }
    if membarrier(PRIVATE_EXPEDITED) || (prepare() && membarrier(PRIVATE_EXPEDITED)) {
        return true;
    }
    // Taken away from us by a sandbox since: from now on others pay, and stores of the past get time to arrive.
    AVAILABLE.store(false, SeqCst);
    super::uncancelled::nap(std::time::Duration::from_millis(10));
    false
}

/// Whether [`everybody`] of any process reaches this one.
static REACHED: AtomicBool = AtomicBool::new(false);

/// Has [`everybody`] of other processes reach this one; once in every process, a forked child included. True if it does, and
/// works here.
pub fn prepare_for_others() -> bool {
    let ready = !is_unwanted() && membarrier(REGISTER_GLOBAL_EXPEDITED);
    REACHED.store(ready, SeqCst);
    ready
}

/// What [`prepare_for_others`] has found.
pub fn reaches_us() -> bool {
    REACHED.load(Relaxed)
}

/// As [`everywhere`], for every thread of every process that has prepared for it.
pub fn everybody() {
    fence(SeqCst);
    if !membarrier(GLOBAL_EXPEDITED) {
        // Taken away from us by a sandbox since: stores of the past get time to arrive.
        super::uncancelled::nap(std::time::Duration::from_millis(10));
    }
}

fn is_unwanted() -> bool {
    super::settings::is_off("ANYVERBS_MEMBARRIER")
}

const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
