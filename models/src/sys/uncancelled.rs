//! Sleep is letting others run.
#[allow(missing_docs)]
pub fn nap(_: std::time::Duration) {
    loom::thread::yield_now();
}
