//! GID and P_Key tables: single rows, whole tables, and the way back from a value to its index.
use crate::abi::{ibv_context, ibv_gid, ibv_gid_entry};
use crate::provider::{LibraryOps, context};
use crate::soft::types::Gid;
use crate::sys::errno::Errno;

/// The functions that serve this context outside the ops table.
///
/// # Errors
/// EOPNOTSUPP where its provider has none.
///
/// # Safety
/// `ctx` must be live.
pub unsafe fn library(ctx: *mut ibv_context) -> Result<&'static LibraryOps, Errno> {
    // SAFETY: every context has its private area.
    unsafe { (*context::private(ctx)).library.ok_or(Errno::EOPNOTSUPP) }
}

/// Row `index` of a port's GID table.
///
/// # Errors
/// ENODATA where it is empty, EINVAL where there is none.
///
/// # Safety
/// `ctx` must be live.
pub unsafe fn entry(ctx: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    // SAFETY: the caller vouches for the context.
    unsafe { (library(ctx)?.query_gid)(ctx, port, index) }
}

/// All rows that are not empty.
///
/// # Errors
/// EOPNOTSUPP, or the provider's.
///
/// # Safety
/// `ctx` must be live.
pub unsafe fn table(ctx: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
    // SAFETY: the caller vouches for the context.
    unsafe { (library(ctx)?.gid_table)(ctx) }
}

/// The row of a port that answers to `gid`: of type RoCE v2 if there are several. A multicast GID, which stands in no
/// table, gives the first row of its address family.
///
/// # Errors
/// ENODATA where no row fits.
///
/// # Safety
/// `ctx` must be live.
pub unsafe fn index_of(ctx: *mut ibv_context, port: u32, gid: Gid) -> Result<u32, Errno> {
    // SAFETY: the caller vouches for the context.
    let mut rows = unsafe { table(ctx) }?;
    rows.retain(|row| row.port_num == port);
    rows.sort_by_key(|row| (std::cmp::Reverse(row.gid_type), row.gid_index));
    let fits = |row: &&ibv_gid_entry| {
        let row = value(&row.gid);
        row == gid || gid.is_multicast() && row.ip().is_ipv4() == gid.ip().is_ipv4()
    };
    rows.iter().find(fits).map(|row| row.gid_index).ok_or(Errno::ENODATA)
}

/// The 16 bytes of a C GID.
pub fn value(gid: &ibv_gid) -> Gid {
    Gid(gid.raw)
}
