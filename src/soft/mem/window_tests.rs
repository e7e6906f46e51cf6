use super::*;
use crate::soft::mem::{Denied, Mr, PdTable, Rereg, ReregError};
use std::cell::Cell;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
const READ: Access = Access::REMOTE_READ;
const QP: Qpn = Qpn(0x1234);

struct World {
    table: MemTable,
    pds: PdTable,
    pd: Pd,
    memory: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let pds = PdTable::new(100);
        let pd = pds.alloc().unwrap();
        Self { table: MemTable::private(64).unwrap(), pds, pd, memory: vec![0; 8192] }
    }
    fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }
    fn region(&self, access: Access) -> Mr {
        let at = self.addr();
        self.table.register(&self.pd, at, self.memory.len() as u64, at, access).unwrap()
    }
    fn window(&self, kind: MwType) -> Key {
        self.table.alloc_window(&self.pd, kind).unwrap()
    }
    fn bind(&self, bind: &Bind) -> Result<(), BadWindow> {
        self.table.bind(self.pd.id(), QP, bind, |_| true)
    }
    fn whole(&self, window: Key, mr: &Mr) -> Bind {
        let (addr, length) = (self.addr(), self.memory.len() as u64);
        Bind { window, rkey: Key(window.0 + 1), region: mr.key, addr, length, access: READ }
    }
    fn read(&self, qpn: Qpn, rkey: Key, va: u64, len: u64) -> Result<u64, Denied> {
        self.table.remote(self.pd.id(), qpn, rkey, va, len, READ).map(|span| span.as_ptr() as u64)
    }
    fn dereg(&self, mr: Mr) -> Result<(), Errno> {
        self.table.deregister(mr.key, |_| true)
    }
}

fn key_of(bind: &Bind) -> Key {
    Key(bind.window.0 & !0xff | bind.rkey.0 & 0xff)
}

#[test]
fn a_window_of_type_1_moves_and_its_old_key_dies() {
    let w = World::new();
    let (mr, window) = (w.region(ALL), w.window(MwType::One));
    let first = Bind { addr: w.addr() + 100, length: 50, ..w.whole(window, &mr) };
    assert_eq!(w.read(QP, key_of(&first), first.addr, 1), Err(Denied::Key), "not bound yet");
    w.bind(&first).unwrap();
    let old = key_of(&first);
    assert_eq!(w.read(QP, old, first.addr, 50), Ok(first.addr));
    assert_eq!(w.read(Qpn(9), old, first.addr, 50), Ok(first.addr), "through any QP of the domain");
    assert_eq!(w.read(QP, old, first.addr - 1, 1), Err(Denied::Range));
    assert_eq!(w.read(QP, old, first.addr, 51), Err(Denied::Range));
    let second = Bind { rkey: Key(window.0 + 2), ..w.whole(window, &mr) };
    w.bind(&second).unwrap();
    assert_eq!(w.read(QP, old, first.addr, 50), Err(Denied::Key));
    assert_eq!(w.read(QP, key_of(&second), w.addr(), 1), Ok(w.addr()));
    w.bind(&Bind { length: 0, ..second }).unwrap();
    assert_eq!(w.read(QP, key_of(&second), w.addr(), 1), Err(Denied::Key), "length 0 unbinds");
    w.dereg(mr).unwrap();
}

#[test]
fn a_window_of_type_2_serves_one_qp_until_it_is_invalidated() {
    let w = World::new();
    let (mr, window) = (w.region(ALL), w.window(MwType::Two));
    let bind = w.whole(window, &mr);
    w.bind(&bind).unwrap();
    let rkey = key_of(&bind);
    assert_eq!(w.read(QP, rkey, w.addr(), 8192), Ok(w.addr()));
    assert_eq!(w.read(Qpn(9), rkey, w.addr(), 1), Err(Denied::Qp));
    assert_eq!(w.bind(&Bind { rkey: Key(window.0 + 2), ..bind }), Err(BadWindow::Bound));
    let invalidate = |qpn, key| w.table.invalidate(w.pd.id(), qpn, key, |_| true);
    assert_eq!(invalidate(Qpn(9), rkey), Err(BadWindow::OtherQp));
    assert_eq!(invalidate(QP, Key(rkey.0 ^ 1)), Err(BadWindow::NotBound));
    assert_eq!(invalidate(QP, mr.key), Err(BadWindow::NoWindow), "a region is none");
    assert_eq!(invalidate(QP, rkey), Ok(()));
    assert_eq!(w.read(QP, rkey, w.addr(), 1), Err(Denied::Key));
    assert_eq!(invalidate(QP, rkey), Err(BadWindow::NotBound));
    w.bind(&Bind { rkey: Key(window.0 + 2), ..bind }).unwrap();
    w.table.release_windows(Qpn(9), |_| true);
    assert_eq!(w.read(QP, Key(window.0 & !0xff | (window.0 + 2) & 0xff), w.addr(), 1), Ok(w.addr()));
    w.table.release_windows(QP, |_| true);
    assert_eq!(w.dereg(mr), Ok(()), "the QP is gone");
    assert_eq!(w.bind(&Bind { length: 0, ..bind }), Err(BadWindow::Length));
}

