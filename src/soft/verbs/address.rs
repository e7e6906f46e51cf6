//! Address handles and XRC domains.
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::null;
use super::{AhObject, PdObject, XrcdObject, context, inherited, object};
use crate::abi::*;
use crate::soft::ah::Ah;
use crate::soft::device::limits;
use crate::soft::modify::{WantedAddress, resolve};
use crate::soft::srq::PRIVATE_DOMAIN;
use crate::soft::types::Gid;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use crate::sys::random;

/// The address that a C program gives.
pub fn wanted(attr: &ibv_ah_attr) -> WantedAddress {
    WantedAddress {
        is_global: attr.is_global != 0,
        dlid: attr.dlid,
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        port: attr.port_num,
    }
}

pub unsafe extern "C" fn create_ah(c: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the library passes a live PD of urxe and readable attributes.
    unsafe {
        let pd: &PdObject = object(c);
        let node = context((*c).context).node;
        if !node.is_ours() {
            return null(Errno::EIO);
        }
        let ticket = match context((*c).context).census().ahs.enter(limits::MAX_AH, "ibv_create_ah") {
            Ok(ticket) => ticket,
            Err(e) => return null(e),
        };
        match resolve(node, &wanted(&*attr), "ibv_create_ah", "attr") {
            Ok(address) => {
                let mut whole = ibv_ah::zeroed();
                whole.context = (*c).context;
                whole.pd = c;
                let ah = Arc::new(Ah { pd: pd.pd.id(), address });
                Box::into_raw(Box::new(AhObject { c: whole, ah, pd: pd.pd.clone(), _ticket: ticket })).cast()
            }
            Err(e) => null(e),
        }
    }
}

pub unsafe extern "C" fn destroy_ah(c: *mut ibv_ah) -> c_int {
    // SAFETY: the library passes a live AH of urxe, which this call ends.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        drop(Box::from_raw(c.cast::<AhObject>()));
    }
    0
}

/// A domain is named by the inode of its file, so that processes which open the same file share it.
pub unsafe extern "C" fn open_xrcd(c: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    let a = unsafe { &*attr };
    let needs = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if a.comp_mask != needs {
        explain(format_args!(
            "ibv_open_xrcd comp_mask=0x{:x}: expected IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS",
            a.comp_mask
        ));
        return null(Errno::EINVAL);
    }
    let domain = if a.fd == -1 {
        if a.oflags & libc::O_CREAT == 0 {
            explain(format_args!("ibv_open_xrcd fd=-1: a domain without a file needs O_CREAT"));
            return null(Errno::EINVAL);
        }
        random::u64() | PRIVATE_DOMAIN
    } else {
        // SAFETY: the descriptor is the application's; a bad one gives EBADF.
        match inode_of(unsafe { BorrowedFd::borrow_raw(a.fd) }) {
            Ok(domain) => domain,
            Err(e) => return null(e),
        }
    };
    let mut whole = verbs_xrcd::zeroed();
    whole.xrcd.context = c;
    Box::into_raw(Box::new(XrcdObject { c: whole, domain, users: AtomicU32::new(0) })).cast()
}

fn inode_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    use std::os::fd::AsRawFd;
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is ours; it is read only where fstat filled it.
    let stat = unsafe {
        if libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) != 0 {
            return Err(Errno::last());
        }
        stat.assume_init()
    };
    // SAFETY: geteuid only asks.
    let user = unsafe { libc::geteuid() };
    Ok(domain_of(stat.st_dev, stat.st_ino, user))
}

/// FNV-1a: all processes agree, whatever they were built with. Users do not share domains.
fn domain_of(device: u64, inode: u64, user: u32) -> u64 {
    let words = [device, inode, u64::from(user)];
    let hash = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    hash & !PRIVATE_DOMAIN
}

pub unsafe extern "C" fn close_xrcd(c: *mut ibv_xrcd) -> c_int {
    // SAFETY: the library passes a live XRC domain of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let users = object::<_, XrcdObject>(c).users.load(Ordering::Acquire);
        if users > 0 {
            explain(format_args!("ibv_close_xrcd: {users} QP(s) or SRQ(s) still belong to it"));
            return libc::EBUSY;
        }
        drop(Box::from_raw(c.cast::<XrcdObject>()));
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_of_a_file_is_the_same_in_every_build() {
        assert_eq!(domain_of(1, 2, 3), 0x5a2b_fb22_5e0d_1f05);
        assert_ne!(domain_of(1, 2, 3), domain_of(1, 2, 4));
        assert!((0..64).all(|inode| domain_of(1, inode, 3) & PRIVATE_DOMAIN == 0));
    }
}
