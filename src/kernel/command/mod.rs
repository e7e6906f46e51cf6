//! Commands to the kernel: by ioctl where it has the method, by write() where it has not.
//!
//! Each command is one function, named as compiled providers know it (`ibv_cmd_*`), which our own providers call as well.
//! A request that a provider hands in is `{header, core, provider's tail}` and its answer `{core, provider's tail}`. An ioctl
//! sends the core as attributes and the tails as UHW_IN and UHW_OUT; a write sends the request as it is. All return 0 or
//! a positive errno value, which errno holds as well.
pub mod context;
pub mod counter;
pub mod cq;
pub mod device;
pub mod domains;
pub mod fill;
pub mod flow;
pub mod issue;
pub mod linked;
pub mod mr;
pub mod mr_ex;
pub mod post;
pub mod qp;
pub mod qp_attr;
pub mod srq;
#[cfg(test)]
mod tests;
pub mod wq;
pub mod write;

use crate::abi::*;
use crate::provider::context as library;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// Kinds of objects (`enum uverbs_default_objects`).
pub mod object {
    #![allow(missing_docs)]
    pub const DEVICE: u16 = 0;
    pub const PD: u16 = 1;
    pub const CQ: u16 = 3;
    pub const QP: u16 = 4;
    pub const SRQ: u16 = 5;
    pub const AH: u16 = 6;
    pub const MR: u16 = 7;
    pub const MW: u16 = 8;
    pub const FLOW: u16 = 9;
    pub const XRCD: u16 = 10;
    pub const RWQ_IND_TBL: u16 = 11;
    pub const WQ: u16 = 12;
    pub const FLOW_ACTION: u16 = 13;
    pub const DM: u16 = 14;
    pub const COUNTERS: u16 = 15;
    pub const ASYNC_EVENT: u16 = 16;
    pub const DMAH: u16 = 17;
    pub const DMABUF: u16 = 18;
    pub const COMP_CNTR: u16 = 19;
}

/// The provider's tail of a request.
const UHW_IN: u16 = 0x1000;
/// The provider's tail of an answer.
const UHW_OUT: u16 = 0x1001;

const MANDATORY: u16 = 1;

/// Most attributes of a command: ours and those linked to it.
const MAX_ATTRS: usize = 48;

/// What the kernel reads: head and attributes in one piece. Only the attributes in use are written: most commands have few.
#[repr(C)]
struct Message {
    hdr: ib_uverbs_ioctl_hdr,
    attrs: [MaybeUninit<ib_uverbs_attr>; MAX_ATTRS],
}

/// A command by ioctl, built attribute by attribute. Pointers that it holds must stay valid until it is sent.
pub struct Ioctl {
    message: Message,
    used: usize,
    link: *mut ibv_command_buffer,
}

/// What became of a command by ioctl that may also be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is done.
    Done,
    /// The kernel does not have this method.
    Write,
}

impl Ioctl {
    /// An empty command.
    #[inline]
    pub fn new(object: u16, method: u16) -> Self {
        let mut hdr = ib_uverbs_ioctl_hdr::zeroed();
        (hdr.object_id, hdr.method_id) = (object, method);
        // In one piece, so that nothing is copied.
        Self {
            message: Message { hdr, attrs: [const { MaybeUninit::uninit() }; MAX_ATTRS] },
            used: 0,
            link: ptr::null_mut(),
        }
    }

    /// An attribute that is in use.
    fn attr(&mut self, at: usize) -> Option<&mut ib_uverbs_attr> {
        if at >= self.used {
            return None;
        }
        // SAFETY: `push` wrote it when it came into use.
        self.message.attrs.get_mut(at).map(|attr| unsafe { attr.assume_init_mut() })
    }

    /// The one that was pushed last.
    fn last(&mut self) -> Option<&mut ib_uverbs_attr> {
        self.used.checked_sub(1).and_then(|at| self.attr(at))
    }

    fn push(&mut self, attr_id: u16, len: usize, data: u64) -> usize {
        let at = self.used;
        if let Some(attr) = self.message.attrs.get_mut(at) {
            attr.write(ib_uverbs_attr { attr_id, len: len as u16, flags: MANDATORY, attr_data: 0, data });
        }
        // One beyond the room is refused when the command is sent.
        self.used += 1;
        at
    }

    /// A handle that the kernel makes; `handle_at` tells it afterwards.
    pub fn new_handle(&mut self, attr: u16) -> usize {
        self.push(attr, 0, 0)
    }

    /// An object by its handle.
    pub fn handle(&mut self, attr: u16, handle: u32) {
        self.push(attr, 0, handle.into());
    }

    /// An object by its descriptor.
    pub fn fd(&mut self, attr: u16, fd: c_int) {
        self.push(attr, 0, fd as i64 as u64);
    }

