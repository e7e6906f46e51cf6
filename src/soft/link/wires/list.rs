//! The list of wires as polling threads see it: a copy each, and looks into all rings at once.
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Wire, Wires};
use crate::sys::random;

/// Looks into rings in one poll that finds nothing.
const LOOKS: usize = 32;

/// All wires at some moment.
pub(super) type List = Arc<[Arc<Wire>]>;

thread_local! {
    static MY_LIST: Cell<Option<(u64, List)>> = const { Cell::new(None) };
}

/// A first version that no list of this process, or of the one it was forked from, has had.
pub(super) fn next_version() -> u64 {
    random::u64() | 1
}

/// Calls `with` on this thread's copy of the list, which costs no atomic operation while the list stays the same.
#[inline]
pub(super) fn with_list(wires: &Wires, with: impl Fn(&[Arc<Wire>]) -> bool) -> bool {
    MY_LIST
        .try_with(|mine| {
            let now = wires.version.load(Ordering::Acquire);
            // Taken out meanwhile: what runs below may come here again.
            let (version, list) = match mine.take() {
                Some(mine) if mine.0 == now => mine,
                _ => (now, wires.list()),
            };
            let did = with(&list);
            mine.set(Some((version, list)));
            did
        })
        .unwrap_or(false)
}

/// What `watch` saw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// Something that had come before the first look: more may follow.
    AtOnce,
    /// Something that has just come, or may have.
    Later,
}

/// Looks into the rings for some tens of nanoseconds. Coming here and going takes longer than a look, and what arrives
/// meanwhile would wait for the next caller.
#[inline]
pub(super) fn watch(list: &[Arc<Wire>]) -> Found {
    let ready = || list.iter().any(|w| w.peer.rx_ready());
    if ready() {
        return Found::AtOnce;
    }
    for _ in 1..LOOKS.checked_div(list.len()).unwrap_or(0) {
        if ready() {
            return Found::Later;
        }
    }
    Found::Nothing
}
