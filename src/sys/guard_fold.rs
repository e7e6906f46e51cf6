//! A guarded copy that folds what it copies towards its CRC-32, on processors that can.
use super::{Fault, Folded};

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(_: *mut u8, _: *const u8, _: usize, _: &mut Folded) -> Option<Result<(), Fault>> {
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    folded: &mut Folded,
) -> Option<Result<(), Fault>> {
    use std::arch::is_x86_feature_detected;
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("vpclmulqdq") {
        return None;
    }
    // SAFETY: the CPU has what the routine needs, `len` is a multiple of its block and not 0, and the rest is as for `super::copy`.
    Some(super::ok(unsafe { super::asm::copy_folding(dst, src, len, folded, &CONSTANTS) }))
}

/// What the halves of 16 bytes are multiplied by to stand a number of bytes further on: x^(n+32) and x^(n-32) for n bits, bit-reversed,
/// modulo the polynomial of CRC-32; for 256 and 64 bytes.
#[cfg(target_arch = "x86_64")]
static CONSTANTS: [u64; 4] = [power(2048 + 32), power(2048 - 32), power(512 + 32), power(512 - 32)];

/// x^n as the multiplication wants it.
#[cfg(target_arch = "x86_64")]
const fn power(n: u32) -> u64 {
    let (mut register, mut i): (u32, u32) = (1 << 31, 0);
    while i < n {
        register = register >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(register & 1));
        i += 1;
    }
    (register as u64) << 1
}
