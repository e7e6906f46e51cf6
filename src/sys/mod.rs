//! The only libc calls outside `kernel` and `soft::link`.
pub mod errno;
pub mod lock;
pub mod log;
pub mod pthread;
pub mod rtnetlink;

/// The process runs with more rights than its caller: environment variables are then not obeyed.
pub fn is_setuid() -> bool {
    // SAFETY: getauxval, and the id calls, have no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 || libc::getuid() != libc::geteuid() }
}
