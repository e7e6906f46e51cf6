//! What is done when the process ends by exit(3) or by returning from `main`.

/// Has `f` called then, on the thread that exits, which may be in the midst of anything: it must wait for nothing. False where
/// the C library has no room for it.
pub fn at_exit(f: extern "C" fn()) -> bool {
    // SAFETY: `f` stays where it is, since the library is never unloaded.
    unsafe { libc::atexit(f) == 0 }
}
