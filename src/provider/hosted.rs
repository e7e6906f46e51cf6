//! Contexts of compiled providers: which of our views belongs to the `verbs_context` that a provider knows.
//!
//! A provider's `verbs_context` may begin later than ours would; both end with the same `ibv_context`.
use super::layout::Layout;
use crate::abi::{ibv_context, verbs_context};
use crate::sys::lock::Lock;

/// Addresses of contexts whose view begins elsewhere, and by how much earlier.
static SHIFTED: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());

/// Notes a context of this layout and gives its view.
pub fn add(theirs: *mut verbs_context, layout: &Layout) -> *mut verbs_context {
    let shift = layout.context_shift();
    if shift != 0 {
        SHIFTED.lock().push((theirs.addr(), shift));
    }
    theirs.wrapping_byte_sub(shift)
}

/// The view of a context as its provider knows it.
pub fn view(theirs: *mut verbs_context) -> *mut verbs_context {
    let shift = SHIFTED.lock().iter().find(|(address, _)| *address == theirs.addr()).map_or(0, |s| s.1);
    theirs.wrapping_byte_sub(shift)
}

/// Forgets a context; gives its view.
pub fn remove(theirs: *mut verbs_context) -> *mut verbs_context {
    let view = view(theirs);
    SHIFTED.lock().retain(|(address, _)| *address != theirs.addr());
    view
}

/// The `ibv_context` in a view.
pub fn context(view: *mut verbs_context) -> *mut ibv_context {
    view.wrapping_byte_add(std::mem::offset_of!(verbs_context, context)).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_context_has_an_earlier_view() {
        let memory = Box::into_raw(Box::new([0u64; 100]));
        let theirs: *mut verbs_context = memory.cast();
        let layout = Layout::of(34, 44).unwrap();
        let ours = add(theirs, &layout);
        assert_eq!(theirs.addr() - ours.addr(), 48);
        assert_eq!((view(theirs), remove(theirs), view(theirs)), (ours, ours, theirs));
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(memory) });
    }
}
