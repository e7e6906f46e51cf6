use super::super::QpView;
use super::super::direct::{in_flight, wait};
use super::super::layout::What;
use super::*;
use crate::soft::link::shm::direct::tests::mapped::{Mapped, mapped};
use crate::soft::link::shm::direct::tests::{Setting, setting};
use crate::soft::types::{Access, QpState};
use crate::sys::process_vm::Way;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// For good: what is near refers to the process that it is in.
fn scene() -> Option<&'static Mapped> {
    mapped().map(|m| &*Box::leak(Box::new(m)))
}

fn look(m: &'static Mapped, rkey: u32) -> Option<Near> {
    look_this_way(m, rkey, Way::Write)
}

fn look_this_way(m: &'static Mapped, rkey: u32, way: Way) -> Option<Near> {
    let what = OneSided { rkey, ..m.request(way, 0, 1) };
    Near::look(&m.s.pair.a, &m.s.pair.ab, &what)
}

fn write(near: &Near, rkey: u32, addr: u64, bytes: &[u8]) -> bool {
    // SAFETY: the source is a slice, which is only read.
    unsafe { near.carry_out::<true>(rkey, addr, bytes.as_ptr().cast_mut(), bytes.len()) }
}

fn read(near: &Near, rkey: u32, addr: u64, bytes: &mut [u8]) -> bool {
    // SAFETY: the place is a slice of the caller's.
    unsafe { near.carry_out::<false>(rkey, addr, bytes.as_mut_ptr(), bytes.len()) }
}

#[test]
fn what_is_near_is_written_within_its_bounds_by_its_key() {
    let Some(m) = scene() else { return };
    let (rkey, near) = (m.rkey.0, look(m, m.rkey.0).unwrap());
    assert!(write(&near, rkey, 8190, &[3, 4]));
    assert_eq!(m.bytes()[8189..], [0, 3, 4]);
    assert!(!write(&near, rkey, 8191, &[5, 6]) && !write(&near, rkey, u64::MAX, &[5]));
    assert!(!write(&near, rkey ^ 1, 0, &[5]));
    assert_eq!((m.bytes()[0], &m.bytes()[8190..]), (9, &[3, 4][..]));
}

#[test]
fn what_is_near_is_read_within_its_bounds_by_its_key() {
    let Some(m) = scene() else { return };
    let (rkey, near) = (m.rkey.0, look_this_way(m, m.rkey.0, Way::Read).unwrap());
    m.fill(7);
    let mut got = [0; 2];
    assert!(read(&near, rkey, 8190, &mut got) && got == [7; 2]);
    let mut got = [0; 2];
    assert!(!read(&near, rkey, 8191, &mut got) && !read(&near, rkey, u64::MAX, &mut got));
    assert!(!read(&near, rkey ^ 1, 0, &mut got));
    m.deregister(m.rkey);
    assert!(!read(&near, rkey, 0, &mut got) && got == [0; 2]);
}

/// A region that cannot be mapped, near for both ways.
fn private() -> Option<(&'static Setting, Near, Near)> {
    let s = &*Box::leak(Box::new(setting()?));
    let [write, read] =
        [Way::Write, Way::Read].map(|way| Near::look(&s.pair.a, &s.pair.ab, &s.request(way, 0, 1)).unwrap());
    Some((s, write, read))
}

#[test]
fn memory_that_cannot_be_mapped_is_near_too() {
    let Some((s, to, from)) = private() else { return };
    let (at, mut got) = (s.request(Way::Write, 0, 1).addr, [0; 3]);
    assert!(write(&to, s.rkey, at + 4093, &[1, 2, 3]) && read(&from, s.rkey, at + 4093, &mut got));
    assert_eq!((got, s.byte(4095)), ([1, 2, 3], 3));
    for (rkey, addr) in [(s.rkey, at + 4094), (s.rkey, at - 1), (s.rkey, u64::MAX), (s.rkey ^ 1, at)] {
        assert!(!write(&to, rkey, addr, &[9; 3]) && !read(&from, rkey, addr, &mut got));
    }
    assert_eq!((got, s.byte(0), s.byte(4094)), ([1, 2, 3], 0, 2));
}

