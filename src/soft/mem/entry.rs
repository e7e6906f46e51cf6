//! One memory region as it lies in the publication page: written by its owner only, read by peers of the same user.
use super::{Denied, PdId};
use crate::soft::types::{Access, Key, Qpn};
use crate::sys::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use crate::sys::thread;

/// A region, 64 bytes, all of them zero while the entry is free. A reader that is not the owner must take a
/// [`snapshot`](Self::snapshot); the fields may be anything at all where the owner is hostile.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct MrEntry {
    /// Odd while the owner is writing.
    version: AtomicU32,
    /// 0: not valid.
    pub(super) key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    start: AtomicU64,
    iova: AtomicU64,
    length: AtomicU64,
    kind: AtomicU32,
    /// The queue pair that a window of type 2 is bound to.
    qpn: AtomicU32,
    /// The file that it lies in, and where there; 0: none that peers could map.
    file: AtomicU32,
    _reserved: u32,
    offset: AtomicU64,
}

/// What an entry says, as plain values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// lkey and rkey; the index of the entry in the upper 24 bits.
    pub key: Key,
    /// The protection domain.
    pub pd: PdId,
    /// What may be done through the key.
    pub access: Access,
    /// Host address, in the owner's address space, of the first byte.
    pub start: u64,
    /// The address by which work requests name the first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Who may use the key.
    pub scope: Scope,
    /// The file that the bytes lie in.
    pub file: InFile,
}

/// Where in a file that peers of the same user may map the first byte of a region lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFile {
    /// The owner's number for it; 0: there is none.
    pub number: u32,
    /// From the beginning of the file.
    pub offset: u64,
}

/// Who may use a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// A memory region: this process as lkey, every QP of the domain as rkey.
    #[default]
    Region,
    /// A null region: this process only, and there are no bytes behind it.
    Null,
    /// A window of type 1: peers, through every QP of the domain.
    Window,
    /// A window of type 2B: peers, through this QP of ours.
    WindowOf(Qpn),
}

/// `Scope::Region` in an entry.
const REGION: u32 = 0;

impl Scope {
    fn encode(self) -> (u32, u32) {
        match self {
            Scope::Region => (REGION, 0),
            Scope::Null => (1, 0),
            Scope::Window => (2, 0),
            Scope::WindowOf(qpn) => (3, qpn.0),
        }
    }

    /// What a hostile peer makes up is a null region, which serves nobody else.
    fn decode(kind: u32, qpn: u32) -> Self {
        match kind {
            REGION => Scope::Region,
            2 => Scope::Window,
            3 => Scope::WindowOf(Qpn(qpn)),
            _ => Scope::Null,
        }
    }
}

/// Who asks for access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// A work request of this process, by lkey.
    Local,
    /// A peer, by rkey, through this QP of the region's process.
    Qp(Qpn),
}

impl MrEntry {
    /// How many times a peer tries to read an entry that its owner is writing.
    const TRIES: u32 = 64;

    /// Fills the entry; the key becomes valid last. Only the owner, one thread at a time.
    pub(super) fn write(&self, region: &Region) {
        self.begin();
        self.pd.store(region.pd.0, Relaxed);
        self.access.store(region.access.bits(), Relaxed);
        self.start.store(region.start, Relaxed);
        self.iova.store(region.iova, Relaxed);
        self.length.store(region.length, Relaxed);
        let (kind, qpn) = region.scope.encode();
        self.kind.store(kind, Relaxed);
        self.qpn.store(qpn, Relaxed);
        self.file.store(region.file.number, Relaxed);
        self.offset.store(region.file.offset, Relaxed);
        self.key.store(region.key.0, Release);
        self.end();
    }

    /// Makes the key invalid, or valid again; every later check by anyone sees it.
    pub(super) fn set_key(&self, key: Key) {
        self.begin();
        self.key.store(key.0, SeqCst);
        self.end();
        fence(SeqCst);
    }

    fn begin(&self) {
        self.version.store(self.version.load(Relaxed).wrapping_add(1), Relaxed);
        fence(Release);
    }

    fn end(&self) {
        self.version.store(self.version.load(Relaxed).wrapping_add(1), Release);
    }

