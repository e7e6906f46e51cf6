use super::*;
use crate::soft::mem::{DmPool, PdTable};
use std::sync::atomic::AtomicBool;

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const QP: Qpn = Qpn(7);

struct World {
    table: MemTable,
    pds: PdTable,
    pd: Pd,
}

impl World {
    fn new(capacity: u32) -> Self {
        let pds = PdTable::new(100);
        let pd = pds.alloc().unwrap();
        Self { table: MemTable::private(capacity).unwrap(), pds, pd }
    }
    fn register(&self, memory: &[u8], access: Access) -> Result<Mr, Errno> {
        let at = memory.as_ptr() as u64;
        self.table.register(&self.pd, at, memory.len() as u64, at, access)
    }
    fn local(&self, mr: &Mr, addr: u64, length: u32, write: bool) -> Result<Span<'_>, Denied> {
        self.table.local(self.pd.id(), &Sge { addr, length, lkey: mr.key }, write)
    }
}

fn idle(_: Key) -> bool {
    true
}

#[test]
fn bytes_move_through_checked_spans() {
    let w = World::new(64);
    let (a, b) = (vec![7u8; 100], vec![0u8; 100]);
    let from = w.register(&a, Access::empty()).unwrap();
    let to = w.register(&b, ALL).unwrap();
    let src = w.local(&from, from.addr + 10, 20, false).unwrap();
    let dst = w.table.remote(w.pd.id(), QP, to.key, to.addr + 80, 20, Access::REMOTE_WRITE).unwrap();
    dst.put_span(0, &src, 0, 20).unwrap();
    drop((src, dst));
    assert_eq!((b[79], b[80], b[99]), (0, 7, 7));
    assert_eq!(w.local(&from, from.addr, 1, true).err(), Some(Denied::Access));
    assert_eq!(w.local(&from, from.addr + 99, 2, false).err(), Some(Denied::Range));
    assert_eq!(
        w.table.remote(w.pd.id(), QP, from.key, from.addr, 1, Access::REMOTE_READ).err(),
        Some(Denied::Access),
        "local rights are not remote rights"
    );
}

#[test]
fn another_domain_is_denied() {
    let w = World::new(64);
    let memory = vec![0u8; 8];
    let mr = w.register(&memory, ALL).unwrap();
    let other = w.pds.alloc().unwrap();
    let sge = Sge { addr: mr.addr, length: 8, lkey: mr.key };
    assert_eq!(w.table.local(other.id(), &sge, false).err(), Some(Denied::Domain));
    assert_eq!(
        w.table.remote(other.id(), QP, mr.key, mr.addr, 8, Access::REMOTE_READ).err(),
        Some(Denied::Domain)
    );
    assert_eq!(w.pds.dealloc(&w.pd), Err(Errno::EBUSY));
    w.table.deregister(mr.key, idle).unwrap();
    w.pds.dealloc(&w.pd).unwrap();
}

#[test]
fn no_bytes_need_no_key() {
    let w = World::new(64);
    assert_eq!(w.table.remote(w.pd.id(), QP, Key(0xdead_beef), 1, 0, ALL).unwrap().len(), 0);
    assert_eq!(w.table.remote(w.pd.id(), QP, Key(0xdead_beef), 1, 1, ALL).err(), Some(Denied::Key));
    assert_eq!(w.table.remote(w.pd.id(), QP, Key(0), 1, 1, ALL).err(), Some(Denied::Key));
    let mr = w.table.register(&w.pd, 0x1000, 0, 0x1000, ALL).unwrap();
    assert_eq!(w.table.remote(w.pd.id(), QP, mr.key, 0x1000, 1, ALL).err(), Some(Denied::Range));
}

