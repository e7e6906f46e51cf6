//! A lock that becomes one thread's own and is taken from it again.
use anyverbs_models::sys::lock::Lock;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(test);
}

/// loom finds out if two threads are at it at a time.
fn enter(value: &UnsafeCell<u32>) {
    // SAFETY: the lock is held, which is what is tested.
    value.with_mut(|n| unsafe { *n += 1 });
}

/// A lock that is the calling thread's own, as far as it goes.
fn owned() -> Arc<Lock<UnsafeCell<u32>>> {
    let lock = Arc::new(Lock::new(UnsafeCell::new(0)));
    (0..3).for_each(|_| enter(&lock.lock()));
    lock
}

#[test]
fn another_thread_and_the_owner_exclude_each_other() {
    model(3, || {
        let lock = owned();
        let others = lock.clone();
        let other = thread::spawn(move || enter(&others.lock()));
        enter(&lock.lock());
        enter(&lock.lock());
        other.join().unwrap();
        // SAFETY: nobody else is left.
        assert_eq!(lock.lock().with(|n| unsafe { *n }), 6);
    });
}

#[test]
fn who_only_tries_and_the_owner_exclude_each_other() {
    model(3, || {
        let lock = owned();
        let others = lock.clone();
        let other = thread::spawn(move || {
            if let Some(held) = others.try_lock() {
                enter(&held);
            }
        });
        if let Some(held) = lock.try_lock() {
            enter(&held);
        }
        other.join().unwrap();
        assert!(lock.try_lock().is_some());
    });
}

/// A third thread may become the owner while the first has not noticed that it is none any more.
#[test]
fn a_new_owner_and_the_old_one_exclude_each_other() {
    model(2, || {
        let lock = owned();
        let others = lock.clone();
        let other = thread::spawn(move || (0..3).for_each(|_| enter(&others.lock())));
        enter(&lock.lock());
        other.join().unwrap();
        // SAFETY: nobody else is left.
        assert_eq!(lock.lock().with(|n| unsafe { *n }), 7);
    });
}
