//! How a sender finds the processes of this host that are in a multicast group.
//!
//! Groups fall into 64 buckets. A process that attaches a QP takes the lowest free one of its bucket's 64 places by
//! binding an abstract unix socket of that name, and keeps it while it lives: a place never changes hands between two
//! living processes. A sender looks at all places of the bucket at each message, so that it misses nobody who attached
//! before, and keeps a wire to each process that it has found; who of that process's QPs is attached is known there.
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::{Wire, Wires};
use crate::soft::link::shm::Peer;
use crate::soft::node::Node;
use crate::soft::types::Gid;
use crate::sys::annotate::RwLock;
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::seqpacket;

const BUCKETS: u32 = 64;
/// Processes of a host that can be in groups of one bucket.
const PLACES: u8 = 64;

/// Where a process can be found, and whom it has found.
#[derive(Debug, Default)]
pub struct Places {
    own: RwLock<Vec<Place>>,
    found: Lock<HashMap<(u8, u8), Arc<Wire>>>,
    probe: OnceLock<ParentFd>,
}

#[derive(Debug)]
struct Place {
    bucket: u8,
    number: u8,
    /// Shows that the place is taken: to look costs one system call.
    _mark: ParentFd,
    listener: ParentFd,
    token: u64,
}

impl Wires {
    /// Makes this process one that is asked for messages of the group.
    ///
    /// # Errors
    /// ENOMEM where all places are taken, or there are no descriptors.
    pub fn take_place(&self, node: &Node, group: Gid) -> Result<(), Errno> {
        let bucket = bucket(group);
        let mut own = self.places.own.write().unwrap_or_else(|e| e.into_inner());
        if own.iter().any(|p| p.bucket == bucket) {
            return Ok(());
        }
        for number in 0..PLACES {
            match seqpacket::mark(&name(bucket, number)) {
                Ok(mark) => {
                    let listener = seqpacket::listen(&name(bucket, number))?;
                    let token = self.next_token.fetch_add(1, Ordering::Relaxed);
                    node.engine.add(listener.as_fd(), token)?;
                    own.push(Place { bucket, number, listener, token, _mark: mark });
                    return Ok(());
                }
                Err(Errno::EADDRINUSE) => {}
                Err(e) => {
                    explain(format_args!("ibv_attach_mcast gid={group:?}: no socket to be found at: {e:?}"));
                    return Err(Errno::ENOMEM);
                }
            }
        }
        explain(format_args!(
            "ibv_attach_mcast gid={group:?}: {PLACES} processes are in such groups already"
        ));
        Err(Errno::ENOMEM)
    }

    /// Wires to the other processes that may be in the group.
    pub fn members(&self, node: &Node, group: Gid) -> Vec<Arc<Wire>> {
        let bucket = bucket(group);
        let mine = {
            let own = self.places.own.read().unwrap_or_else(|e| e.into_inner());
            own.iter().find(|p| p.bucket == bucket).map(|p| p.number)
        };
        let mut found = self.places.found.lock();
        let others = (0..PLACES).filter(|number| Some(*number) != mine);
        others
            .filter_map(|number| match found.get(&(bucket, number)) {
                // A process that has just ended may have left its place to another one.
                Some(wire) if !wire.is_gone() => Some(wire.clone()),
                _ => {
                    found.remove(&(bucket, number));
                    let name = name(bucket, number);
                    if !self.is_taken(&name) {
                        return None;
                    }
                    let wire = self.add(node, Peer::connect_to(&self.own, &name).ok()?)?;
                    found.insert((bucket, number), wire.clone());
                    Some(wire)
                }
            })
            .collect()
    }

    /// Takes connections that wait at this place, if the token is one's.
    pub(super) fn accept_at_place(&self, node: &Node, token: u64) {
        let own = self.places.own.read().unwrap_or_else(|e| e.into_inner());
        let Some(place) = own.iter().find(|p| p.token == token) else { return };
        while let Ok(peer) = Peer::accept(&self.own, place.listener.as_fd()) {
            self.add(node, peer);
        }
    }

    fn is_taken(&self, name: &str) -> bool {
        if self.places.probe.get().is_none()
            && let Ok(probe) = seqpacket::probe()
        {
            // Another thread may have been first; its socket serves.
            let _ = self.places.probe.set(probe);
        }
        self.places.probe.get().is_some_and(|probe| seqpacket::is_marked(probe.as_fd(), name))
    }
}

fn name(bucket: u8, number: u8) -> String {
    format!("anyverbs/mcast/{bucket}/{number}")
}

/// FNV-1a: all processes agree.
fn bucket(group: Gid) -> u8 {
    let hash =
        group.0.iter().fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    ((hash ^ hash >> 16) % BUCKETS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_place_is_seen_without_connecting() {
        let probe = seqpacket::probe().unwrap();
        let name = format!("anyverbs/test/{}", crate::sys::random::u64());
        assert!(!seqpacket::is_marked(probe.as_fd(), &name));
        let mark = seqpacket::mark(&name).unwrap();
        assert!(seqpacket::is_marked(probe.as_fd(), &name));
        assert_eq!(seqpacket::mark(&name).unwrap_err(), Errno::EADDRINUSE);
        drop(mark);
        assert!(!seqpacket::is_marked(probe.as_fd(), &name));
    }

    #[test]
    fn buckets_stay_within_their_number() {
        for i in 0..=255 {
            let mut group = Gid([i; 16]);
            group.0[0] = 0xff;
            assert!(u32::from(bucket(group)) < BUCKETS);
        }
    }
}