#[test]
fn bad_registrations_are_refused() {
    let w = World::new(64);
    let memory = vec![0u8; 100];
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::from_bits_retain(1 << 15)] {
        assert_eq!(w.register(&memory, access).err(), Some(Errno::EINVAL), "{access:?}");
    }
    w.register(&memory, Access::RELAXED_ORDERING | Access::from_bits_retain(1 << 29)).unwrap();
    let register = |addr, len, iova, access| w.table.register(&w.pd, addr, len, iova, access).err();
    assert_eq!(register(4096, u64::MAX - 4096, 4096, ALL), Some(Errno::EINVAL), "wraps");
    assert_eq!(register(0, u64::MAX, 0, ALL), Some(Errno::EINVAL), "implicit without ON_DEMAND");
    assert_eq!(register(4096, 8, 4096, ALL), Some(Errno::EFAULT));
    assert_eq!(register(4096, 8, 4096, Access::ON_DEMAND), None);
    let at = memory.as_ptr() as u64;
    assert_eq!(register(at, 100, at + 1, ALL), Some(Errno::EINVAL), "offset in page");
    assert_eq!(
        register(0, 8192, u64::MAX - 4095, ALL | Access::ON_DEMAND),
        Some(Errno::EINVAL),
        "iova wraps"
    );
    assert_eq!(register(b"read only".as_ptr() as u64 & !4095, 9, 0, ALL), Some(Errno::EFAULT));
}

#[test]
fn iova_and_zero_base_name_the_same_bytes() {
    let w = World::new(64);
    let memory = vec![0u8; 4096];
    let at = memory.as_ptr() as u64;
    let iova = 0xffff_0000_0000_0000 + at % 4096;
    let mr = w.table.register(&w.pd, at, 4096, iova, ALL).unwrap();
    w.table.remote(w.pd.id(), QP, mr.key, iova + 4095, 1, ALL).unwrap().put(0, b"x").unwrap();
    assert_eq!(w.table.remote(w.pd.id(), QP, mr.key, at, 1, ALL).err(), Some(Denied::Range));
    let zero = w.table.register(&w.pd, at, 4096, at, ALL | Access::ZERO_BASED).unwrap();
    w.local(&zero, 0, 4096, true).unwrap().put(0, b"y").unwrap();
    assert_eq!((memory[0], memory[4095]), (b'y', b'x'));
}

#[test]
fn the_whole_address_space_faults_where_nothing_is() {
    let w = World::new(64);
    let mr = w.table.register(&w.pd, 0, u64::MAX, 0, ALL | Access::ON_DEMAND).unwrap();
    let word = 5u64;
    let mut copy = [0; 8];
    w.local(&mr, &raw const word as u64, 8, false).unwrap().get(0, &mut copy).unwrap();
    assert_eq!(u64::from_ne_bytes(copy), 5);
    assert!(w.local(&mr, 16, 8, true).unwrap().put(0, &copy).is_err());
    assert!(w.local(&mr, u64::MAX - 4, 4, true).unwrap().put(0, &copy[..4]).is_err());
}

#[test]
fn large_sparse_regions_work_beyond_4_gib() {
    let w = World::new(64);
    let size = 5u64 << 30;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, unmapped below.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), size as usize, prot, flags | libc::MAP_NORESERVE, -1, 0) as u64
    };
    let mr = w.table.register(&w.pd, at, size, at, ALL).unwrap();
    let last = at + size - 3;
    w.table.remote(w.pd.id(), QP, mr.key, last, 3, ALL).unwrap().put(0, b"end").unwrap();
    let mut back = [0; 3];
    w.local(&mr, last, 3, false).unwrap().get(0, &mut back).unwrap();
    assert_eq!(&back, b"end");
    // SAFETY: the mapping above. Its place stays ours for now, lest another test's memory come there.
    unsafe { libc::mprotect(at as *mut _, size as usize, libc::PROT_NONE) };
    assert!(w.local(&mr, last, 3, false).unwrap().get(0, &mut back).is_err(), "taken away while registered");
    // SAFETY: as above.
    unsafe { libc::munmap(at as *mut _, size as usize) };
}