#[test]
fn either_way_of_unmapped_memory_has_its_own_right() {
    let Some((s, to, from)) = private() else { return };
    let (at, mut got) = (s.request(Way::Write, 0, 1).addr, [9]);
    s.pair.b.publish_qp(s.dst, &QpView { access: Access::REMOTE_READ, ..s.view() });
    assert!(!write(&to, s.rkey, at, &[1]) && !read(&from, s.rkey, at, &mut got), "looked at anew");
    let look = |way| Near::look(&s.pair.a, &s.pair.ab, &s.request(way, 0, 1));
    assert!(look(Way::Write).is_none());
    assert!(read(&look(Way::Read).unwrap(), s.rkey, at, &mut got) && got == [0]);
    let error = QpView { state: Some(QpState::Err), ..s.view() };
    s.pair.b.publish_qp(s.dst, &error);
    assert!(look(Way::Write).is_none() && look(Way::Read).is_none());
}

#[test]
fn what_the_kernel_has_refused_is_not_tried_again() {
    let Some((s, to, from)) = private() else { return };
    let (at, mut got) = (s.request(Way::Write, 0, 1).addr, [9]);
    s.pair.ab.refuse_copy(Way::Read);
    assert!(!read(&from, s.rkey, at, &mut got) && write(&to, s.rkey, at, &[1]));
    s.pair.ab.close();
    assert!(!write(&to, s.rkey, at, &[2]) && s.byte(0) == 1);
}

#[test]
fn memory_that_is_not_mapped_any_more_is_no_success() {
    let Some((s, ..)) = private() else { return };
    let map = crate::sys::map::Mapping::anonymous(4096).unwrap();
    let rkey = s.register_at(map.base() as u64, 4096);
    let near = [Way::Write, Way::Read].map(|way| {
        let what = OneSided { rkey, addr: map.base() as u64, ..s.request(way, 0, 1) };
        Near::look(&s.pair.a, &s.pair.ab, &what).unwrap()
    });
    let at = map.base() as u64;
    assert!(write(&near[0], rkey, at, &[1]) && read(&near[1], rkey, at, &mut [0]));
    drop(map);
    assert!(!write(&near[0], rkey, at, &[1]) && !read(&near[1], rkey, at, &mut [0]));
}

#[test]
fn memory_that_cannot_be_mapped_is_never_written_after_its_deregistration() {
    let Some((s, ..)) = private() else { return };
    let (relaxed, at) = (Ordering::Relaxed, s.request(Way::Write, 0, 1).addr);
    let (stop, current, wrote) = (AtomicBool::new(false), AtomicU32::new(s.rkey), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(relaxed) {
                let rkey = current.load(relaxed);
                let what = OneSided { rkey, ..s.request(Way::Write, 0, 1) };
                let Some(near) = Near::look(&s.pair.a, &s.pair.ab, &what) else { continue };
                while !stop.load(relaxed) && write(&near, rkey, at + 64, &[1; 64]) {
                    wrote.fetch_add(1, relaxed);
                }
            }
        });
        for _ in 0..300 {
            let before = wrote.load(relaxed);
            while wrote.load(relaxed) == before {
                std::thread::yield_now();
            }
            let peers = [&*s.pair.ba];
            let idle = |key: Key| !in_flight(&s.pair.b, peers, What::Rkey(key.0));
            s.table.deregister(Key(current.load(relaxed)), idle).unwrap();
            s.clear();
            assert!((64..128).all(|i| s.byte(i) == 0), "written after deregistration");
            current.store(s.register(), relaxed);
        }
        stop.store(true, relaxed);
    });
}

#[test]
fn what_has_changed_is_not_near_any_more() {
    let Some(m) = scene() else { return };
    let rkey = m.rkey.0;
    let near = look(m, rkey).unwrap();
    m.s.pair.b.publish_qp(m.s.dst, &QpView { access: Access::REMOTE_READ, ..m.s.view() });
    assert!(!write(&near, rkey, 0, &[1]) && look(m, rkey).is_none());
    m.s.pair.b.publish_qp(m.s.dst, &m.s.view());
    assert!(!write(&near, rkey, 0, &[1]), "what came back is looked at anew");
    let near = look(m, rkey).unwrap();
    assert!(write(&near, rkey, 0, &[1]) && !near.has_gone());
    m.deregister(m.rkey);
    assert!(!write(&near, rkey, 0, &[2]) && look(m, rkey).is_none());
    assert_eq!(m.bytes()[0], 1);
    m.s.pair.ba.tell_files_went();
    super::super::peer::tests::hear(&m.s.pair.ab).unwrap();
    assert!(near.has_gone());
}

