//! The only libc calls outside `kernel` and `soft::link`.
pub mod errno;
pub mod lock;
