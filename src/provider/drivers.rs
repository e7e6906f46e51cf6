//! Compiled providers that registered themselves, each through the node of the release it was built for.
use crate::abi::verbs_device_ops;
use crate::sys::lock::Lock;

/// A registered provider.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Number of the private node: 34, 57, 59, 64 or 65.
    pub node: u32,
    /// The provider's static table.
    pub ops: *const verbs_device_ops,
}

// SAFETY: the table is static and read-only data of a shared object that stays loaded.
unsafe impl Send for Driver {}

static DRIVERS: Lock<Vec<Driver>> = Lock::new(Vec::new());

/// Remembers a provider; one that is there already is not taken twice.
pub fn record(node: u32, ops: *const verbs_device_ops) {
    let mut drivers = DRIVERS.lock();
    if !ops.is_null() && !drivers.iter().any(|d| d.ops == ops) {
        drivers.push(Driver { node, ops });
    }
}

/// All providers in the order of their registration.
pub fn recorded() -> Vec<Driver> {
    DRIVERS.lock().clone()
}
