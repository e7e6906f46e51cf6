//! A kernel that answers by a script, in place of the one behind `command::issue`.
use crate::abi::{ib_uverbs_attr, ib_uverbs_cmd_hdr, ib_uverbs_ioctl_hdr};
use crate::sys::errno::Errno;
use std::cell::RefCell;
use std::ffi::c_void;

/// A command as it came.
pub enum Command<'a> {
    /// Object, method, and the attributes, which may be answered.
    Ioctl(u16, u16, &'a mut [ib_uverbs_attr]),
    /// Number with its flags, and the whole request.
    Write(u32, &'a [u8]),
}

type Script = Box<dyn FnMut(Command<'_>) -> Result<(), Errno>>;

thread_local! {
    static SCRIPT: RefCell<Option<Script>> = const { RefCell::new(None) };
}

/// Runs `f` while `script` answers this thread's commands.
pub fn with<R>(script: impl FnMut(Command<'_>) -> Result<(), Errno> + 'static, f: impl FnOnce() -> R) -> R {
    SCRIPT.set(Some(Box::new(script)));
    let result = f();
    SCRIPT.set(None);
    result
}

/// The attribute of this id, which must be there.
pub fn attr(attrs: &mut [ib_uverbs_attr], id: u16) -> &mut ib_uverbs_attr {
    attrs.iter_mut().find(|attr| attr.attr_id == id).expect("an attribute")
}

/// # Safety
/// As `issue::ioctl`.
pub unsafe fn ioctl(hdr: *mut ib_uverbs_ioctl_hdr) -> Option<Result<(), Errno>> {
    SCRIPT.with_borrow_mut(|script| {
        // SAFETY: the attributes lie behind the head, as many as it says.
        script.as_mut().map(|script| unsafe {
            let attrs = std::slice::from_raw_parts_mut(hdr.add(1).cast(), (*hdr).num_attrs.into());
            script(Command::Ioctl((*hdr).object_id, (*hdr).method_id, attrs))
        })
    })
}

/// # Safety
/// As `issue::write`.
pub unsafe fn write(request: *const c_void, len: usize) -> Option<Result<(), Errno>> {
    SCRIPT.with_borrow_mut(|script| {
        // SAFETY: a request is as long as it says and begins with its header.
        script.as_mut().map(|script| unsafe {
            let number = (*request.cast::<ib_uverbs_cmd_hdr>()).command;
            script(Command::Write(number, std::slice::from_raw_parts(request.cast(), len)))
        })
    })
}
