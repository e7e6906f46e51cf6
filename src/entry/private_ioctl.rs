//! Commands that a provider has put together itself: counting their attributes and sending them.
use std::ffi::{c_int, c_uint};

use crate::{abi::*, provider::context, sys::errno::Errno};

export_private!(34: final_num_attrs => "__ioctl_final_num_attrs");
export_private!(34: execute_ioctl => "execute_ioctl");

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, 24 bytes)`.
const RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;
/// Bit 0 of a command buffer: an attribute did not fit.
const BUFFER_ERROR: u8 = 1;

/// How many attributes a command has together with those linked to it.
unsafe extern "C" fn final_num_attrs(own: c_uint, link: *const ibv_command_buffer) -> c_uint {
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
unsafe extern "C" fn execute_ioctl(ctx: *mut ibv_context, cmd: *mut ibv_command_buffer) -> c_int {
    // SAFETY: the provider gives an open context and a command with room for all linked attributes.
    match unsafe { send(ctx, cmd) } {
        Ok(()) => 0,
        Err(e) => e.0,
    }
}

/// # Safety
/// As for `execute_ioctl`.
unsafe fn send(ctx: *mut ibv_context, cmd: *mut ibv_command_buffer) -> Result<(), Errno> {
    // SAFETY: the caller vouches for both; each copy stays below `last_attr`, which is the end of the command's room.
    unsafe {
        let first_linked = (*cmd).next_attr;
        let mut end = first_linked;
        let mut link = (*cmd).next;
        let mut broken = (*cmd).bits & BUFFER_ERROR != 0;
        while !link.is_null() && !broken {
            let count = used(link);
            broken = (*link).bits & BUFFER_ERROR != 0 || end.wrapping_add(count) > (*cmd).last_attr;
            if !broken {
                end.copy_from_nonoverlapping(attrs(link), count);
                end = end.add(count);
            }
            link = (*link).next;
        }
        if broken {
            return Err(Errno::EINVAL);
        }
        let count = end.offset_from(attrs(cmd)) as usize;
        let hdr = &raw mut (*cmd).hdr;
        (*hdr).length = (size_of::<ib_uverbs_ioctl_hdr>() + count * size_of::<ib_uverbs_attr>()) as u16;
        (*hdr).num_attrs = count as u16;
        (*hdr).reserved1 = 0;
        (*hdr).reserved2 = 0;
        (*hdr).driver_id = (*context::private(ctx)).ex.driver_id;
        if libc::ioctl((*ctx).cmd_fd, RDMA_VERBS_IOCTL as _, hdr) != 0 {
            return Err(Errno::last());
        }
        // What the kernel wrote into linked attributes is read by the provider in its own buffers.
        let mut from = first_linked;
        link = (*cmd).next;
        while !link.is_null() {
            let count = used(link);
            attrs(link).copy_from_nonoverlapping(from, count);
            from = from.add(count);
            link = (*link).next;
        }
        Ok(())
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
}
