//! No checker is told of locks.
#[allow(missing_docs)]
pub fn acquired(_: usize) {}
#[allow(missing_docs)]
pub fn released(_: usize) {}
