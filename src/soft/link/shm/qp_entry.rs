//! One queue pair as it lies in the publication: written by its owner only, read by peers of the same user.
use crate::soft::types::{Access, QpState, QpType};
use crate::sys::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sys::thread;

/// A queue pair in its owner's publication: seqlock, one writer.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct QpEntry {
    version: AtomicU32,
    state: AtomicU32,
    kind: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    peer_qpn: AtomicU32,
    peer_nonce: AtomicU64,
    is_shared: AtomicU32,
}

/// What a peer must know of a queue pair to access memory through it. The default is "no such queue pair".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpView {
    /// Its state; None: there is no such queue pair.
    pub state: Option<QpState>,
    /// Its type.
    pub kind: Option<QpType>,
    /// The number of its protection domain, as in the memory table.
    pub pd: u32,
    /// What it lets its peer do; REMOTE_READ only where max_dest_rd_atomic is not 0.
    pub access: Access,
    /// The queue pair it is connected to.
    pub peer_qpn: u32,
    /// The process that owns that one, once it is known; 0 before.
    pub peer_nonce: u64,
    /// It has more than one handle: another process may go on with it when this one is gone.
    pub is_shared: bool,
}

impl QpEntry {
    /// Fills it in; peers see the old or the new, never a mixture.
    pub fn write(&self, view: &QpView) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.state.store(view.state.map_or(0, |s| s.raw() + 1), Ordering::Relaxed);
        self.kind.store(view.kind.map_or(0, QpType::raw), Ordering::Relaxed);
        self.pd.store(view.pd, Ordering::Relaxed);
        self.access.store(view.access.bits(), Ordering::Relaxed);
        self.peer_qpn.store(view.peer_qpn, Ordering::Relaxed);
        self.peer_nonce.store(view.peer_nonce, Ordering::Relaxed);
        self.is_shared.store(view.is_shared.into(), Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// A snapshot and its version, which is another one as soon as the owner changes anything.
    pub fn versioned(&self) -> Option<(u32, QpView)> {
        let version = self.version();
        let view = self.snapshot()?;
        (version & 1 == 0 && self.version() == version).then_some((version, view))
    }

    /// The version; to be looked at as a snapshot is taken, by who relies on one of the same version.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// A consistent copy; None where there is no queue pair, or its owner keeps writing.
    pub fn snapshot(&self) -> Option<QpView> {
        for _ in 0..64 {
            let version = self.version.load(Ordering::Acquire);
            let view = QpView {
                state: self.state.load(Ordering::Relaxed).checked_sub(1).and_then(QpState::from_raw),
                kind: QpType::from_raw(self.kind.load(Ordering::Relaxed)),
                pd: self.pd.load(Ordering::Relaxed),
                access: Access::from_bits_retain(self.access.load(Ordering::Relaxed)),
                peer_qpn: self.peer_qpn.load(Ordering::Relaxed),
                peer_nonce: self.peer_nonce.load(Ordering::Relaxed),
                is_shared: self.is_shared.load(Ordering::Relaxed) != 0,
            };
            fence(Ordering::Acquire);
            if version & 1 == 0 && version == self.version.load(Ordering::Relaxed) {
                return view.state.is_some().then_some(view);
            }
            thread::spin_loop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_seen_whole_or_not_at_all() {
        let entry = QpEntry::default();
        assert_eq!(entry.snapshot(), None);
        let view = QpView {
            state: Some(QpState::Reset),
            kind: Some(QpType::Rc),
            pd: 3,
            access: Access::REMOTE_READ,
            peer_qpn: 0xabcdef,
            peer_nonce: u64::MAX,
            is_shared: true,
        };
        entry.write(&view);
        assert_eq!(entry.snapshot(), Some(view));
        entry.write(&QpView::default());
        assert_eq!(entry.snapshot(), None);
        entry.version.store(1, Ordering::Relaxed);
        entry.state.store(1, Ordering::Relaxed);
        assert_eq!(entry.snapshot(), None);
    }
}
