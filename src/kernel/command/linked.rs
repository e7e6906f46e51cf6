//! Command buffers that a provider builds: sent whole by `execute_ioctl`, or linked to a command of the library's.
use super::issue;
use crate::abi::*;
use crate::provider::context as library;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_uint};

/// Bit 0 of a command buffer: an attribute did not fit.
const BUFFER_ERROR: u8 = 1;

/// How many attributes a command has together with those linked to it.
///
/// # Safety
/// `link` is null or the first of a chain of live command buffers.
pub unsafe extern "C" fn final_num_attrs(own: c_uint, link: *const ibv_command_buffer) -> c_uint {
    let mut total = own;
    let mut next = link;
    while !next.is_null() {
        // SAFETY: the provider keeps its linked buffers alive during the command.
        unsafe {
            total += used(next) as c_uint;
            next = (*next).next;
        }
    }
    total
}

/// Sends a command with the attributes linked to it. Returns 0 or a positive errno value.
///
/// # Safety
/// `ctx` is an open context and `cmd` a command with room for all linked attributes.
pub unsafe extern "C" fn execute_ioctl(ctx: *mut ibv_context, cmd: *mut ibv_command_buffer) -> c_int {
    // SAFETY: the caller's promises are this function's.
    super::code(unsafe { send(ctx, cmd) })
}

/// # Safety
/// As for `execute_ioctl`.
unsafe fn send(ctx: *mut ibv_context, cmd: *mut ibv_command_buffer) -> Result<(), Errno> {
    // SAFETY: the caller vouches for both; the room for linked attributes ends at `last_attr`.
    unsafe {
        let room = (*cmd).last_attr.offset_from((*cmd).next_attr).max(0) as usize;
        if (*cmd).bits & BUFFER_ERROR != 0 {
            return Err(Errno::EINVAL);
        }
        let behind = std::slice::from_raw_parts_mut((*cmd).next_attr, room);
        let linked = collect((*cmd).next, behind)?;
        let count = used(cmd) + linked;
        let hdr = &raw mut (*cmd).hdr;
        (*hdr).length = (size_of::<ib_uverbs_ioctl_hdr>() + count * size_of::<ib_uverbs_attr>()) as u16;
        (*hdr).num_attrs = count as u16;
        (*hdr).reserved1 = 0;
        (*hdr).reserved2 = 0;
        (*hdr).driver_id = (*library::private(ctx)).ex.driver_id;
        issue::ioctl((*ctx).cmd_fd, hdr)?;
        give_back((*cmd).next, &behind[..linked]);
        Ok(())
    }
}

/// Copies the attributes of a chain of buffers to `to`; says how many.
///
/// # Errors
/// EINVAL where they do not fit, or one had not fitted into its own buffer.
///
/// # Safety
/// `link` is null or the first of a chain of live command buffers.
pub unsafe fn collect(link: *mut ibv_command_buffer, to: &mut [ib_uverbs_attr]) -> Result<usize, Errno> {
    let (mut next, mut total) = (link, 0);
    while !next.is_null() {
        // SAFETY: the caller vouches for the chain; a buffer's attributes lie behind its head.
        unsafe {
            let count = used(next);
            let room = to.get_mut(total..total + count).ok_or(Errno::EINVAL)?;
            if (*next).bits & BUFFER_ERROR != 0 {
                return Err(Errno::EINVAL);
            }
            room.as_mut_ptr().copy_from_nonoverlapping(attrs(next), count);
            total += count;
            next = (*next).next;
        }
    }
    Ok(total)
}

/// Copies attributes back to where `collect` had them from: the provider reads the kernel's answers in its own buffers.
///
/// # Safety
/// As for `collect`, and `from` what it collected.
pub unsafe fn give_back(link: *mut ibv_command_buffer, from: &[ib_uverbs_attr]) {
    let (mut next, mut at) = (link, 0);
    while !next.is_null() {
        // SAFETY: as in `collect`, whose counts these are.
        unsafe {
            let count = used(next);
            if let Some(of_this) = from.get(at..at + count) {
                attrs(next).copy_from_nonoverlapping(of_this.as_ptr(), count);
            }
            at += count;
            next = (*next).next;
        }
    }
}

/// The attributes of a command, which follow its head.
///
/// # Safety
/// `cmd` must point to a command buffer.
unsafe fn attrs(cmd: *const ibv_command_buffer) -> *mut ib_uverbs_attr {
    // SAFETY: within or at the end of the buffer's allocation.
    unsafe { cmd.add(1).cast_mut().cast() }
}

/// How many attributes a command has of its own.
///
/// # Safety
/// `cmd` must point to a command buffer.
unsafe fn used(cmd: *const ibv_command_buffer) -> usize {
    // SAFETY: `next_attr` points into the buffer's own attributes.
    unsafe { (*cmd).next_attr.offset_from(attrs(cmd)).max(0) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Buffer<const N: usize> {
        head: ibv_command_buffer,
        attrs: [ib_uverbs_attr; N],
    }

    fn buffer<const N: usize>() -> Box<Buffer<N>> {
        // SAFETY: integers and pointers only.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    /// Takes `n` of the attributes of a buffer into use.
    fn fill<const N: usize>(b: &mut Buffer<N>, n: usize) {
        let start = b.attrs.as_mut_ptr();
        b.head.next_attr = start.wrapping_add(n);
        b.head.last_attr = start.wrapping_add(N);
    }

    #[test]
    fn linked_attributes_are_counted() {
        let (mut a, mut b) = (buffer::<3>(), buffer::<2>());
        fill(&mut a, 3);
        fill(&mut b, 1);
        b.head.next = &mut a.head;
        // SAFETY: both buffers live.
        assert_eq!(unsafe { final_num_attrs(5, &b.head) }, 9);
        // SAFETY: no buffer is linked.
        assert_eq!(unsafe { final_num_attrs(5, std::ptr::null()) }, 5);
    }

    #[test]
    fn command_without_room_is_refused() {
        let (mut cmd, mut link) = (buffer::<2>(), buffer::<2>());
        fill(&mut cmd, 1);
        fill(&mut link, 2);
        cmd.head.next = &mut link.head;
        // SAFETY: the command is refused before the context is looked at.
        assert_eq!(unsafe { execute_ioctl(std::ptr::null_mut(), &mut cmd.head) }, libc::EINVAL);
    }

    #[test]
    fn answers_come_back_into_the_providers_buffers() {
        let (mut a, mut b) = (buffer::<2>(), buffer::<1>());
        fill(&mut a, 2);
        fill(&mut b, 1);
        a.attrs[1].attr_id = 7;
        b.attrs[0].attr_id = 9;
        a.head.next = &mut b.head;
        let mut all = [b.attrs[0]; 4];
        // SAFETY: both buffers live.
        unsafe {
            assert_eq!(collect(&mut a.head, &mut all), Ok(3));
            assert_eq!(collect(&mut a.head, &mut all[..2]), Err(Errno::EINVAL));
            assert_eq!((all[1].attr_id, all[2].attr_id), (7, 9));
            all[2].data = 42;
            give_back(&mut a.head, &all[..3]);
        }
        assert_eq!(b.attrs[0].data, 42);
    }
}
