//! A mutex that a forked child may find held without harm: a few words, no global tables, no poisoning.
//!
//! It is held for a few hundred nanoseconds at most, so waiters spin, then yield, then nap; in return unlocking is a plain
//! store, which does not wait for the stores before it to reach the other CPU.
//!
//! A lock that one thread has taken many times in a row becomes that thread's own: it then takes it by plain stores and loads,
//! with no atomic operation, which would cost as much as all the rest of a short critical section. Another thread first
//! takes `word`, makes every CPU pass a barrier, waits until the owner is out, and ends the ownership. So either the owner sees
//! `word` held or the other one sees `inside`.
//!
//! A thread whose ownership was ended may find that out late, between reading `owner` and writing `inside`. So each word of
//! `inside` is a seat of one thread's, and gets another thread only once the first was seen to take the lock by `word`. Where all
//! seats are those of threads that do not come back, the lock has no owner any more.
use super::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};
use super::{annotate, barrier, thread, uncancelled};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Of a seat: its thread is about to look whether it may come in.
const AT_DOOR: u32 = 2;

/// Threads that may be, or not know yet that they are not, the owner. A power of two that divides every [`thread::id`]; looking
/// for the right one of two costs each SEND some nanoseconds.
const SEATS: usize = 1;

/// Looks at the word before a waiter yields, yields before it naps: the holder may have been preempted.
const SPINS: u32 = thread::SPINS;
const YIELDS_END: u32 = SPINS + 20;
/// Also lets a holder of lower real-time priority run.
const NAP: Duration = Duration::from_micros(50);
/// After it every store is seen by every CPU, where membarrier(2) was taken from a process that has owners already.
const LATEST_STORE: Duration = Duration::from_millis(10);

/// Times that a thread takes a lock in a row before it is its own; four times as many after each end of an ownership, up to
/// the second number, since ending one costs a system call.
const STREAK: u32 = barrier::STREAK;
const LONGEST_STREAK: u32 = 1 << 24;

/// A mutex. `lock_raw` and `unlock_raw` serve `ibv_wr_start`, whose critical section spans calls.
#[derive(Debug, Default)]
pub struct Lock<T> {
    /// HELD by who is not the owner.
    word: AtomicU32,
    /// Seats, of which one is HELD while the owner holds the lock. Written by their threads alone.
    inside: [AtomicU32; SEATS],
    /// The thread whose lock it is, by [`thread::id`] plus the number of its seat; 0: nobody's. Written with `word` held.
    owner: AtomicUsize,
    /// What only the holder reads and writes.
    history: UnsafeCell<History>,
    value: UnsafeCell<T>,
}

#[derive(Debug, Default)]
struct History {
    /// Who took `word` last, and how many times in a row.
    last: usize,
    streak: u32,
    /// The streak that makes an owner; 0 stands for `STREAK`.
    needed: u32,
    /// Whose the seats are; 0: nobody's.
    seats: [usize; SEATS],
}

