//! Which devices have what `anyverbs.h` offers.
use super::convention::refuse;
use super::gid::library;
use crate::abi::ibv_context;
use crate::provider::Extension;
use crate::sys::errno::Errno;

/// The extensions of a context's device, for `call`.
///
/// # Errors
/// EOPNOTSUPP, explained, where it has none.
///
/// # Safety
/// `ctx` must be live.
pub unsafe fn of(ctx: *mut ibv_context, call: &str) -> Result<&'static Extension, Errno> {
    // SAFETY: the caller vouches for the context.
    let found = unsafe { library(ctx) }.ok().and_then(|library| library.extension);
    found.ok_or_else(|| refuse!(EOPNOTSUPP, "{call}: the device is none of anyverbs' own (urxe)"))
}