#[test]
fn a_dead_peer_and_a_file_that_was_cut_off_are_not_near() {
    let Some(m) = scene() else { return };
    let near = look(m, m.rkey.0).unwrap();
    m.cut(4096);
    assert!(!write(&near, m.rkey.0, 4096, &[1]) && write(&near, m.rkey.0, 4095, &[1]));
    m.s.pair.ab.close();
    assert!(!write(&near, m.rkey.0, 0, &[1]) && look(m, m.rkey.0).is_none());
}

#[test]
fn places_come_back_and_are_seen_while_something_is_under_way() {
    let Some(m) = scene() else { return };
    let all: Vec<_> = std::iter::from_fn(|| look(m, m.rkey.0)).take(1000).collect();
    assert_eq!(all.len(), super::super::layout::RESERVED);
    drop(all);
    let near = look(m, m.rkey.0).unwrap();
    let is_seen = || {
        let peers = [&*m.s.pair.ba];
        [What::Rkey(m.rkey.0), What::Qp(m.s.dst)].map(|what| in_flight(&m.s.pair.b, peers, what))
    };
    assert_eq!(is_seen(), [false; 2]);
    near.hazard.hazard.target.store(near.target, Ordering::SeqCst);
    assert_eq!(is_seen(), [true; 2]);
    let peers = [&*m.s.pair.ba];
    assert!(wait(&m.s.pair.b, peers, What::Qp(m.s.dst), 1000).is_err());
    drop(near);
    assert_eq!(is_seen(), [false; 2]);
}

#[test]
fn a_region_that_is_near_is_never_written_after_its_deregistration() {
    let Some(m) = scene() else { return };
    let relaxed = Ordering::Relaxed;
    let (stop, current, wrote) = (AtomicBool::new(false), AtomicU32::new(m.rkey.0), AtomicU32::new(0));
    // It keeps the file in use meanwhile.
    let _other = m.register();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(relaxed) {
                let rkey = current.load(relaxed);
                let Some(near) = look(m, rkey) else { continue };
                while !stop.load(relaxed) && write(&near, rkey, 64, &[1; 64]) {
                    wrote.fetch_add(1, relaxed);
                }
            }
        });
        for _ in 0..300 {
            let before = wrote.load(relaxed);
            while wrote.load(relaxed) == before {
                std::thread::yield_now();
            }
            m.deregister(Key(current.load(relaxed)));
            m.fill(0);
            assert!(m.bytes().iter().all(|b| *b == 0), "written after deregistration");
            current.store(m.register(), relaxed);
        }
        stop.store(true, relaxed);
    });
}

#[test]
fn only_a_region_that_is_named_twice_in_a_row_is_near() {
    let Some(m) = scene() else { return };
    let mut nearby = Nearby::default();
    let (one, other) =
        (m.request(Way::Write, 0, 1), OneSided { rkey: m.register(), ..m.request(Way::Write, 0, 1) });
    let back = OneSided { way: Way::Read, ..one };
    let mut went = |what: &OneSided| {
        nearby.went(&m.s.pair.a, &m.s.pair.ab, what);
        [Way::Write, Way::Read].map(|way| nearby.get(way).map_or(0, |near| near.rkey))
    };
    assert_eq!([&one, &other, &one].map(&mut went), [[0; 2]; 3]);
    assert_eq!([&one, &other, &one].map(&mut went), [[one.rkey, 0]; 3]);
    assert_eq!([&other, &other].map(&mut went), [[one.rkey, 0], [other.rkey, 0]]);
    assert_eq!([&back, &other, &back].map(&mut went)[1..], [[other.rkey, 0], [other.rkey, one.rkey]]);
    nearby.sweep();
    assert!(nearby.get(Way::Write).is_some() && nearby.get(Way::Read).is_some());
    nearby.clear();
    assert!(nearby.get(Way::Write).is_none() && nearby.get(Way::Read).is_none());
}

#[test]
fn a_look_in_vain_is_not_repeated_with_each_request() {
    let Some(m) = scene() else { return };
    let what = m.request(Way::Write, 0, 1);
    let all: Vec<_> = std::iter::from_fn(|| look(m, m.rkey.0)).take(1000).collect();
    let mut nearby = Nearby::default();
    let mut went = || nearby.went(&m.s.pair.a, &m.s.pair.ab, &what);
    (0..2).for_each(|_| went());
    drop(all);
    (0..REST).for_each(|_| went());
    assert!(nearby.get(Way::Write).is_none());
    nearby.went(&m.s.pair.a, &m.s.pair.ab, &what);
    assert!(nearby.get(Way::Write).is_some());
}