// SAFETY: the lock admits one thread at a time to the value and the history.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns its value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Holds the lock until dropped.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            inside: [const { AtomicU32::new(FREE) }; SEATS],
            owner: AtomicUsize::new(0),
            history: UnsafeCell::new(History { last: 0, streak: 0, needed: 0, seats: [0; SEATS] }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_raw();
        Guard(self)
    }

    /// Takes the lock if nobody holds it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.enter_as_owner() {
            annotate::acquired(self.place());
            return Some(Guard(self));
        }
        self.try_lock_by_word()
    }

    /// `try_lock` of a thread that is not the owner.
    #[inline(never)]
    fn try_lock_by_word(&self) -> Option<Guard<'_, T>> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 && !self.try_disown(owner) {
            self.word.store(FREE, Ordering::Release);
            return None;
        }
        annotate::acquired(self.place());
        self.note();
        Some(Guard(self))
    }

    /// Waits for the lock and leaves it held when this returns.
    #[inline(always)]
    pub fn lock_raw(&self) {
        if self.enter_as_owner() {
            annotate::acquired(self.place());
            return;
        }
        self.lock_by_word();
    }

    /// `lock_raw` of a thread that is not the owner.
    #[inline(never)]
    fn lock_by_word(&self) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait_for(|| {
                self.word.load(Ordering::Relaxed) == FREE
                    && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            });
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 {
            let is_out = self.try_disown(owner);
            if !is_out {
                // The word keeps the owner from coming in again.
                wait_for(|| self.inside[owner & (SEATS - 1)].load(Ordering::Acquire) == FREE);
                self.try_disown(owner);
            }
        }
        annotate::acquired(self.place());
        self.note();
    }

    /// Somebody holds it or is about to: who has seen what the holder wrote before finds it held, until it is free again.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        let held = |word: &AtomicU32| word.load(Ordering::Relaxed) != FREE;
        held(&self.word) || self.inside.iter().any(held)
    }

    /// Waits until nobody holds it, for a moment at least.
    #[cold]
    pub fn wait_until_free(&self) {
        wait_for(|| !self.is_busy());
    }

    /// Names the lock to checkers.
    #[inline(always)]
    fn place(&self) -> usize {
        std::ptr::from_ref(&self.word) as usize
    }

    /// Ends what `lock_raw` began.
    ///
    /// # Safety
    /// The caller holds the lock by `lock_raw`, and no reference to the value outlives this call.
    #[inline]
    pub unsafe fn unlock_raw(&self) {
        annotate::released(self.place());
        let seat = self.inside.iter().find(|seat| seat.load(Ordering::Relaxed) == HELD);
        seat.unwrap_or(&self.word).store(FREE, Ordering::Release);
    }

    /// The value, for the thread between `lock_raw` and `unlock_raw`.
    ///
    /// # Safety
    /// The caller holds the lock by `lock_raw` and has no other reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller promises to hold the lock.
        unsafe { &mut *self.value.get() }
    }

    /// Takes the lock if it is this thread's own and nobody else is at it.
    #[inline(always)]
    fn enter_as_owner(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        self.seat(owner).is_some_and(|seat| self.go_in(owner, seat))
    }

    /// The seat of the calling thread if that is `owner`.
    #[inline(always)]
    fn seat(&self, owner: usize) -> Option<&AtomicU32> {
        self.inside.get(owner ^ thread::id())
    }

    /// Takes the lock if `owner`, whose seat this is, is it still, and nobody else is at it.
    #[inline(always)]
    fn go_in(&self, owner: usize, seat: &AtomicU32) -> bool {
        // Another thread may have ended what this one began.
        if seat.load(Ordering::Acquire) != FREE {
            return false;
        }
        seat.store(AT_DOOR, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // `word` before `owner`: who ends the ownership does so before freeing the word.
        if self.word.load(Ordering::Acquire) == FREE && self.owner.load(Ordering::Relaxed) == owner {
            seat.store(HELD, Ordering::Relaxed);
            return true;
        }
        seat.store(FREE, Ordering::Release);
        false
    }

    /// The caller has just taken `word`, and there is no other owner inside: perhaps it becomes the owner.
    #[inline]
    fn note(&self) {
        let me = thread::id();
        // SAFETY: the lock is held.
        let history = unsafe { &mut *self.history.get() };
        if history.last != me {
            (history.last, history.streak) = (me, 0);
            if self.seat(self.owner.load(Ordering::Relaxed)).is_none() {
                // It knows now that it is not the owner.
                history.seats.iter_mut().filter(|seat| **seat == me).for_each(|seat| *seat = 0);
            }
        }
        history.streak += 1;
        if history.streak >= history.needed.max(STREAK) {
            history.streak = 0;
            if barrier::is_available() && me != thread::UNKNOWN {
                let seat_of = |who| history.seats.iter().position(|seat| *seat == who);
                if let Some(number) = seat_of(me).or_else(|| seat_of(0)) {
                    history.seats[number] = me;
                    self.owner.store(me + number, Ordering::Relaxed);
                }
            }
        }
    }

    /// Ends the ownership of another thread; false while the owner is inside. The caller has taken `word`.
    #[cold]
    fn try_disown(&self, owner: usize) -> bool {
        let is_other = self.seat(owner).is_none();
        if is_other && !barrier::everywhere() {
            uncancelled::nap(LATEST_STORE);
        }
        let seat = &self.inside[owner & (SEATS - 1)];
        // It is about to see that `word` is held: of two threads that only try, one gets the lock.
        (0..YIELDS_END).take_while(|_| seat.load(Ordering::Acquire) == AT_DOOR).for_each(pause);
        if seat.load(Ordering::Acquire) != FREE {
            return false;
        }
        if is_other {
            // SAFETY: the caller has `word` and the owner is out and cannot come in, so the lock is held.
            let history = unsafe { &mut *self.history.get() };
            history.needed = (history.needed.max(STREAK) * 4).min(LONGEST_STREAK);
            self.owner.store(0, Ordering::Relaxed);
        }
        true
    }
}

