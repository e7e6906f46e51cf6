use super::super::QpView;
use super::super::direct::{in_flight, wait};
use super::super::layout::What;
use super::*;
use crate::soft::link::shm::direct::tests::mapped::{Mapped, mapped};
use crate::sys::process_vm::Way;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// For good: what is near refers to the process that it is in.
fn scene() -> Option<&'static Mapped> {
    mapped().map(|m| &*Box::leak(Box::new(m)))
}

fn look(m: &'static Mapped, rkey: u32) -> Option<Near> {
    let what = OneSided { rkey, ..m.request(Way::Write, 0, 1) };
    Near::look(&m.s.pair.a, &m.s.pair.ab, &what)
}

fn write(near: &Near, rkey: u32, addr: u64, bytes: &[u8]) -> bool {
    // SAFETY: the source is a slice.
    unsafe { near.write(rkey, addr, bytes.as_ptr(), bytes.len()) }
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
fn only_a_region_that_is_written_to_twice_in_a_row_is_near() {
    let Some(m) = scene() else { return };
    let mut nearby = Nearby::default();
    let (one, other) =
        (m.request(Way::Write, 0, 1), OneSided { rkey: m.register(), ..m.request(Way::Write, 0, 1) });
    let mut written = |what: &OneSided| {
        nearby.written(&m.s.pair.a, &m.s.pair.ab, what);
        nearby.get().map(|near| near.rkey)
    };
    assert_eq!([&one, &other, &one].map(&mut written), [None; 3]);
    assert_eq!([&one, &other, &one].map(&mut written), [Some(one.rkey); 3]);
    assert_eq!([&other, &other].map(&mut written), [Some(one.rkey), Some(other.rkey)]);
    nearby.sweep();
    assert!(nearby.get().is_some());
    nearby.clear();
    assert!(nearby.get().is_none());
}
