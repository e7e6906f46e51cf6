//! What `anyverbs.h` offers on urxe.
use super::{QpObject, inherited, object};
use crate::abi::{anyverbs_path, ibv_qp};
use crate::provider::Extension;
use crate::soft::link::Path;
use crate::sys::errno::Errno;

/// For every context of urxe.
pub static EXTENSION: Extension = Extension { qp_path };

unsafe fn qp_path(c: *mut ibv_qp) -> Result<anyverbs_path, Errno> {
    // SAFETY: the library passes a live QP of urxe.
    unsafe {
        if inherited((*c).context) {
            return Err(Errno::EIO);
        }
        Ok(match object::<_, QpObject>(c).qp.sq.lock().path {
            Path::None => anyverbs_path::None,
            Path::Local(_) => anyverbs_path::Local,
            // Where nobody has the QPN yet, another process will.
            Path::Shm(..) | Path::Absent(_) => anyverbs_path::Shm,
            Path::Udp(_) => anyverbs_path::Udp,
        })
    }
}