/// Waits until `ready`: for a moment on the CPU, then yielding it, then sleeping in between.
#[cold]
pub(super) fn wait_for(ready: impl Fn() -> bool) {
    for round in 0u32.. {
        if ready() {
            return;
        }
        pause(round);
    }
}

fn pause(round: u32) {
    match round {
        0..SPINS => thread::spin_loop(),
        SPINS..YIELDS_END => thread::yield_now(),
        _ => uncancelled::nap(NAP),
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock, and its borrows end with it.
        unsafe { self.0.unlock_raw() }
    }
}

/// A value that a lock elsewhere guards beside its own: two that are always taken together need one lock.
#[derive(Debug, Default)]
pub struct Beside<T>(UnsafeCell<T>);

// SAFETY: the lock that guards it admits one thread at a time.
unsafe impl<T: Send> Sync for Beside<T> {}

impl<T> Beside<T> {
    /// The value, while `_guard` is held.
    ///
    /// # Safety
    /// The guard is always that of the same lock and outlives the reference, beside which no other to the value lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn with<U>(&self, _guard: &Guard<'_, U>) -> &mut T {
        // SAFETY: the caller holds the lock that guards it.
        unsafe { &mut *self.0.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_other_threads() {
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn excludes_other_threads_when_it_has_an_owner() {
        assert!(barrier::prepare(), "membarrier(2) is needed to see ownership change");
        let lock = Lock::new(0u64);
        let (mut all, ends) = (0, AtomicU32::new(0));
        for round in 0..40 {
            for _ in 0..(STREAK << (2 * round).min(12)) + 1 {
                *lock.lock() += 1;
                all += 1;
            }
            std::thread::scope(|s| {
                for waits in [true, false] {
                    let (lock, ends) = (&lock, &ends);
                    s.spawn(move || {
                        for _ in 0..500 {
                            let before = lock.owner.load(Ordering::Relaxed);
                            let mut held = match waits {
                                true => lock.lock(),
                                false => loop {
                                    if let Some(held) = lock.try_lock() {
                                        break held;
                                    }
                                },
                            };
                            let seen = *held;
                            std::hint::spin_loop();
                            *held = seen + 1;
                            drop(held);
                            if before != 0 && before != lock.owner.load(Ordering::Relaxed) {
                                ends.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
                for _ in 0..2000 {
                    *lock.lock() += 1;
                }
            });
            all += 3000;
        }
        assert_eq!(*lock.lock(), all);
        assert!(ends.load(Ordering::Relaxed) > 0, "no ownership was ended");
    }

    impl<T> Lock<T> {
        fn is_mine(&self) -> bool {
            self.seat(self.owner.load(Ordering::Relaxed)).is_some()
        }

        fn make_mine(&self) {
            for _ in 0..64 * STREAK {
                drop(self.lock());
                if self.is_mine() {
                    return;
                }
            }
            panic!("it does not become this thread's own");
        }
    }

    #[test]
    fn a_former_owner_that_learns_it_late_does_not_let_others_in() {
        assert!(barrier::prepare(), "membarrier(2) is needed to see ownership change");
        for _ in 0..4 {
            let lock = Lock::new(());
            lock.make_mine();
            // Interrupted between reading `owner` and writing `inside`.
            let owner = lock.owner.load(Ordering::Relaxed);
            let seat = lock.seat(owner).unwrap();
            let (ready, over) = (&std::sync::Barrier::new(2), &std::sync::Barrier::new(2));
            std::thread::scope(|s| {
                let lock = &lock;
                s.spawn(move || {
                    // More than enough to own it, were it not for the seat.
                    (0..16 * STREAK).for_each(|_| drop(lock.lock()));
                    let guard = lock.lock();
                    ready.wait();
                    over.wait();
                    drop(guard);
                });
                ready.wait();
                let came_in = lock.go_in(owner, seat);
                let others = s.spawn(|| lock.try_lock().is_some()).join().unwrap();
                let tried = lock.try_lock().is_some();
                over.wait();
                assert!(!came_in && !others && !tried, "two hold the lock: {came_in} {others} {tried}");
            });
        }
    }

    #[test]
    fn a_thread_whose_ownership_was_ended_leaves_it_to_others_once_it_comes_back() {
        assert!(barrier::prepare(), "membarrier(2) is needed to see ownership change");
        let lock = Lock::new(());
        lock.make_mine();
        std::thread::scope(|s| {
            let others = || (0..16 * STREAK).for_each(|_| drop(lock.lock()));
            s.spawn(others).join().unwrap();
            assert_eq!(lock.owner.load(Ordering::Relaxed), 0);
            drop(lock.lock());
            s.spawn(|| lock.make_mine()).join().unwrap();
        });
    }

    #[test]
    fn another_thread_may_end_what_the_owner_began() {
        barrier::prepare();
        let lock = Lock::new(0);
        lock.make_mine();
        for round in 0..3 {
            lock.lock_raw();
            std::thread::scope(|s| {
                s.spawn(|| {
                    // SAFETY: the lock is held, and the thread that took it waits for this one.
                    unsafe {
                        *lock.held() += 1;
                        lock.unlock_raw();
                    }
                });
            });
            assert_eq!(*lock.try_lock().unwrap(), round + 1);
        }
    }

    #[test]
    fn of_two_threads_that_only_try_one_gets_it() {
        assert!(barrier::prepare(), "membarrier(2) is needed to see ownership change");
        let lock = Lock::new(());
        lock.make_mine();
        // At the door, where it sees that another thread is trying.
        let owner = lock.owner.load(Ordering::Relaxed);
        let seat = lock.seat(owner).unwrap();
        seat.store(AT_DOOR, Ordering::Relaxed);
        std::thread::scope(|s| {
            let other = s.spawn(|| lock.try_lock().is_some());
            wait_for(|| lock.word.load(Ordering::Relaxed) == HELD || other.is_finished());
            seat.store(FREE, Ordering::Release);
            // Otherwise it had given up by then, and the owner would have got in.
            assert!(other.join().unwrap() || lock.try_lock().is_some());
        });
    }

    #[test]
    fn an_owner_neither_enters_twice_nor_keeps_others_out() {
        barrier::prepare();
        let lock = Lock::new(());
        for _ in 0..2 * STREAK {
            drop(lock.lock());
        }
        assert!(lock.is_mine());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        std::thread::scope(|s| s.spawn(|| assert!(lock.try_lock().is_none())).join().unwrap());
        drop(guard);
        std::thread::scope(|s| s.spawn(|| assert!(lock.try_lock().is_some())).join().unwrap());
        assert_eq!(lock.owner.load(Ordering::Relaxed), 0);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn try_lock_fails_while_held() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "a failed try releases nothing");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