    /// What a peer may rely on: a consistent copy, or nothing where the entry is free or never comes to rest. A peer publishes
    /// its hazard word and a SeqCst fence before, and keeps the word until its copy is done.
    pub fn snapshot(&self) -> Option<Region> {
        for _ in 0..Self::TRIES {
            let version = self.version.load(Acquire);
            let region = self.read();
            fence(Acquire);
            if version & 1 == 0 && self.version.load(Relaxed) == version {
                return (region.key.0 != 0).then_some(region);
            }
            thread::spin_loop();
        }
        None
    }

    /// A snapshot and its version, which is another one as soon as the owner changes anything.
    pub fn versioned(&self) -> Option<(u32, Region)> {
        let version = self.version();
        let region = self.snapshot()?;
        (version & 1 == 0 && self.version() == version).then_some((version, region))
    }

    /// The version; to be looked at as a snapshot is taken, by who relies on one of the same version.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Acquire)
    }

    /// The host address of `len` bytes at `va`, of a region that is neither null nor a window, of the domain `pd`, with the right
    /// `need`; none also for any other reason. The owner may use this while it keeps the entry from changing.
    #[inline(always)]
    pub(super) fn usual(&self, pd: PdId, va: u64, len: u64, need: Access) -> Option<u64> {
        let offset = va.wrapping_sub(self.iova.load(Relaxed));
        let length = self.length.load(Relaxed);
        let is_it = self.kind.load(Relaxed) == REGION
            && self.pd.load(Relaxed) == pd.0
            && Access::from_bits_retain(self.access.load(Relaxed)).contains(need)
            && offset <= length
            && len <= length - offset;
        is_it.then(|| self.start.load(Relaxed).wrapping_add(offset))
    }

    /// The fields as they are. The owner may use this while it keeps the entry from changing.
    pub(super) fn read(&self) -> Region {
        Region {
            key: Key(self.key.load(Relaxed)),
            pd: PdId(self.pd.load(Relaxed)),
            access: Access::from_bits_retain(self.access.load(Relaxed)),
            start: self.start.load(Relaxed),
            iova: self.iova.load(Relaxed),
            length: self.length.load(Relaxed),
            scope: Scope::decode(self.kind.load(Relaxed), self.qpn.load(Relaxed)),
            file: InFile { number: self.file.load(Relaxed), offset: self.offset.load(Relaxed) },
        }
    }
}

