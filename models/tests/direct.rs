//! What peers read of this process without asking: entries that are whole, and hazards that keep memory from going.
use anyverbs_models::soft::link::shm::qp_entry::{QpEntry, QpView};
use anyverbs_models::soft::mem::{self, InFile, MrEntry, PdId, Region, Scope};
use anyverbs_models::soft::types::{Access, Key, QpState, QpType};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use std::sync::Arc;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(test);
}

fn region(n: u32) -> Region {
    let word = u64::from(n) << 32;
    let (key, pd) = (Key(n), PdId(n));
    Region {
        key,
        pd,
        access: Access::empty(),
        start: word,
        iova: word + 1,
        length: word + 2,
        scope: Scope::Region,
        file: InFile::default(),
    }
}

#[test]
fn an_entry_is_read_whole_or_not_at_all() {
    model(2, || {
        let entry = Arc::new(MrEntry::default());
        mem::write(&entry, &region(1));
        let others = entry.clone();
        let reader = thread::spawn(move || others.snapshot());
        mem::write(&entry, &region(2));
        let seen = reader.join().unwrap();
        assert!(seen.is_none_or(|seen| seen == region(1) || seen == region(2)), "{seen:?}");
    });
}

#[test]
fn a_queue_pair_is_read_whole_or_not_at_all() {
    let view = |n: u32| QpView {
        state: Some(if n == 1 { QpState::Rtr } else { QpState::Rts }),
        kind: Some(QpType::Rc),
        pd: n,
        access: Access::from_bits_retain(n),
        peer_qpn: n,
        peer_nonce: n.into(),
        is_shared: n == 2,
    };
    model(2, move || {
        let entry = Arc::new(QpEntry::default());
        entry.write(&view(1));
        let others = entry.clone();
        let reader = thread::spawn(move || others.snapshot());
        entry.write(&view(2));
        let seen = reader.join().unwrap();
        assert!(seen.is_none_or(|seen| seen == view(1) || seen == view(2)), "{seen:?}");
    });
}

const OWNER: u64 = 7;

/// As `Own::announce` and `direct::access` on one side, `MemTable`'s withdrawal and `direct::wait` on the other.
#[test]
fn memory_does_not_go_while_it_is_accessed() {
    model(3, || {
        let entry = Arc::new(MrEntry::default());
        let (used, hazard) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let memory = loom::sync::Arc::new(UnsafeCell::new(1u32));
        mem::write(&entry, &region(1));
        let (others, announced, word, bytes) = (entry.clone(), used.clone(), hazard.clone(), memory.clone());
        let initiator = thread::spawn(move || {
            if word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                return;
            }
            if announced.load(Ordering::Relaxed) == 0 {
                announced.fetch_max(1, Ordering::SeqCst);
            }
            word.store(OWNER, Ordering::Release);
            fence(Ordering::SeqCst);
            if others.snapshot().is_some() {
                // SAFETY: the region is registered while the hazard is announced, which is what is tested.
                bytes.with(|n| assert_eq!(unsafe { *n }, 1));
            }
            word.store(0, Ordering::Release);
        });
        mem::set_key(&entry, Key(0));
        while used.load(Ordering::Acquire) > 0 && hazard.load(Ordering::Acquire) == OWNER {
            thread::yield_now();
        }
        // SAFETY: nobody accesses it any more.
        memory.with_mut(|n| unsafe { *n = 0 });
        initiator.join().unwrap();
    });
}
