//! Waiting for a word to change, within the process.
use std::sync::atomic::AtomicU32;

/// Sleeps while the word holds `value`; may wake without reason.
pub fn wait(word: &AtomicU32, value: u32) {
    // SAFETY: FUTEX_WAIT only reads the word, which outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
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
