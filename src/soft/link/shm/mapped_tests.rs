//! Accesses to regions in files, which the initiator maps.
use super::*;
use crate::soft::link::shm::peer::tests::hear;
use crate::sys::map::Mapping;
use crate::sys::memfd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const LEN: usize = 8192;

pub(in crate::soft::link::shm) struct Mapped {
    pub s: Setting,
    file: OwnedFd,
    map: Mapping,
    pub rkey: Key,
}

/// A region over a file that is not sealed, which the initiator has mapped; it may not copy by process_vm.
pub(in crate::soft::link::shm) fn mapped() -> Option<Mapped> {
    let s = setting()?;
    let file = memfd::create(c"anyverbs-test", LEN).unwrap();
    let map = Mapping::shared(file.as_fd(), LEN, true).unwrap();
    let m = Mapped { rkey: Key(register(&s, &map)), s, file, map };
    assert_eq!(m.write(0, 1), Direct::Done, "by process_vm");
    m.meet();
    Some(m)
}

fn register(s: &Setting, map: &Mapping) -> u32 {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    s.table.register(&s.pd, map.base() as u64, LEN as u64, 0, access | Access::ZERO_BASED).unwrap().key.0
}

impl Mapped {
    /// The owner gives what it is asked for, and the initiator hears of it.
    fn meet(&self) {
        let (ab, ba) = (&self.s.pair.ab, &self.s.pair.ba);
        assert!(hear(ba).unwrap().wants);
        ba.give(|number| self.s.table.file(number)?.handle());
        hear(ab).unwrap();
        ab.refuse_copy(Way::Write);
        ab.refuse_copy(Way::Read);
    }

    fn write(&self, addr: u64, len: usize) -> Direct {
        self.s.run(&self.request(Way::Write, addr, len), &mut vec![9; len])
    }

