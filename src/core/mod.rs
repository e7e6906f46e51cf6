//! Device list, context life, GID look-ups, errno conventions: what the exported functions share.
//!
//! Errors travel as `Errno`; `convention` turns them into what C expects and fences panics off.
pub mod context;
pub mod convention;
pub mod device;
pub mod dontfork;
pub mod extension;
pub mod gid;
pub mod l2;
pub mod query;
pub mod sysfs;

use crate::provider::Provider;

/// Where devices come from, in the order of the list.
pub fn providers() -> &'static [&'static dyn Provider] {
    &[&crate::kernel::Kernel, &crate::soft::verbs::Soft]
}
