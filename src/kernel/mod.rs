//! Devices behind `/dev/infiniband/uverbsN`.
//!
//! `discover` finds them, `devices` remembers them, `node` opens one, `command` talks to the kernel, `plugin` hosts
//! rdma-core's compiled providers, `rxe` is our own for soft-RoCE, `library` serves the calls outside the ops table.
pub mod command;
mod devices;
pub mod discover;
#[cfg(test)]
mod double;
mod library;
mod node;
pub mod plugin;
mod rxe;

use crate::abi::{ibv_context, ibv_device, verbs_context, verbs_device};
use crate::provider::layout::Layout;
use crate::provider::{self, Found, Provider, disassociate, hosted};
use crate::sys::errno::Errno;
use crate::sys::fd;
use devices::Served;
use discover::Places;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::ptr;

/// The kernel as a source of devices.
pub struct Kernel;

impl Provider for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn devices(&self, _: bool) -> Vec<Found> {
        disassociate::read_environment();
        devices::list()
    }

    fn token_of(&self, cmd_fd: RawFd) -> Option<usize> {
        if cmd_fd < 0 {
            return None;
        }
        // SAFETY: only asked what it is; the caller keeps it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
        let status = fd::status(&borrowed).ok()?;
        (status.st_mode & libc::S_IFMT == libc::S_IFCHR).then(|| devices::by_number(status.st_rdev))?
    }

    unsafe fn alloc_context(&self, dev: *mut ibv_device, token: usize) -> Result<*mut verbs_context, Errno> {
        // SAFETY: the caller's promises are this function's.
        unsafe { self.alloc_context_with(dev, token, ptr::null_mut()) }
    }

    unsafe fn alloc_context_with(
        &self,
        dev: *mut ibv_device,
        token: usize,
        private: *mut c_void,
    ) -> Result<*mut verbs_context, Errno> {
        let (device, served) = devices::get(token).ok_or(Errno::ENODEV)?;
        let cmd_fd = node::open(&Places::system(), &device)?;
        let served = match served {
            // SAFETY: the library gives a device of its list.
            Served::Native => return unsafe { complete(rxe::open(dev, cmd_fd)?) },
            Served::Plugin(served) => served,
        };
        let cmd_fd = cmd_fd.into_raw_fd();
        // SAFETY: the provider made the device and takes the descriptor over, also where it fails.
        unsafe {
            let alloc = (*served.driver.ops).alloc_context.ok_or(Errno::EOPNOTSUPP)?;
            Errno::EIO.store();
            finish(dev, alloc(dev, cmd_fd, private))
        }
    }

    unsafe fn import_context(
        &self,
        dev: *mut ibv_device,
        token: usize,
        cmd_fd: RawFd,
    ) -> Result<*mut verbs_context, Errno> {
        let (_, served) = devices::get(token).ok_or(Errno::ENODEV)?;
        // As rdma-core's: a context of rxe cannot be shared.
        let Served::Plugin(served) = served else { return Err(Errno::EOPNOTSUPP) };
        // SAFETY: as above; the caller keeps the descriptor where this fails, so the provider gets a duplicate.
        unsafe {
            let import = (*served.driver.ops).import_context.ok_or(Errno::EOPNOTSUPP)?;
            let own = fd::duplicate(cmd_fd)?.into_raw_fd();
            Errno::EIO.store();
            let vctx = finish(dev, import(dev, own))?;
            let context = hosted::context(vctx);
            (*provider::context::private(context)).ex.imported = true;
            libc::close(std::mem::replace(&mut (*context).cmd_fd, cmd_fd));
            Ok(vctx)
        }
    }

    fn device(&self, token: usize) -> Option<*mut verbs_device> {
        match devices::get(token)?.1 {
            Served::Native => None,
            Served::Plugin(served) => Some(served.device),
        }
    }
}

/// The view of a context that a provider has just made, completed by the library.
///
/// # Safety
/// `dev` is the provider's device, `theirs` null or its new context.
unsafe fn finish(dev: *mut ibv_device, theirs: *mut verbs_context) -> Result<*mut verbs_context, Errno> {
    if theirs.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: the caller vouches for both.
    unsafe {
        debug_assert!(plugin::layout_of(dev).context <= Layout::OURS.context);
        complete(hosted::view(theirs))
    }
}

/// A context as the library wants it; taken down where that fails.
///
/// # Safety
/// `vctx` must be a view of a new context.
unsafe fn complete(vctx: *mut verbs_context) -> Result<*mut verbs_context, Errno> {
    // SAFETY: the caller vouches for it.
    unsafe { library::complete(vctx).inspect_err(|_| free(hosted::context(vctx)))? };
    Ok(vctx)
}

/// # Safety
/// `ctx` must be a context that nobody uses.
unsafe fn free(ctx: *mut ibv_context) {
    // SAFETY: the caller vouches for it.
    unsafe {
        if let Some(free_context) = provider::context::ops(ctx).free_context {
            free_context(ctx);
        }
    }
}
