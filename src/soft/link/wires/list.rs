//! The list of wires as polling threads see it: a copy each, and looks into all rings at once.
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Wire, Wires};
use crate::sys::random;

/// Looks into rings in one poll that finds nothing.
const LOOKS: usize = 32;

/// All wires at some moment.
pub(super) type List = Arc<[Arc<Wire>]>;

/// What a thread that looks for work keeps for itself, in one place, since it costs a call to find it.
#[derive(Debug, Default)]
pub struct Looker {
    /// Its copy of the list, and which version that is.
    list: RefCell<Option<(u64, List)>>,
    /// Looks for work, and those of them in a row that found none.
    pub counts: Cell<(u32, u32)>,
}

thread_local! {
    static MINE: Looker = const { Looker { list: RefCell::new(None), counts: Cell::new((0, 0)) } };
}

/// Calls `with` on what this thread keeps.
#[inline(always)]
pub fn as_looker<R>(with: impl FnOnce(&Looker) -> R) -> R {
    let mut with = Some(with);
    let mut run = |mine: &Looker| with.take().map(|with| with(mine));
    let ran = MINE.try_with(&mut run).ok().flatten();
    match ran.or_else(|| run(&Looker::default())) {
        Some(ran) => ran,
        None => unreachable!("it has run once"),
    }
}

/// A first version that no list of this process, or of the one it was forked from, has had.
pub(super) fn next_version() -> u64 {
    random::u64() | 1
}

/// Calls `with` on this thread's copy of the list, which costs no atomic operation while the list stays the same.
#[inline(always)]
pub(super) fn with_list(wires: &Wires, mine: &Looker, with: impl FnOnce(&[Arc<Wire>]) -> bool) -> bool {
    let now = wires.version.load(Ordering::Acquire);
    if !mine.list.try_borrow().is_ok_and(|list| list.as_ref().is_some_and(|(version, _)| *version == now)) {
        renew(wires, mine, now);
    }
    mine.list.try_borrow().is_ok_and(|list| list.as_ref().is_some_and(|(_, list)| with(list)))
}

#[cold]
fn renew(wires: &Wires, mine: &Looker, now: u64) {
    // Borrowed where a look leads to another one, which then goes by the old list.
    if let Ok(mut list) = mine.list.try_borrow_mut() {
        *list = Some((now, wires.list()));
    }
}

/// Looks again into the rings, which were empty, for some tens of nanoseconds; true if something has come. Coming here and going takes
/// longer than a look, and what arrives meanwhile would wait for the next caller.
#[inline(always)]
pub(super) fn watch(list: &[Arc<Wire>]) -> bool {
    (1..LOOKS.checked_div(list.len()).unwrap_or(0)).any(|_| list.iter().any(|w| w.peer.rx_ready()))
}
