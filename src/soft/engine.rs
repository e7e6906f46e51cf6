//! Who drives: threads that poll or post, else one progress thread that sleeps until a doorbell, a deadline or a packet.
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use super::node;
use crate::sys::clock;
use crate::sys::epoll::{self, Epoll};
use crate::sys::errno::Errno;

/// A thread that has found nothing this many times in a row yields the processor.
const YIELD_AFTER: u32 = 1000;
/// Deadlines are looked at once in this many empty polls.
const CLOCK_EVERY: u32 = 64;

thread_local! {
    static EMPTY_POLLS: Cell<u32> = const { Cell::new(0) };
}

/// Looks for work of the whole process once; true if there was any. Called with no lock held.
pub fn progress() -> bool {
    let Some(node) = node::existing() else { return false };
    let did = node.wires.poll(node);
    node.settle();
    did
}

/// `progress` for a thread whose poll found nothing.
#[inline]
pub fn progress_from_poll() -> bool {
    let did = progress();
    let empties = if did { 0 } else { EMPTY_POLLS.get() + 1 };
    EMPTY_POLLS.set(empties);
    if empties.is_multiple_of(CLOCK_EVERY) && empties > 0 {
        return linger(empties);
    }
    did
}

#[cold]
fn linger(empties: u32) -> bool {
    let Some(node) = node::existing() else { return false };
    let fired = node.timers.earliest() != u64::MAX && node.timers.fire(clock::now_ns());
    if empties >= YIELD_AFTER {
        std::thread::yield_now();
    }
    fired
}

/// Deadlines that have passed.
pub fn fire_timers() {
    if let Some(node) = node::existing()
        && node.timers.earliest() != u64::MAX
    {
        node.timers.fire(clock::now_ns());
    }
}

/// Adds the process's doorbells to a channel's epoll set.
pub fn watch(_channel: &Epoll) -> Result<(), Errno> {
    Ok(())
}

/// A CQ was armed: from now on peers ring for each message.
pub fn expect_doorbells() {}

/// Sleeps until `fd` is readable or `ready`.
pub fn wait_for(fd: RawFd, ready: impl Fn() -> bool) -> Result<(), Errno> {
    if ready() {
        return Ok(());
    }
    // SAFETY: the caller's object owns the descriptor and outlives the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    epoll::poll(fd.as_fd(), epoll::IN, -1);
    Ok(())
}