impl Region {
    /// The host address of `len` bytes at `va`, if `key` and `pd` are this region's, it is there for who asks, it allows
    /// `need`, and the range lies in it. The address means nothing where the region is null.
    ///
    /// # Errors
    /// The first of these that does not hold.
    #[inline]
    pub fn resolve(
        &self,
        key: Key,
        pd: PdId,
        via: Via,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, Denied> {
        if self.key != key {
            return Err(Denied::Key);
        }
        if self.scope != Scope::Region {
            match (self.scope, via) {
                (Scope::Null, Via::Local) | (Scope::Window, Via::Qp(_)) => {}
                (Scope::WindowOf(bound), Via::Qp(qpn)) if bound == qpn => {}
                (Scope::WindowOf(_), Via::Qp(_)) => return Err(Denied::Qp),
                _ => return Err(Denied::Key),
            }
        }
        if self.pd != pd {
            return Err(Denied::Domain);
        }
        if !self.access.contains(need) {
            return Err(Denied::Access);
        }
        // An address below the region wraps to an offset beyond its end.
        let offset = va.wrapping_sub(self.iova);
        if offset > self.length || len > self.length - offset {
            return Err(Denied::Range);
        }
        Ok(self.start.wrapping_add(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            key: Key(0x105),
            pd: PdId(3),
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
            start: 0x7000_0000_1000,
            iova: 0x1000,
            length: 0x1_8000_0000,
            scope: Scope::Region,
            file: InFile { number: 7, offset: 4096 },
        }
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let r = region();
        let at = |va, len| r.resolve(r.key, r.pd, Via::Local, va, len, Access::empty());
        assert_eq!(at(0x1000, r.length), Ok(r.start));
        assert_eq!(at(0x1000 + 0x1_0000_0001, 1), Ok(r.start + 0x1_0000_0001), "beyond 4 GiB");
        assert_eq!(at(0x1000 + r.length, 0), Ok(r.start + r.length));
        assert_eq!(at(0x1000 + r.length, 1), Err(Denied::Range));
        assert_eq!(at(0xfff, 1), Err(Denied::Range));
        assert_eq!(at(0x1000, r.length + 1), Err(Denied::Range));
        assert_eq!(at(0x1001, u64::MAX), Err(Denied::Range));
        assert_eq!(at(u64::MAX, 1), Err(Denied::Range));
        let all = Region { start: 0, iova: 0, length: u64::MAX, ..r };
        assert_eq!(
            all.resolve(r.key, r.pd, Via::Local, 0x7fff_1234, 1 << 31, Access::empty()),
            Ok(0x7fff_1234)
        );
        assert_eq!(all.resolve(r.key, r.pd, Via::Local, u64::MAX, 1, Access::empty()), Err(Denied::Range));
    }

    #[test]
    fn key_domain_and_access_are_checked() {
        let r = region();
        assert_eq!(r.resolve(Key(0x106), r.pd, Via::Local, 0x1000, 1, Access::empty()), Err(Denied::Key));
        assert_eq!(r.resolve(r.key, PdId(4), Via::Local, 0x1000, 1, Access::empty()), Err(Denied::Domain));
        assert_eq!(r.resolve(r.key, r.pd, Via::Local, 0x1000, 1, Access::REMOTE_WRITE), Err(Denied::Access));
        assert_eq!(r.resolve(r.key, r.pd, Via::Local, 0x1000, 1, Access::REMOTE_READ), Ok(r.start));
    }

    #[test]
    fn keys_serve_whom_they_are_for() {
        let (ours, other) = (Via::Qp(Qpn(5)), Via::Qp(Qpn(6)));
        let ask = |scope, via| {
            let r = Region { scope, ..region() };
            r.resolve(r.key, r.pd, via, 0x1000, 1, Access::empty()).map(|_| ())
        };
        assert_eq!([Via::Local, ours].map(|via| ask(Scope::Region, via)), [Ok(()), Ok(())]);
        assert_eq!([Via::Local, ours].map(|via| ask(Scope::Null, via)), [Ok(()), Err(Denied::Key)]);
        assert_eq!([Via::Local, ours].map(|via| ask(Scope::Window, via)), [Err(Denied::Key), Ok(())]);
        let bound = [Via::Local, ours, other].map(|via| ask(Scope::WindowOf(Qpn(5)), via));
        assert_eq!(bound, [Err(Denied::Key), Ok(()), Err(Denied::Qp)]);
    }

    #[test]
    fn the_usual_answer_is_that_of_the_whole_check() {
        let r = region();
        let entry = MrEntry::default();
        let scopes = [Scope::Region, Scope::Null, Scope::Window, Scope::WindowOf(Qpn(5))];
        let ends = [r.iova.wrapping_sub(1), r.iova, r.iova + r.length - 1, r.iova + r.length, u64::MAX];
        for scope in scopes {
            let r = Region { scope, ..r };
            entry.write(&r);
            for pd in [r.pd, PdId(r.pd.0 + 1)] {
                for need in [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE] {
                    for (va, len) in
                        ends.iter().flat_map(|va| [1, 2, r.length, u64::MAX].map(|len| (*va, len)))
                    {
                        let whole = r.resolve(r.key, pd, Via::Local, va, len, need).ok();
                        let expected = whole.filter(|_| scope == Scope::Region);
                        assert_eq!(entry.usual(pd, va, len, need), expected, "{scope:?} {va:#x} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn snapshots_are_whole_while_the_owner_writes() {
        // SAFETY: an entry of zeros is a free entry.
        let entry: MrEntry = unsafe { std::mem::zeroed() };
        assert_eq!(entry.snapshot(), None);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u32;
                while !stop.load(Relaxed) {
                    n = n.wrapping_add(1);
                    let (w, key) = (u64::from(n), Key(n | 1));
                    let access = Access::from_bits_retain(n);
                    let scope = Scope::WindowOf(Qpn(n));
                    let file = InFile { number: n, offset: w };
                    let pd = PdId(n);
                    entry.write(&Region { key, pd, access, start: w, iova: w, length: w, scope, file });
                }
            });
            let mut seen = 0;
            while seen < 20_000 {
                let Some(r) = entry.snapshot() else { continue };
                seen += 1;
                let n = r.pd.0;
                assert_eq!((r.key.0, r.access.bits()), (n | 1, n));
                assert_eq!(r.scope, Scope::WindowOf(Qpn(n)));
                assert_eq!(r.file, InFile { number: n, offset: n.into() });
                assert!([r.start, r.iova, r.length].iter().all(|&w| w == u64::from(n)));
            }
            stop.store(true, Relaxed);
        });
        entry.set_key(Key(0));
        assert_eq!(entry.snapshot(), None);
    }
}
