//! What a registration may ask for: flags, and ranges of application memory.
use super::mapped;
use crate::soft::types::Access;
use crate::sys::errno::Errno;
use crate::sys::guard;
use crate::sys::log::explain;
use crate::sys::map::page_size;

/// What a region may be registered with; flags of the optional range are ignored where unknown.
const KNOWN: u32 = 0x3ff;
const OPTIONAL: u32 = 0x3ff0_0000;

/// Flags for which the memory must be writable, as a kernel that pins it sees it.
pub const WRITING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// What a registration asks for.
///
/// # Errors
/// EINVAL.
pub fn check_flags(access: Access) -> Result<(), Errno> {
    let unknown = access.bits() & !(KNOWN | OPTIONAL);
    if unknown != 0 {
        explain(format_args!("ibv_reg_mr: access {:#x} has unknown flags {unknown:#x}", access.bits()));
        return Err(Errno::EINVAL);
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        let bits = access.bits();
        explain(format_args!(
            "ibv_reg_mr: access {bits:#x} allows remote writes, which needs IBV_ACCESS_LOCAL_WRITE"
        ));
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Flags and range of a registration of application memory.
///
/// # Errors
/// EINVAL; EFAULT where the range is not mapped as the flags need it.
pub fn check(addr: u64, len: u64, access: Access) -> Result<(), Errno> {
    check_flags(access)?;
    let writable = access.intersects(WRITING);
    if access.contains(Access::ON_DEMAND) && (addr, len) == (0, u64::MAX) {
        return Ok(());
    }
    // The last page must end within the address space too.
    if addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size() as u64)).is_none() {
        explain(format_args!("ibv_reg_mr: address {addr:#x} plus length {len:#x} overflows"));
        return Err(Errno::EINVAL);
    }
    if len == 0 || access.contains(Access::ON_DEMAND) {
        return Ok(());
    }
    guard::install();
    mapped::check(addr, len, writable).map_err(|at| {
        let what = if writable { "mapped readable and writable" } else { "mapped readable" };
        explain(format_args!("ibv_reg_mr: of {len} bytes at {addr:#x}, {at:#x} is not {what}"));
        Errno::EFAULT
    })
}
