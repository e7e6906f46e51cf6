//! Waiting for a word to change, within the process.
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word holds `value`; may wake without reason.
pub fn wait(word: &AtomicU32, value: u32) {
    wait_until(word, value, std::ptr::null());
}

/// The same, for so long at most.
pub fn wait_for(word: &AtomicU32, value: u32, limit: Duration) {
    let limit =
        libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    wait_until(word, value, &raw const limit);
}

fn wait_until(word: &AtomicU32, value: u32, limit: *const libc::timespec) {
    // SAFETY: FUTEX_WAIT only reads the word and the time, which is null or valid; both outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            limit,
        );
    }
}

/// Wakes who sleeps on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the word's address only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
}
