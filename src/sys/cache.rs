//! Lines of memory that will be needed soon.

/// Has the line of `at` brought to this CPU, for writing, while the program goes on. Any address will do.
#[inline(always)]
pub fn fetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing that the program sees and cannot fault; a CPU without the instruction ignores it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
