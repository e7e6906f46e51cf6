//! Random numbers from the kernel.

/// 64 random bits.
pub fn u64() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is ours and 8 bytes long.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    if n == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // No getrandom (a sandbox): unlike numbers are enough, secrecy is not promised.
    // SAFETY: getpid only asks.
    let pid = unsafe { libc::getpid() } as u64;
    (super::clock::now_ns() ^ pid << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
