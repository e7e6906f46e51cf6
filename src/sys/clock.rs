//! Time as nanoseconds of CLOCK_MONOTONIC.

/// Now, in nanoseconds since some fixed moment.
#[inline]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is ours and lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// The wall-clock time (nanoseconds since 1970) of a moment of `now_ns`, by the clocks' difference now.
pub fn to_wallclock(then: u64) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is ours and lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut ts) };
    let wall = ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64;
    wall.wrapping_sub(now_ns()).wrapping_add(then)
}