#[test]
fn stale_keys_are_dead_and_variants_differ() {
    let w = World::new(3);
    let memory = vec![0u8; 8];
    let first = w.register(&memory, ALL).unwrap();
    let second = w.register(&memory, ALL).unwrap();
    assert_eq!(w.register(&memory, ALL).err(), Some(Errno::ENOMEM));
    assert_eq!(w.table.len(), 2);
    w.table.deregister(first.key, idle).unwrap();
    assert_eq!(w.table.deregister(first.key, idle), Err(Errno::EINVAL));
    assert_eq!(w.local(&first, first.addr, 8, false).err(), Some(Denied::Key));
    let third = w.register(&memory, ALL).unwrap();
    assert_eq!(third.key.0 >> 8, first.key.0 >> 8, "the only index left");
    assert_ne!(third.key, first.key);
    assert_eq!(w.local(&first, first.addr, 8, false).err(), Some(Denied::Key));
    assert!(w.table.region(second.key).is_some() && w.table.region(first.key).is_none());
}

#[test]
fn indices_rest_before_they_come_again() {
    let w = World::new(1 << 16);
    let memory = vec![0u8; 8];
    let mut seen = std::collections::HashSet::new();
    for _ in 0..RESTING {
        let mr = w.register(&memory, ALL).unwrap();
        assert!(mr.key.0 != 0 && seen.insert(mr.key.0 >> 8));
        w.table.deregister(mr.key, idle).unwrap();
    }
    for _ in 0..10 * RESTING {
        let mr = w.register(&memory, ALL).unwrap();
        w.table.deregister(mr.key, idle).unwrap();
    }
    assert!(w.table.state.lock().fresh as usize <= RESTING + 10);
}

#[test]
fn deregistration_waits_for_spans_and_peers() {
    let w = World::new(64);
    let memory = vec![0u8; 8];
    let mr = w.register(&memory, ALL).unwrap();
    let span = w.local(&mr, mr.addr, 8, true).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            w.table.deregister(mr.key, idle).unwrap();
            done.store(true, SeqCst);
        });
        while w.table.region(mr.key).is_some() {
            std::thread::yield_now();
        }
        assert!(!done.load(SeqCst), "somebody still copies");
        assert_eq!(w.local(&mr, mr.addr, 8, true).err(), Some(Denied::Key), "nobody begins anew");
        drop(span);
    });
    assert!(done.load(SeqCst));

    let mr = w.register(&memory, ALL).unwrap();
    let mut asked = 0;
    w.table.deregister(mr.key, |key| (asked += 1, key == mr.key && asked == 3).1).unwrap();
    assert_eq!(asked, 3);
}

#[test]
fn a_copy_that_never_ends_makes_deregistration_busy() {
    let w = World::new(64);
    let memory = vec![0u8; 8];
    let mr = w.register(&memory, ALL).unwrap();
    let span = w.local(&mr, mr.addr, 8, true).unwrap();
    assert_eq!(w.table.deregister(mr.key, idle), Err(Errno::EBUSY));
    drop(span);
    drop(w.local(&mr, mr.addr, 8, true).unwrap());
    w.table.deregister(mr.key, idle).unwrap();
}

#[test]
fn reregistration_changes_in_place_or_not_at_all() {
    let w = World::new(64);
    let (a, b) = (vec![0u8; 64], vec![0u8; 128]);
    let mr = w.register(&a, Access::empty()).unwrap();
    let other = w.pds.alloc().unwrap();
    let bad = Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() };
    assert_eq!(w.table.reregister(mr.key, bad, idle), Err(ReregError::Unchanged(Errno::EINVAL)));
    let bad = Rereg { translation: Some((16, 4)), ..Rereg::default() };
    assert_eq!(w.table.reregister(mr.key, bad, idle), Err(ReregError::Unchanged(Errno::EFAULT)));
    drop(w.local(&mr, mr.addr, 64, false).unwrap());
    let at = b.as_ptr() as u64;
    let change = Rereg { translation: Some((at, 128)), pd: Some(&other), access: Some(ALL) };
    let new = w.table.reregister(mr.key, change, idle).unwrap();
    assert_eq!((new.key, new.addr, new.length), (mr.key, at, 128));
    assert_eq!(w.local(&mr, at, 128, true).err(), Some(Denied::Domain));
    drop(w.table.remote(other.id(), QP, mr.key, at + 127, 1, Access::REMOTE_WRITE).unwrap());
    assert_eq!(w.pds.dealloc(&other), Err(Errno::EBUSY));
    w.pds.dealloc(&w.pd).unwrap();
}

