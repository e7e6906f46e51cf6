//! Direct accesses between two ends in one process (process_vm works on oneself), with a real memory table.
#[path = "mapped_tests.rs"]
pub(in crate::soft::link::shm) mod mapped;

use super::*;
use crate::soft::link::shm::own::MR_CAPACITY;
use crate::soft::link::shm::peer::tests::{Pair, up};
use crate::soft::mem::{MemTable, Pd, PdTable};

pub(in crate::soft::link::shm) struct Setting {
    pub table: MemTable,
    pub pair: Pair,
    pd: Pd,
    memory: Vec<u8>,
    pub rkey: u32,
    pub dst: Qpn,
}

const SRC: Qpn = Qpn(0x123456);

pub(in crate::soft::link::shm) fn setting() -> Option<Setting> {
    let pair = up();
    if !pair.ab.may_copy(Way::Write) || !pair.ab.may_copy(Way::Read) {
        println!("skipped: process_vm is not allowed here");
        return None;
    }
    // SAFETY: the entries are new, and `Setting` drops the table before the pair.
    let table = unsafe { MemTable::over(pair.b.mr_area(), MR_CAPACITY as u32, pair.b.files_area()) }.unwrap();
    let pd = PdTable::new(10).alloc().unwrap();
    let memory = vec![0u8; 4096];
    let dst = Qpn::new(pair.slot.number(), 77);
    let mut s = Setting { table, pair, pd, memory, rkey: 0, dst };
    s.rkey = s.register();
    s.pair.b.publish_qp(dst, &s.view());
    Some(s)
}

impl Setting {
    pub fn view(&self) -> QpView {
        QpView {
            state: Some(QpState::Rtr),
            kind: Some(QpType::Rc),
            pd: self.pd.id().0,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            peer_qpn: SRC.0,
            peer_nonce: self.pair.a.nonce(),
            is_shared: false,
        }
    }

    pub fn request(&self, way: Way, offset: u64, len: usize) -> OneSided {
        let addr = self.memory.as_ptr() as u64 + offset;
        OneSided { way, src_qpn: SRC, dst_qpn: self.dst, rkey: self.rkey, addr, len }
    }

    fn run(&self, what: &OneSided, local: &mut [u8]) -> Direct {
        let piece = Iovec { iov_base: local.as_mut_ptr().cast(), iov_len: local.len() };
        // SAFETY: the piece is a local slice.
        unsafe { access(&self.pair.a, &self.pair.ab, what, &[piece]) }
    }

    pub fn register(&self) -> u32 {
        self.register_at(self.memory.as_ptr() as u64, 4096)
    }

    pub fn register_at(&self, at: u64, len: u64) -> u32 {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.table.register(&self.pd, at, len, at, access).unwrap().key.0
    }

    pub fn clear(&self) {
        // SAFETY: inside the vector; volatile, since the kernel writes there, too.
        (0..4096).for_each(|i| unsafe { self.memory.as_ptr().cast_mut().add(i).write_volatile(0) });
    }

    pub fn byte(&self, at: usize) -> u8 {
        // SAFETY: inside the vector; volatile, since the kernel writes it behind the compiler's back.
        unsafe { self.memory.as_ptr().add(at).read_volatile() }
    }
}

#[test]
fn writes_and_reads_need_nobody_at_the_other_end() {
    let Some(s) = setting() else { return };
    assert_eq!(s.run(&s.request(Way::Write, 10, 3), &mut [1, 2, 3]), Direct::Done);
    assert_eq!([s.byte(9), s.byte(10), s.byte(12), s.byte(13)], [0, 1, 3, 0]);
    let mut back = [0; 4];
    assert_eq!(s.run(&s.request(Way::Read, 9, 4), &mut back), Direct::Done);
    assert_eq!(back, [0, 1, 2, 3]);
    assert!(!in_flight(&s.pair.b, [&*s.pair.ba], What::Rkey(s.rkey)));
}

