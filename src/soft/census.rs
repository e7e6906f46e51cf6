//! Counts what a process has made of a device, so that the device's limits hold.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// Objects of one device.
#[derive(Debug, Default)]
pub struct Census {
    #[allow(missing_docs)]
    pub qps: Count,
    #[allow(missing_docs)]
    pub cqs: Count,
    #[allow(missing_docs)]
    pub srqs: Count,
    #[allow(missing_docs)]
    pub ahs: Count,
    #[allow(missing_docs)]
    pub comp_cntrs: Count,
}

/// Objects of one kind.
#[derive(Debug, Default)]
pub struct Count(AtomicU32);

/// One object, as long as it exists.
#[derive(Debug)]
pub struct Ticket(&'static Count);

impl Count {
    /// One more.
    ///
    /// # Errors
    /// ENOMEM where there are `max` already; `call` begins the explanation.
    pub fn enter(&'static self, max: u32, call: &str) -> Result<Ticket, Errno> {
        let ticket = Ticket(self);
        if self.0.fetch_add(1, Relaxed) >= max {
            explain(format_args!("{call}: this process has all {max} that the device offers"));
            return Err(Errno::ENOMEM);
        }
        Ok(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_is_refused_and_leaves_no_trace() {
        let count: &'static Count = Box::leak(Box::default());
        let held: Vec<_> = (0..3).map(|_| count.enter(3, "test").unwrap()).collect();
        assert_eq!(count.enter(3, "test").err(), Some(Errno::ENOMEM));
        drop(held);
        assert!((0..3).map(|_| count.enter(3, "test")).collect::<Result<Vec<_>, _>>().is_ok());
    }
}