#[test]
fn device_memory_is_named_from_zero() {
    let w = World::new(64);
    let pool = DmPool::new(1 << 20);
    let dm = pool.alloc(100, 0).unwrap();
    let access = ALL | Access::ZERO_BASED;
    assert_eq!(w.table.register_dm(&w.pd, &dm, 0, 100, ALL).err(), Some(Errno::EINVAL));
    assert_eq!(w.table.register_dm(&w.pd, &dm, 50, 51, access).err(), Some(Errno::EINVAL));
    let mr = w.table.register_dm(&w.pd, &dm, 50, 50, access).unwrap();
    w.local(&mr, 49, 1, true).unwrap().put(0, b"z").unwrap();
    let mut word = [0u8; 4];
    // SAFETY: four bytes into a local.
    unsafe { dm.copy_from(96, word.as_mut_ptr(), 4).unwrap() };
    assert_eq!(word, *b"\0\0\0z");
    assert_eq!(dm.free(), Err(Errno::EBUSY));
    w.table.deregister(mr.key, idle).unwrap();
    dm.free().unwrap();
}

#[test]
fn many_spans_at_once_are_all_waited_for() {
    let w = World::new(64);
    let memory = vec![0u8; 8];
    let mr = w.register(&memory, ALL).unwrap();
    let mut spans: Vec<_> = (0..50).map(|_| w.local(&mr, mr.addr, 8, true).unwrap()).collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| w.table.deregister(mr.key, idle));
        while let Some(span) = spans.pop() {
            assert!(!waiting.is_finished());
            drop(span);
        }
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn checks_race_with_registration_and_never_leak_a_count() {
    let w = World::new(3);
    let memory = vec![0u8; 64];
    let key = AtomicU32::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let key = Key(key.load(Relaxed));
                    if let Ok(span) = w.table.remote(w.pd.id(), QP, key, memory.as_ptr() as u64, 64, ALL) {
                        span.put(0, &[1; 64]).unwrap();
                    }
                }
            });
        }
        for _ in 0..20_000 {
            let mr = w.register(&memory, ALL).unwrap();
            key.store(mr.key.0, Relaxed);
            // A checker that is not scheduled keeps the region busy for as long.
            let gone = (0..60).any(|_| w.table.deregister(mr.key, idle).is_ok());
            if !gone {
                stop.store(true, Relaxed);
                panic!("a region stays busy");
            }
        }
        stop.store(true, Relaxed);
    });
    for index in 1..3 {
        assert_eq!(w.table.slot(index).users.load(Relaxed), 0);
    }
}

/// Runs `body` in a forked child, which must return true within ten seconds.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child leaves by _exit or by a signal.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            libc::_exit(if body() { 0 } else { 1 });
        }
        let mut status = 1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status == 0
    }
}

#[test]
fn a_forked_child_leaves_the_table_alone_and_has_its_own() {
    let w = World::new(64);
    let memory = vec![0u8; 8];
    let mr = w.register(&memory, ALL).unwrap();
    let span = w.local(&mr, mr.addr, 8, true).unwrap();
    assert!(in_child(
        || w.table.deregister(mr.key, idle) == Ok(()) && w.register(&memory, ALL) == Err(Errno::EIO)
    ));
    assert!(in_child(|| {
        // The parent's span is not the child's.
        let own = World::new(64);
        let mr = own.register(&memory, ALL).unwrap();
        let put = own.local(&mr, mr.addr, 8, true).unwrap().put(0, b"children");
        put.is_ok() && own.table.deregister(mr.key, idle) == Ok(())
    }));
    span.put(0, b"parent").unwrap();
    drop(span);
    assert_eq!(&memory, b"parent\0\0");
    w.table.deregister(mr.key, idle).unwrap();
}

