//! Threads of our own, and telling threads apart, in one instruction.
use super::errno::Errno;
use super::signal;

pub use std::hint::spin_loop;
pub use std::thread::yield_now;

/// Looks at something that another thread is about to change before it is likely that this one is not running.
pub const SPINS: u32 = 100;

/// What [`id`] gives where threads cannot be told apart so cheaply.
pub const UNKNOWN: usize = usize::MAX;

/// A number that no other living thread of this process has, and that is never 0: the address of its control block,
/// a multiple of 8.
#[inline(always)]
pub fn id() -> usize {
    let id: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI keeps the thread pointer at offset 0 of the segment; nothing is written.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) id, options(nostack, preserves_flags, readonly, pure));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nostack, preserves_flags, nomem, pure));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        id = UNKNOWN;
    }
    id
}

/// Starts a thread of ours, on which no handler of the application's runs. `name` has at most 15 bytes, `stack` is in bytes.
///
/// # Errors
/// Those of pthread_create(3).
pub fn start(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let before = signal::block_all();
    let started = std::thread::Builder::new().name(name.into()).stack_size(stack).spawn(run);
    signal::restore(&before);
    started.map(drop).map_err(Errno::from)
}