#[test]
fn whatever_the_publication_does_not_allow_goes_by_the_ring() {
    let Some(s) = setting() else { return };
    let good = s.request(Way::Write, 0, 1);
    let refused = |what: &OneSided| s.run(what, &mut vec![9; what.len]) == Direct::UseRing;
    assert!(refused(&OneSided { rkey: s.rkey ^ 1, ..good }));
    assert!(refused(&OneSided { rkey: 0xffff_ffff, ..good }));
    assert!(refused(&OneSided { addr: good.addr - 1, ..good }));
    assert!(refused(&OneSided { len: 4097, ..good }));
    assert!(refused(&OneSided { len: 0, ..good }));
    assert!(refused(&OneSided { src_qpn: Qpn(1), ..good }));
    assert!(refused(&OneSided { dst_qpn: Qpn(s.dst.0 + 1), ..good }));
    assert!(refused(&OneSided { dst_qpn: Qpn(77), ..good }));
    let view = s.view();
    for wrong in [
        QpView { state: Some(QpState::Init), ..view },
        QpView { state: Some(QpState::Err), ..view },
        QpView { kind: Some(QpType::Ud), ..view },
        QpView { pd: view.pd + 1, ..view },
        QpView { access: Access::REMOTE_READ, ..view },
        QpView { peer_nonce: 0, ..view },
        QpView::default(),
    ] {
        s.pair.b.publish_qp(s.dst, &wrong);
        assert!(refused(&good), "{wrong:?}");
    }
    s.pair.b.publish_qp(s.dst, &QpView { kind: Some(QpType::Uc), ..view });
    assert!(refused(&OneSided { way: Way::Read, ..good }) && !refused(&good));
    s.pair.b.publish_qp(s.dst, &view);
    s.table.deregister(crate::soft::types::Key(s.rkey), |_| true).unwrap();
    assert!(refused(&good));
}

#[test]
fn memory_that_was_unmapped_goes_by_the_ring() {
    let Some(s) = setting() else { return };
    let map = crate::sys::map::Mapping::anonymous(4096).unwrap();
    let at = map.base() as u64;
    let rkey =
        s.table.register(&s.pd, at, 4096, at, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap().key.0;
    let what = OneSided { rkey, addr: at, ..s.request(Way::Write, 0, 1) };
    assert_eq!(s.run(&what, &mut [1]), Direct::Done);
    drop(map);
    assert_eq!(s.run(&what, &mut [1]), Direct::UseRing);
}

#[test]
fn an_access_under_way_is_seen_by_its_target_only() {
    let Some(s) = setting() else { return };
    let announced = s.pair.a.announce(s.pair.b.nonce(), s.rkey, s.dst).unwrap();
    let peers = || [&*s.pair.ba];
    assert!(
        in_flight(&s.pair.b, peers(), What::Rkey(s.rkey)) && in_flight(&s.pair.b, peers(), What::Qp(s.dst))
    );
    assert!(!in_flight(&s.pair.b, peers(), What::Rkey(s.rkey + 1)));
    assert!(!in_flight(&s.pair.a, [&*s.pair.ab], What::Rkey(s.rkey)));
    assert_eq!(wait(&s.pair.b, peers(), What::Rkey(s.rkey), 1000), Err(Errno::EBUSY));
    drop(announced);
    assert_eq!(wait(&s.pair.b, peers(), What::Rkey(s.rkey), 1000), Ok(()));
}

#[test]
fn more_accesses_than_there_is_room_to_announce_go_by_the_ring() {
    let Some(s) = setting() else { return };
    let held: Vec<_> =
        std::iter::from_fn(|| s.pair.a.announce(s.pair.b.nonce(), s.rkey, s.dst)).take(1000).collect();
    assert_eq!(held.len(), super::super::layout::HAZARDS);
    assert_eq!(s.run(&s.request(Way::Write, 0, 1), &mut [1]), Direct::UseRing);
    drop(held);
    assert_eq!(s.run(&s.request(Way::Write, 0, 1), &mut [1]), Direct::Done);
}

#[test]
fn a_region_is_never_written_after_its_deregistration() {
    let Some(s) = setting() else { return };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let current = std::sync::atomic::AtomicU32::new(s.rkey);
    std::thread::scope(|scope| {
        let (s, stop, current) = (&s, &stop, &current);
        scope.spawn(move || {
            while !stop.load(relaxed) {
                let what = OneSided { rkey: current.load(relaxed), ..s.request(Way::Write, 0, 4096) };
                s.run(&what, &mut [1; 4096]);
            }
        });
        let at = s.memory.as_ptr() as u64;
        for _ in 0..200 {
            let idle = |key: crate::soft::types::Key| !in_flight(&s.pair.b, [&*s.pair.ba], What::Rkey(key.0));
            s.table.deregister(crate::soft::types::Key(current.load(relaxed)), idle).unwrap();
            for i in 0..4096 {
                // SAFETY: inside the vector, which nobody else may write now.
                unsafe { s.memory.as_ptr().cast_mut().add(i).write_volatile(0) };
            }
            assert!((0..4096).all(|i| s.byte(i) == 0), "written after deregistration");
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            current.store(s.table.register(&s.pd, at, 4096, at, access).unwrap().key.0, relaxed);
        }
        stop.store(true, relaxed);
    });
}
