//! Protection domains: a number that regions and queues must share, and a count of who refers to it.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Weak};

use crate::sys::errno::Errno;
use crate::sys::lock::Lock;

/// Names a protection domain within the process; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// A reference to a protection domain. Every region, queue, address handle and window keeps one.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    id: PdId,
    table: Arc<Counts>,
}

impl Pd {
    /// Its number.
    #[inline]
    pub fn id(&self) -> PdId {
        self.0.id
    }

    /// Whether objects refer to it beside this reference.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl PartialEq for Pd {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.table.live.fetch_sub(1, Relaxed);
        self.table.domains.lock().remove(&self.id.0);
    }
}

#[derive(Debug, Default)]
struct Counts {
    last: AtomicU32,
    live: AtomicU32,
    /// By number, for import.
    domains: Lock<HashMap<u32, Weak<Domain>>>,
}

/// Gives out protection domains.
#[derive(Debug)]
pub struct PdTable {
    counts: Arc<Counts>,
    limit: u32,
}

impl PdTable {
    /// At most `limit` domains at a time.
    pub fn new(limit: u32) -> Self {
        Self { counts: Arc::default(), limit }
    }

    /// A new domain.
    ///
    /// # Errors
    /// ENOMEM at the limit.
    pub fn alloc(&self) -> Result<Pd, Errno> {
        if self.counts.live.fetch_add(1, Relaxed) >= self.limit {
            self.counts.live.fetch_sub(1, Relaxed);
            crate::sys::log::explain(format_args!(
                "ibv_alloc_pd: all {} protection domains are in use",
                self.limit
            ));
            return Err(Errno::ENOMEM);
        }
        let id = loop {
            // Four thousand million allocations later a number may come again; 0 never does.
            match self.counts.last.fetch_add(1, Relaxed).wrapping_add(1) {
                0 => continue,
                id => break PdId(id),
            }
        };
        let domain = Arc::new(Domain { id, table: self.counts.clone() });
        self.counts.domains.lock().insert(id.0, Arc::downgrade(&domain));
        Ok(Pd(domain))
    }

    /// The domain of this number.
    pub fn find(&self, id: u32) -> Option<Pd> {
        self.counts.domains.lock().get(&id)?.upgrade().map(Pd)
    }

    /// Gives a domain back; the caller drops its reference on success.
    ///
    /// # Errors
    /// EBUSY while regions, queues, address handles or windows refer to it.
    pub fn dealloc(&self, pd: &Pd) -> Result<(), Errno> {
        if pd.is_used() {
            let users = Arc::strong_count(&pd.0) - 1;
            crate::sys::log::explain(format_args!(
                "ibv_dealloc_pd: {users} object(s) of this domain still exist"
            ));
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_domain_is_busy() {
        let table = PdTable::new(2);
        let pd = table.alloc().unwrap();
        let user = pd.clone();
        assert_eq!(table.dealloc(&pd), Err(Errno::EBUSY));
        drop(user);
        table.dealloc(&pd).unwrap();
    }

    #[test]
    fn domains_are_limited_and_come_back() {
        let table = PdTable::new(2);
        let (a, b) = (table.alloc().unwrap(), table.alloc().unwrap());
        assert_ne!(a.id(), b.id());
        assert_eq!(table.alloc().err(), Some(Errno::ENOMEM));
        drop(a);
        let c = table.alloc().unwrap();
        assert!(c.id() != b.id() && c.id().0 != 0);
    }
}
