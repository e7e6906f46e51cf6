//! XRC domains. One is named by the inode of a file, so that processes of a user which open the same file share it.
//!
//! A domain exists while some process has it open. That shows in marks, abstract unix sockets that hold its name and a
//! number: each process has the first one that is free, and who must know whether the domain exists looks at all.
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use super::memory::null;
use super::{XrcdObject, context, inherited, object};
use crate::abi::*;
use crate::soft::srq::PRIVATE_DOMAIN;
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::{fd, random, seqpacket};

/// Marks of a domain; processes beyond have it without one.
const MARKS: u32 = 64;

/// The domains with a file that this process has open.
#[derive(Debug, Default)]
pub struct Domains(Lock<HashMap<u64, Weak<Mark>>>);

/// Says that this process has a domain open.
#[derive(Debug)]
pub struct Mark(#[allow(dead_code, reason = "open as long as this lives")] Option<ParentFd>);

impl Domains {
    /// Has the domain open, as the flags of open(2) say that it must or must not exist.
    ///
    /// # Errors
    /// EINVAL: O_EXCL, and it exists. EAGAIN: no O_CREAT, and it does not. As on a kernel device. Those of socket(2).
    fn open(&self, domain: u64, flags: c_int) -> Result<Arc<Mark>, Errno> {
        let mut domains = self.0.lock();
        domains.retain(|_, mark| mark.strong_count() > 0);
        let known = domains.get(&domain).and_then(Weak::upgrade);
        // Taken before the others are looked at: of two that must be the first, one at most is.
        let (mark, number) = match &known {
            Some(mark) => (mark.clone(), 0),
            None => take_mark(domain)?,
        };
        let must_look = flags & libc::O_EXCL != 0 || flags & libc::O_CREAT == 0;
        if must_look {
            let exists = known.is_some() || is_elsewhere(domain, number)?;
            if exists && flags & libc::O_EXCL != 0 {
                explain(format_args!(
                    "ibv_open_xrcd oflags=0x{flags:x}: the domain of this file exists already"
                ));
                return Err(Errno::EINVAL);
            }
            if !exists && flags & libc::O_CREAT == 0 {
                explain(format_args!(
                    "ibv_open_xrcd oflags=0x{flags:x}: this file has no domain, expected O_CREAT"
                ));
                return Err(Errno::EAGAIN);
            }
        }
        domains.insert(domain, Arc::downgrade(&mark));
        Ok(mark)
    }
}

/// The first free mark, and its number; `MARKS` where all are taken.
fn take_mark(domain: u64) -> Result<(Arc<Mark>, u32), Errno> {
    for number in 0..MARKS {
        match seqpacket::mark(&name(domain, number)) {
            Ok(mark) => return Ok((Arc::new(Mark(Some(mark))), number)),
            Err(Errno::EADDRINUSE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok((Arc::new(Mark(None)), MARKS))
}

/// Whether a mark beside our own is taken.
fn is_elsewhere(domain: u64, own: u32) -> Result<bool, Errno> {
    let probe = seqpacket::probe()?;
    let is_marked = |number| seqpacket::is_marked(probe.as_fd(), &name(domain, number));
    Ok((0..MARKS).any(|number| number != own && is_marked(number)))
}

fn name(domain: u64, number: u32) -> String {
    format!("anyverbs/xrcd/{domain:016x}/{number}")
}

pub unsafe extern "C" fn open_xrcd(c: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    let (context, a) = unsafe { (context(c), &*attr) };
    if !context.node.is_ours() {
        return null(Errno::EIO);
    }
    let needs = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if a.comp_mask != needs {
        explain(format_args!(
            "ibv_open_xrcd comp_mask=0x{:x}: expected IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS",
            a.comp_mask
        ));
        return null(Errno::EINVAL);
    }
    let opened = if a.fd == -1 {
        if a.oflags & libc::O_CREAT == 0 {
            explain(format_args!("ibv_open_xrcd fd=-1: a domain without a file needs O_CREAT"));
            return null(Errno::EINVAL);
        }
        Ok((random::u64() | PRIVATE_DOMAIN, None))
    } else if a.fd < 0 {
        Err(Errno(libc::EBADF))
    } else {
        // SAFETY: the descriptor is the application's; a bad one gives EBADF.
        inode_of(unsafe { BorrowedFd::borrow_raw(a.fd) })
            .and_then(|domain| Ok((domain, Some(context.node.domains.open(domain, a.oflags)?))))
    };
    let (domain, mark) = match opened {
        Ok(opened) => opened,
        Err(e) => return null(e),
    };
    let mut whole = verbs_xrcd::zeroed();
    whole.xrcd.context = c;
    Box::into_raw(Box::new(XrcdObject { c: whole, domain, users: AtomicU32::new(0), _mark: mark })).cast()
}

fn inode_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = fd::status(&fd)?;
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

    #[test]
    fn a_domain_exists_while_somebody_has_it_open() {
        let (create, only) = (libc::O_CREAT, libc::O_CREAT | libc::O_EXCL);
        let domain = random::u64() & !PRIVATE_DOMAIN;
        // As two processes.
        let (mine, theirs) = (Domains::default(), Domains::default());
        assert_eq!(mine.open(domain, 0).unwrap_err(), Errno::EAGAIN);
        let first = mine.open(domain, only).unwrap();
        assert_eq!(mine.open(domain, only).unwrap_err(), Errno::EINVAL);
        assert_eq!(theirs.open(domain, only).unwrap_err(), Errno::EINVAL);
        let second = theirs.open(domain, 0).unwrap();
        drop(first);
        assert_eq!(mine.open(domain, only).unwrap_err(), Errno::EINVAL);
        let third = mine.open(domain, create).unwrap();
        drop((second, third));
        assert_eq!(theirs.open(domain, 0).unwrap_err(), Errno::EAGAIN);
        drop(theirs.open(domain, only).unwrap());
    }
}
