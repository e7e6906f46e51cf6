//! What is done when the process ends by exit(3) or by returning from `main`.
use std::sync::OnceLock;

static LAST: OnceLock<fn()> = OnceLock::new();

/// Has `f` called when the process's own handlers and destructors have run, on the thread that exits, which may be in the midst
/// of anything. The first `f` counts.
pub fn at_exit(f: fn()) {
    let _ = LAST.set(f);
}

extern "C" fn run() {
    if let Some(f) = LAST.get() {
        f();
    }
}

/// The loader calls it, after atexit(3) handlers and the destructors of whatever depends on this library.
#[used]
// SAFETY: entries of this section are functions without arguments, and the library is never unloaded.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = run;