    /// A value of one to eight bytes, inline.
    pub fn value<T: Into<u64>>(&mut self, attr: u16, value: T) {
        let value = value.into();
        // Inline data begins with the first byte in memory.
        let mut bytes = [0u8; 8];
        let size = size_of::<T>();
        if cfg!(target_endian = "little") {
            bytes = value.to_le_bytes();
        } else {
            bytes[..size].copy_from_slice(&value.to_be_bytes()[8 - size..]);
        }
        self.push(attr, size, u64::from_ne_bytes(bytes));
    }

    /// A constant of the interface: always eight bytes.
    pub fn constant(&mut self, attr: u16, value: u64) {
        self.value(attr, value);
    }

    /// `len` bytes that the kernel reads; inline where they are eight at most.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes until the command is sent.
    pub unsafe fn bytes_in(&mut self, attr: u16, from: *const c_void, len: usize) {
        if len > usize::from(u16::MAX) {
            self.used = MAX_ATTRS + 1;
        } else if len <= 8 {
            let mut inline = 0u64;
            // SAFETY: at most eight bytes, which the caller vouches for.
            unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut inline).cast(), len) };
            self.push(attr, len, inline);
        } else {
            self.push(attr, len, from.expose_provenance() as u64);
        }
    }

    /// `len` bytes that the kernel writes.
    pub fn bytes_out(&mut self, attr: u16, to: *mut c_void, len: usize) -> usize {
        if len > usize::from(u16::MAX) {
            self.used = MAX_ATTRS + 1;
            return MAX_ATTRS;
        }
        self.push(attr, len, to.expose_provenance() as u64)
    }

    /// Says which of its forms the last attribute has.
    pub fn chosen(&mut self, form: u32) {
        if let Some(attr) = self.last() {
            attr.attr_data = u16::from_ne_bytes([form as u8, 0]);
        }
    }

    /// A whole value that the kernel writes.
    pub fn out<T>(&mut self, attr: u16, to: &mut T) -> usize {
        self.bytes_out(attr, ptr::from_mut(to).cast(), size_of::<T>())
    }

    /// The last attribute may be unknown to the kernel.
    pub fn optional(&mut self) {
        if let Some(attr) = self.last() {
            attr.flags &= !MANDATORY;
        }
    }

    /// The provider's tails, where there are any.
    ///
    /// # Safety
    /// Both must be valid for their lengths until the command is sent.
    pub unsafe fn tails(&mut self, request: Tail, answer: Tail) {
        // SAFETY: the caller vouches for both.
        unsafe {
            if request.len > 0 {
                self.bytes_in(UHW_IN, request.at, request.len);
            }
            if answer.len > 0 {
                self.bytes_out(UHW_OUT, answer.at, answer.len);
            }
        }
    }

    /// Attributes of a provider's own, sent behind ours.
    pub fn link(&mut self, buffer: *mut ibv_command_buffer) {
        self.link = buffer;
    }

    /// The handle or descriptor that the kernel put into a place.
    pub fn handle_at(&mut self, place: usize) -> u32 {
        self.attr(place).map_or(0, |attr| attr.data as u32)
    }

    /// Sends the command.
    ///
    /// # Errors
    /// The kernel's; EINVAL for a command that has no room for its attributes.
    ///
    /// # Safety
    /// `ctx` must be an open context of the kernel's, and all that was given to the command still valid.
    pub unsafe fn send(&mut self, ctx: *mut ibv_context) -> Result<(), Errno> {
        let own = self.used;
        if own > MAX_ATTRS {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller vouches for the context; linked buffers are the provider's and live during its call.
        unsafe {
            let mut total = own;
            if !self.link.is_null() {
                total += linked::collect(self.link, zeroed(&mut self.message.attrs[own..]))?;
            }
            let hdr = &mut self.message.hdr;
            hdr.num_attrs = total as u16;
            hdr.length = (size_of::<ib_uverbs_ioctl_hdr>() + total * size_of::<ib_uverbs_attr>()) as u16;
            hdr.driver_id = (*library::private(ctx)).ex.driver_id;
            let sent = issue::ioctl((*ctx).cmd_fd, (&raw mut self.message).cast());
            if sent.is_ok() && !self.link.is_null() {
                // Written by `collect`.
                let theirs = self.message.attrs[own..total].as_ptr().cast();
                linked::give_back(self.link, std::slice::from_raw_parts(theirs, total - own));
            }
            sent
        }
    }

    /// The same where a written command may take its place: remembers for this context which methods the kernel lacks.
    ///
    /// # Errors
    /// As `send`, but for ENOTTY and EPROTONOSUPPORT.
    ///
    /// # Safety
    /// As `send`.
    pub unsafe fn try_send(&mut self, ctx: *mut ibv_context) -> Result<Way, Errno> {
        let (object, method) = (self.message.hdr.object_id, self.message.hdr.method_id);
        // SAFETY: the caller vouches for the context.
        unsafe {
            if lacks(ctx, object, method) {
                return Ok(Way::Write);
            }
            match self.send(ctx) {
                Ok(()) => Ok(Way::Done),
                Err(Errno(libc::ENOTTY)) => {
                    (*library::private(ctx)).ex.unsupported_ioctls = [u64::MAX; 2];
                    Ok(Way::Write)
                }
                Err(Errno(libc::EPROTONOSUPPORT)) => {
                    remember_lack(ctx, object, method);
                    Ok(Way::Write)
                }
                Err(e) => Err(e),
            }
        }
    }

    /// The same where nothing can take its place.
    ///
    /// # Errors
    /// As `send`; EOPNOTSUPP where the kernel does not have the method.
    ///
    /// # Safety
    /// As `send`.
    pub unsafe fn send_only(&mut self, ctx: *mut ibv_context) -> Result<(), Errno> {
        // SAFETY: the caller's promises are this function's.
        match unsafe { self.try_send(ctx) }? {
            Way::Done => Ok(()),
            Way::Write => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Room for attributes that are copied in.
fn zeroed(room: &mut [MaybeUninit<ib_uverbs_attr>]) -> &mut [ib_uverbs_attr] {
    for attr in room.iter_mut() {
        attr.write(ib_uverbs_attr { attr_id: 0, len: 0, flags: 0, attr_data: 0, data: 0 });
    }
    let len = room.len();
    // SAFETY: all of them were written just now.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), len) }
}

/// The bit that stands for a method: six methods an object; the device's later ones are not remembered.
fn bit_of(object: u16, method: u16) -> Option<(usize, u64)> {
    let bit = usize::from(object) * 6 + usize::from(method);
    (method < 6 && bit < 128).then(|| (bit / 64, 1 << (bit % 64)))
}

/// # Safety
/// `ctx` must be live.
unsafe fn lacks(ctx: *mut ibv_context, object: u16, method: u16) -> bool {
    // SAFETY: the caller vouches for the context.
    let lacking = unsafe { (*library::private(ctx)).ex.unsupported_ioctls };
    lacking == [u64::MAX; 2] || bit_of(object, method).is_some_and(|(word, bit)| lacking[word] & bit != 0)
}

/// # Safety
/// `ctx` must be live.
unsafe fn remember_lack(ctx: *mut ibv_context, object: u16, method: u16) {
    if let Some((word, bit)) = bit_of(object, method) {
        // SAFETY: the caller vouches for the context. Two threads at once cost at most one more try.
        unsafe { (*library::private(ctx)).ex.unsupported_ioctls[word] |= bit };
    }
}

/// Bytes behind the core of a request or an answer.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    at: *mut c_void,
    len: usize,
}

impl Tail {
    /// What lies behind `core` bytes of a whole of `size`; nothing where that is less.
    pub fn behind<T>(whole: *mut T, core: usize, size: usize) -> Self {
        if whole.is_null() || size <= core {
            return Self { at: ptr::null_mut(), len: 0 };
        }
        Self { at: whole.wrapping_byte_add(core).cast(), len: size - core }
    }
}

/// Fills the core of a provider's answer as the kernel would by write(), as far as the provider gave room.
///
/// # Safety
/// `answer` must be null or valid for `size` bytes.
pub unsafe fn answer<T: Copy>(answer: *mut T, size: usize, value: T) {
    if !answer.is_null() && size >= size_of::<T>() {
        // SAFETY: room was just checked; the provider's struct is aligned as the kernel's.
        unsafe { answer.write(value) };
    }
}

/// How C learns of it: 0, or a positive errno value that errno holds as well.
pub fn code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => {
            e.store();
            e.0
        }
    }
}

/// The address that the kernel hands back with events of an object.
pub fn user_handle<T>(object: *mut T) -> u64 {
    object.expose_provenance() as u64
}

/// A destroy whose failure counts as success: the device is gone, and `RDMAV_ALLOW_DISASSOC_DESTROY` says that this will do.
pub fn forgive(e: Errno) -> Result<(), Errno> {
    if e == Errno::EIO && crate::provider::disassociate::allowed() { Ok(()) } else { Err(e) }
}

/// A method that destroys one object and answers nothing, and the command written in its place.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `ctx` must be an open context of the kernel's.
pub unsafe fn destroy(
    ctx: *mut ibv_context,
    kind: u16,
    method: u16,
    handle: u32,
    number: u32,
) -> Result<(), Errno> {
    let mut cmd = Ioctl::new(kind, method);
    cmd.handle(0, handle);
    // SAFETY: the caller vouches for the context.
    let done = unsafe {
        cmd.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let mut request = write::Plain::of(ib_uverbs_handle_only { handle });
                write::plain_without_answer(ctx, number, &mut request, size_of_val(&request))
            }
        })
    };
    done.or_else(forgive)
}