    pub fn request(&self, way: Way, addr: u64, len: usize) -> OneSided {
        OneSided { rkey: self.rkey.0, addr, ..self.s.request(way, 0, len) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: within the mapping; volatile, since others write there.
        (0..LEN).map(|i| unsafe { self.map.at(i).read_volatile() }).collect()
    }

    pub fn register(&self) -> u32 {
        register(&self.s, &self.map)
    }

    /// Ends the file behind `len` bytes.
    pub fn cut(&self, len: i64) {
        // SAFETY: only this test's file is concerned.
        assert_eq!(unsafe { libc::ftruncate(self.file.as_raw_fd(), len) }, 0);
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: within the mapping; volatile, since others read there.
        (0..LEN).for_each(|i| unsafe { self.map.at(i).write_volatile(byte) });
    }

    pub fn deregister(&self, key: Key) {
        let (b, ba) = (&self.s.pair.b, &self.s.pair.ba);
        self.s.table.deregister(key, |key| !in_flight(b, [&**ba], What::Rkey(key.0))).unwrap();
    }
}

#[test]
fn a_region_in_a_file_is_written_and_read_without_the_kernel() {
    let Some(m) = mapped() else { return };
    assert_eq!(m.write(4090, 12), Direct::Seen);
    let bytes = m.bytes();
    assert!(bytes[4090..4102].iter().all(|b| *b == 9) && bytes[4089] == 0 && bytes[4102] == 0);
    let mut back = [0; 4];
    assert_eq!(m.s.run(&m.request(Way::Read, 4088, 4), &mut back), Direct::Seen);
    assert_eq!(back, [0, 0, 9, 9]);
    // Other memory still needs the kernel.
    assert_eq!(m.s.run(&m.s.request(Way::Write, 0, 1), &mut [1]), Direct::UseRing);
}

#[test]
fn a_region_in_the_midst_of_a_file_begins_where_it_begins() {
    let Some(m) = mapped() else { return };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let at = m.map.base() as u64 + 100;
    let key = m.s.table.register(&m.s.pd, at, 200, at, access).unwrap().key;
    let what = OneSided { rkey: key.0, addr: at + 196, ..m.request(Way::Write, 0, 4) };
    assert_eq!(m.s.run(&what, &mut [7; 4]), Direct::Seen);
    assert_eq!(m.bytes()[295..301], [0, 7, 7, 7, 7, 0]);
    assert_eq!(m.s.run(&OneSided { addr: at + 197, ..what }, &mut [7; 4]), Direct::UseRing);
}

#[test]
fn rights_bounds_and_keys_count_for_mapped_regions_too() {
    let Some(m) = mapped() else { return };
    assert_eq!(m.write(LEN as u64 - 1, 2), Direct::UseRing);
    assert_eq!(m.write(u64::MAX, 1), Direct::UseRing);
    let read_only = QpView { access: Access::REMOTE_READ, ..m.s.view() };
    m.s.pair.b.publish_qp(m.s.dst, &read_only);
    assert_eq!(m.write(0, 1), Direct::UseRing);
    m.s.pair.b.publish_qp(m.s.dst, &m.s.view());
    assert_eq!(m.write(0, 1), Direct::Seen);
    m.deregister(m.rkey);
    assert_eq!(m.write(0, 1), Direct::UseRing);
}

#[test]
fn a_window_over_a_file_gives_its_range() {
    let Some(m) = mapped() else { return };
    let (table, pd) = (&m.s.table, &m.s.pd);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let base = m.map.base() as u64;
    let region = table.register(pd, base, LEN as u64, base, access).unwrap().key;
    let window = table.alloc_window(pd, crate::soft::mem::MwType::One).unwrap();
    let (addr, length) = (base + 512, 16);
    let bind =
        crate::soft::mem::Bind { window, rkey: window, region, addr, length, access: Access::REMOTE_WRITE };
    table.bind(pd.id(), m.s.dst, &bind, |_| true).unwrap();
    let what = OneSided { rkey: window.0, addr: addr + 12, ..m.request(Way::Write, 0, 4) };
    assert_eq!(m.s.run(&what, &mut [5; 4]), Direct::Seen);
    assert_eq!(m.bytes()[523..529], [0, 5, 5, 5, 5, 0]);
    assert_eq!(m.s.run(&OneSided { addr: addr + 13, ..what }, &mut [5; 4]), Direct::UseRing);
    table.dealloc_window(window, |_| true).unwrap();
    assert_eq!(m.s.run(&what, &mut [5; 4]), Direct::UseRing);
}

#[test]
fn what_an_owner_has_cut_off_goes_by_the_ring_and_what_it_has_left_goes_on() {
    let Some(m) = mapped() else { return };
    assert_eq!(m.write(4096, 1), Direct::Seen);
    m.cut(4096);
    assert_eq!(m.write(4096, 1), Direct::UseRing);
    assert_eq!(m.write(4095, 1), Direct::Seen);
}

#[test]
fn a_mapping_ends_with_the_last_region_in_its_file() {
    let Some(m) = mapped() else { return };
    let another = Key(register(&m.s, &m.map));
    let number = m.s.table.region(another).unwrap().file.number;
    m.deregister(m.rkey);
    assert!(!m.s.table.file_went() && m.s.pair.ab.view(number).is_some());
    m.deregister(another);
    assert!(m.s.table.file_went() && !m.s.table.file_went());
    m.s.pair.ba.tell_files_went();
    assert!(hear(&m.s.pair.ab).unwrap().view_went);
    assert!(m.s.pair.ab.view(number).is_none());
    let again = Key(register(&m.s, &m.map));
    assert_ne!(m.s.table.region(again).unwrap().file.number, number);
}

#[test]
fn a_region_that_moves_to_another_file_is_written_there() {
    let Some(m) = mapped() else { return };
    let file = memfd::sealed(c"anyverbs-test", LEN).unwrap();
    let map = Mapping::shared(file.as_fd(), LEN, true).unwrap();
    let change =
        crate::soft::mem::Rereg { translation: Some((map.base() as u64, LEN as u64)), ..Default::default() };
    m.s.table.reregister(m.rkey, change, |_| true).unwrap();
    assert!(m.s.table.file_went());
    assert_eq!(m.write(0, 1), Direct::UseRing, "the new file has not come yet");
    m.meet();
    assert_eq!(m.write(8, 1), Direct::Seen);
    // SAFETY: within the mapping; volatile, since others write there.
    assert_eq!((unsafe { map.at(8).read_volatile() }, m.bytes()[8]), (9, 0));
}

#[test]
fn a_mapped_region_is_never_written_after_its_deregistration() {
    let Some(m) = mapped() else { return };
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let (stop, current) =
        (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicU32::new(m.rkey.0));
    // It keeps the file in use meanwhile.
    let _other = register(&m.s, &m.map);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(relaxed) {
                let what = OneSided { rkey: current.load(relaxed), ..m.request(Way::Write, 0, LEN) };
                m.s.run(&what, &mut [1; LEN]);
            }
        });
        for _ in 0..200 {
            m.deregister(Key(current.load(relaxed)));
            m.fill(0);
            assert!(m.bytes().iter().all(|b| *b == 0), "written after deregistration");
            current.store(register(&m.s, &m.map), relaxed);
        }
        stop.store(true, relaxed);
    });
}
