//! A guarded copy that folds what it copies towards its CRC-32, on processors that can.
use super::{Fault, Folded};

/// A routine that this CPU has the instructions for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// 64 bytes an instruction: AVX-512F and VPCLMULQDQ.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// 16 bytes: AVX and PCLMULQDQ.
    #[cfg(target_arch = "x86_64")]
    Narrow,
}

/// The quickest way, if there is any.
#[inline]
pub fn best() -> Option<Way> {
    ways().next()
}

/// All that this CPU has, the quickest first.
#[cfg(not(target_arch = "x86_64"))]
pub fn ways() -> impl Iterator<Item = Way> {
    std::iter::empty()
}

/// All that this CPU has, the quickest first.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ways() -> impl Iterator<Item = Way> {
    use std::arch::is_x86_feature_detected;
    let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
    let narrow = is_x86_feature_detected!("avx") && is_x86_feature_detected!("pclmulqdq");
    [wide.then_some(Way::Wide), narrow.then_some(Way::Narrow)].into_iter().flatten()
}

/// Copies, and fills `folded`.
///
/// # Safety
/// As for [`copy`](super::copy); `len` is a multiple of [`FOLDED_BLOCK`](super::FOLDED_BLOCK) and not 0, `way` one of [`ways`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy(
    way: Way,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    folded: &mut Folded,
) -> Result<(), Fault> {
    use super::asm;
    // SAFETY: the caller vouches for the CPU, the length and the rest.
    super::ok(unsafe {
        match way {
            Way::Wide => asm::copy_folding(dst, src, len, folded, &OVER_256),
            Way::Narrow => asm::copy_folding_narrow(dst, src, len, folded, &OVER_128),
        }
    })
}

/// As on other CPUs: there is no way to copy by.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(way: Way, _: *mut u8, _: *const u8, _: usize, _: &mut Folded) -> Result<(), Fault> {
    match way {}
}

/// What the halves of 16 bytes are multiplied by to stand a number of bytes further on: x^(n+32) and x^(n-32) for n bits, bit-reversed,
/// modulo the polynomial of CRC-32; for 256 and 64 bytes, and for 128 and 64.
#[cfg(target_arch = "x86_64")]
static OVER_256: [u64; 4] = [power(2048 + 32), power(2048 - 32), power(512 + 32), power(512 - 32)];
#[cfg(target_arch = "x86_64")]
static OVER_128: [u64; 4] = [power(1024 + 32), power(1024 - 32), power(512 + 32), power(512 - 32)];

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