#[test]
fn a_region_with_windows_stays() {
    let w = World::new();
    let (mr, one, two) = (w.region(ALL), w.window(MwType::One), w.window(MwType::Two));
    w.bind(&w.whole(one, &mr)).unwrap();
    w.bind(&w.whole(two, &mr)).unwrap();
    assert_eq!(w.dereg(mr), Err(Errno::EBUSY));
    let change = Rereg { access: Some(ALL), ..Rereg::default() };
    assert_eq!(w.table.reregister(mr.key, change, |_| true), Err(ReregError::Unchanged(Errno::EBUSY)));
    w.table.dealloc_window(one, |_| true).unwrap();
    assert_eq!(w.dereg(mr), Err(Errno::EBUSY));
    w.table.dealloc_window(two, |_| true).unwrap();
    assert_eq!(w.table.dealloc_window(two, |_| true), Err(Errno::ENOENT));
    assert_eq!(w.table.windows(), 0);
    w.dereg(mr).unwrap();
    assert_eq!(w.pds.dealloc(&w.pd), Ok(()));
}

#[test]
fn windows_need_region_domain_range_and_rights() {
    let w = World::new();
    let (mr, window) = (w.region(ALL), w.window(MwType::Two));
    assert_eq!(w.pds.dealloc(&w.pd), Err(Errno::EBUSY));
    let good = w.whole(window, &mr);
    let other = w.pds.alloc().unwrap();
    assert_eq!(w.table.bind(other.id(), QP, &good, |_| true), Err(BadWindow::Domain));
    let theirs = w.table.register(&other, w.addr(), 8, w.addr(), ALL).unwrap();
    let read_only = w.region(Access::MW_BIND);
    let unbindable = w.region(ALL - Access::MW_BIND);
    let zero = w.region(ALL | Access::ZERO_BASED);
    let null = w.table.register_null(&w.pd).unwrap();
    for (bind, expected) in [
        (Bind { window: mr.key, ..good }, BadWindow::NoWindow),
        (Bind { region: Key(mr.key.0 ^ 1), ..good }, BadWindow::NoRegion),
        (Bind { region: window, ..good }, BadWindow::NoRegion),
        (Bind { region: null.key, ..good }, BadWindow::NoRegion),
        (Bind { region: theirs.key, ..good }, BadWindow::Domain),
        (Bind { region: unbindable.key, ..good }, BadWindow::NotBindable),
        (Bind { region: zero.key, addr: 0, ..good }, BadWindow::ZeroBased),
        (Bind { addr: good.addr - 1, ..good }, BadWindow::Range),
        (Bind { addr: good.addr + 1, ..good }, BadWindow::Range),
        (Bind { length: good.length + 1, ..good }, BadWindow::Range),
        (Bind { length: u64::MAX, ..good }, BadWindow::Range),
        (Bind { region: read_only.key, access: Access::REMOTE_WRITE, ..good }, BadWindow::Access),
        (Bind { region: read_only.key, access: Access::REMOTE_ATOMIC, ..good }, BadWindow::Access),
        (Bind { access: Access::HUGETLB, ..good }, BadWindow::Access),
    ] {
        assert_eq!(w.bind(&bind), Err(expected), "{bind:?}");
    }
    w.bind(&Bind { region: read_only.key, ..good }).unwrap();
    assert_eq!(w.read(QP, key_of(&good), w.addr(), 1), Ok(w.addr()), "the region itself is not for peers");
    let write = w.table.remote(w.pd.id(), QP, key_of(&good), w.addr(), 1, Access::REMOTE_WRITE);
    assert_eq!(write.err(), Some(Denied::Access));
    let sge = crate::soft::types::Sge { addr: w.addr(), length: 1, lkey: key_of(&good) };
    assert_eq!(w.table.local(w.pd.id(), &sge, false).err(), Some(Denied::Key), "no window is an lkey");
}

#[test]
fn a_zero_based_window_counts_from_its_start() {
    let w = World::new();
    let (mr, window) = (w.region(ALL), w.window(MwType::Two));
    let bind =
        Bind { addr: w.addr() + 100, length: 50, access: READ | Access::ZERO_BASED, ..w.whole(window, &mr) };
    w.bind(&bind).unwrap();
    assert_eq!(w.read(QP, key_of(&bind), 10, 40), Ok(w.addr() + 110));
    assert_eq!(w.read(QP, key_of(&bind), 10, 41), Err(Denied::Range));
    assert_eq!(w.read(QP, key_of(&bind), w.addr() + 100, 1), Err(Denied::Range));
}

#[test]
fn a_window_in_use_keeps_its_region() {
    let w = World::new();
    let (mr, window) = (w.region(ALL), w.window(MwType::Two));
    let bind = w.whole(window, &mr);
    w.bind(&bind).unwrap();
    // A peer that is stopped in the middle of a copy.
    let asked = Cell::new(Key(0));
    let busy = |key| {
        asked.set(key);
        false
    };
    assert_eq!(w.table.invalidate(w.pd.id(), QP, key_of(&bind), busy), Ok(()));
    assert_eq!(asked.get(), key_of(&bind));
    assert_eq!(w.read(QP, key_of(&bind), w.addr(), 1), Err(Denied::Key));
    assert_eq!(w.dereg(mr), Err(Errno::EBUSY));
    asked.set(Key(0));
    let gone = |key| {
        asked.set(key);
        true
    };
    assert_eq!(w.table.dealloc_window(window, gone), Ok(()));
    assert_eq!(asked.get(), key_of(&bind), "the key that is dead, but was in use");
    w.dereg(mr).unwrap();
}
