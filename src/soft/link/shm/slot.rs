//! Slots: the upper 12 bits of a QPN, claimed by binding an abstract unix socket.
//!
//! Names are unique within the network namespace, exactly as GIDs are, and the kernel releases them with the process.
use crate::sys::{errno::Errno, fork::ParentFd, random, seqpacket};
use std::os::fd::{AsFd, BorrowedFd};

/// Slots that can be claimed: 1 to 0xffe. Slot 0 would give the QPNs 0 and 1, slot 0xfff the multicast QPN.
pub const SLOTS: std::ops::RangeInclusive<u16> = 1..=0xffe;

/// A slot that this process holds, and the socket on which its peers connect. A forked child loses it.
#[derive(Debug)]
pub struct Slot {
    number: u16,
    listener: ParentFd,
}

impl Slot {
    /// Claims a free slot, beginning at a random one. ENOSPC where all 4094 are held; else as socket(2) and bind(2).
    pub fn claim() -> Result<Self, Errno> {
        let start = random::u64();
        for step in 0..*SLOTS.end() as u64 {
            let number = 1 + (start.wrapping_add(step) % *SLOTS.end() as u64) as u16;
            match seqpacket::listen(&name(number)) {
                Ok(listener) => return Ok(Self { number, listener }),
                Err(Errno::EADDRINUSE) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::ENOSPC)
    }

    /// Claims this very slot, which a process that is gone has held. EADDRINUSE where somebody holds it.
    pub fn claim_left(number: u16) -> Result<Self, Errno> {
        if !SLOTS.contains(&number) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { number, listener: seqpacket::listen(&name(number))? })
    }

    /// The upper 12 bits of the QPNs it gives.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl AsFd for Slot {
    /// The listener: readable when a peer wants to connect ([`super::Peer::accept`]).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The abstract name of a slot's socket. It holds nothing that a peer of another version or user could not know.
pub fn name(slot: u16) -> String {
    format!("anyverbs/{slot}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_distinct_free_when_dropped_and_never_special() {
        let held: Vec<_> = (0..20).map(|_| Slot::claim().unwrap()).collect();
        let mut numbers: Vec<_> = held.iter().map(Slot::number).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), 20);
        assert!(numbers.iter().all(|n| SLOTS.contains(n)));
        assert_eq!(seqpacket::listen(&name(numbers[0])).unwrap_err(), Errno::EADDRINUSE);
        assert!(seqpacket::connect(&name(numbers[0])).is_ok());
    }
}