#[test]
fn a_null_region_has_every_address_and_no_bytes() {
    let w = World::new(64);
    let mr = w.table.register_null(&w.pd).unwrap();
    for (addr, length) in [(0, 8), (0x1234, u32::MAX), (u64::MAX - 8, 8)] {
        let span = w.local(&mr, addr, length, true).unwrap();
        assert!(span.is_null() && span.len() == length as usize);
    }
    assert_eq!(w.table.remote(w.pd.id(), QP, mr.key, 0, 1, Access::empty()).err(), Some(Denied::Key));
    let mut seen = Vec::new();
    let sges = [Sge { addr: 77, length: 9000, lkey: mr.key }];
    let take = |run: crate::soft::mem::run::Run<'_>| {
        let mut bytes = vec![1; run.len()];
        crate::soft::mem::run::RunMut::of(&mut bytes).fill(run).map_err(|_| ())?;
        seen.extend(bytes);
        Ok::<(), ()>(())
    };
    crate::soft::mem::gather::pieces(&w.table, w.pd.id(), &sges, 1, 8999, (), take).unwrap();
    assert_eq!(seen, vec![0; 8999]);
    w.table.deregister(mr.key, idle).unwrap();
}

#[test]
fn files_are_registered_by_descriptor() {
    use std::os::fd::AsFd;
    let w = World::new(64);
    let page = page_size() as u64;
    let file = memfd::create(c"anyverbs-test", 3 * page as usize).unwrap();
    let register =
        |at, len, iova, access| w.table.register_file(&w.pd, file.as_fd(), (at, len), iova, access);
    let mr = register(page + 16, 100, 0x10_0010, ALL).unwrap();
    let span = w.table.remote(w.pd.id(), QP, mr.key, 0x10_0010, 100, Access::REMOTE_WRITE).unwrap();
    span.put(0, b"there").unwrap();
    assert!(span.persist());
    drop(span);
    let mut back = [0; 5];
    std::os::unix::fs::FileExt::read_exact_at(
        &std::fs::File::from(file.try_clone().unwrap()),
        &mut back,
        page + 16,
    )
    .unwrap();
    assert_eq!(&back, b"there");
    for (at, len, iova) in
        [(3 * page, 1, 0), (0, 3 * page + 1, 0), (16, 100, 17), (u64::MAX, 2, 0), (0, u64::MAX, 0)]
    {
        assert_eq!(register(at, len, iova, ALL).err(), Some(Errno::EINVAL), "{at} {len} {iova}");
    }
    let zero = register(16, 100, 5, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(zero.iova, 0);
    let pipe = std::io::pipe().unwrap();
    assert!(w.table.register_file(&w.pd, pipe.0.as_fd(), (0, 1), 0, ALL).is_err());
    w.table.deregister(mr.key, idle).unwrap();
    w.table.deregister(zero.key, idle).unwrap();
}

#[test]
fn a_held_region_gives_what_may_be_written_and_keeps_it() {
    let w = World::new(64);
    let memory = vec![0u8; 64];
    let mr = w.register(&memory, ALL).unwrap();
    let hold = w.table.hold(w.pd.id(), mr.key).unwrap();
    assert_eq!(hold.key(), mr.key);
    let room = |va, len| hold.run_mut(va, len).map(|mut run| (run.as_mut_ptr() as u64, run.len()));
    assert_eq!(room(mr.addr + 60, 4), Some((mr.addr + 60, 4)));
    assert_eq!(room(mr.addr + 61, 4), None);
    assert_eq!(room(mr.addr - 1, 4), None);
    assert_eq!(w.table.deregister(mr.key, idle), Err(Errno::EBUSY));
    drop(hold);
    let mr = w.register(&memory, ALL).unwrap();
    assert!(w.table.hold(w.pd.id(), Key(mr.key.0 ^ 1)).is_none());
    let other = w.pds.alloc().unwrap();
    assert!(w.table.hold(other.id(), mr.key).unwrap().run_mut(mr.addr, 1).is_none(), "another domain");
    w.table.deregister(mr.key, idle).unwrap();
    assert!(w.table.hold(w.pd.id(), mr.key).is_none());
    let mr = w.register(&memory, Access::REMOTE_READ).unwrap();
    assert!(w.table.hold(w.pd.id(), mr.key).unwrap().run_mut(mr.addr, 1).is_none(), "not for writing");
    let null = w.table.register_null(&w.pd).unwrap();
    assert!(w.table.hold(w.pd.id(), null.key).is_none(), "no bytes");
}
