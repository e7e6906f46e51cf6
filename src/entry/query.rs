//! What device, port, GID and P_Key tables say.
use crate::abi::*;
use crate::core::convention::{code, given, minus_one, negative, refuse};
use crate::core::{gid, query};
use crate::provider::{context, object};
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use std::ffi::{c_int, c_uint};

export!(query::ibv_query_device => "ibv_query_device" @@ "IBVERBS_1.1");
export!(query::ibv_query_port => "ibv_query_port" @@ "IBVERBS_1.1");
export!(ibv_query_gid => "ibv_query_gid" @@ "IBVERBS_1.1");
export!(query_gid_ex => "_ibv_query_gid_ex" @@ "IBVERBS_1.11");
export!(query_gid_table => "_ibv_query_gid_table" @@ "IBVERBS_1.11");
export!(ibv_query_pkey => "ibv_query_pkey" @@ "IBVERBS_1.1");
export!(ibv_get_pkey_index => "ibv_get_pkey_index" @@ "IBVERBS_1.5");
export!(ibv_query_port_speed => "ibv_query_port_speed" @@ "IBVERBS_1.16");

/// A GID; an empty row is the zero GID.
pub(super) unsafe extern "C" fn ibv_query_gid(
    ctx: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_query_gid", "context")?;
        given(out, "ibv_query_gid", "gid")?;
        let row = u32::try_from(index)
            .map_err(|_| refuse!(EINVAL, "ibv_query_gid port={port} index={index}: expected 0 or more"))?;
        // SAFETY: a live context and room for the GID.
        unsafe {
            *out = match gid::entry(ctx, port.into(), row) {
                Ok(entry) => entry.gid,
                Err(Errno::ENODATA) => ibv_gid::zeroed(),
                Err(e) => return Err(no_row("ibv_query_gid", port.into(), row, e)),
            };
        }
        Ok(0)
    })
}

/// A row of the GID table, in a struct of the caller's release; ENODATA where it is empty.
pub(super) unsafe extern "C" fn query_gid_ex(
    ctx: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        given(ctx, "ibv_query_gid_ex", "context")?;
        given(out, "ibv_query_gid_ex", "entry")?;
        check_flags("ibv_query_gid_ex", flags)?;
        // SAFETY: a live context; the caller gives `size` bytes.
        unsafe {
            let row = gid::entry(ctx, port, index).map_err(|e| no_row("ibv_query_gid_ex", port, index, e))?;
            object::write_versioned(out.cast(), size, &row);
        }
        Ok(0)
    })
}

/// The type of a GID as sysfs numbers it: 0 for InfiniBand and RoCE v1, 1 for RoCE v2. For ibv_devinfo.
pub(super) unsafe extern "C" fn ibv_query_gid_type(
    ctx: *mut ibv_context,
    port: u8,
    index: c_uint,
    out: *mut c_uint,
) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_query_gid_type", "context")?;
        given(out, "ibv_query_gid_type", "type")?;
        // SAFETY: a live context and room for the number.
        unsafe {
            *out = match gid::entry(ctx, port.into(), index) {
                Ok(row) => c_uint::from(row.gid_type == IBV_GID_TYPE_ROCE_V2),
                Err(Errno::ENODATA) => 0,
                Err(e) => return Err(no_row("ibv_query_gid_type", port.into(), index, e)),
            };
        }
        Ok(0)
    })
}

/// All rows that hold a GID, of all ports: how many, or a negative errno value.
pub(super) unsafe extern "C" fn query_gid_table(
    ctx: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    negative(|| {
        given(ctx, "ibv_query_gid_table", "context")?;
        given(out, "ibv_query_gid_table", "entries")?;
        check_flags("ibv_query_gid_table", flags)?;
        // SAFETY: a live context.
        let rows = unsafe { gid::table(ctx) }?;
        if rows.len() > max || max == 0 {
            return Err(refuse!(
                EINVAL,
                "ibv_query_gid_table max_entries={max}: expected room for {}",
                rows.len().max(1)
            ));
        }
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: the caller gives `max` structs of `size` bytes each.
            unsafe { object::write_versioned(out.cast::<u8>().add(i * size), size, row) };
        }
        Ok(rows.len() as isize)
    })
}

/// A P_Key in network byte order.
pub(super) unsafe extern "C" fn ibv_query_pkey(
    ctx: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_query_pkey", "context")?;
        given(out, "ibv_query_pkey", "pkey")?;
        // SAFETY: a live context and room for the key.
        unsafe { *out = pkey(ctx, port, index, "ibv_query_pkey")?.to_be() };
        Ok(0)
    })
}

/// The index of a P_Key given in network byte order, or -1.
pub(super) unsafe extern "C" fn ibv_get_pkey_index(ctx: *mut ibv_context, port: u8, key: u16) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_get_pkey_index", "context")?;
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: a live context and a struct of our own.
        let rc = unsafe { query::port_attr(ctx, port, (&raw mut attr).cast(), size_of::<ibv_port_attr>()) }?;
        if rc != 0 {
            return Err(Errno(rc));
        }
        for index in 0..c_int::from(attr.pkey_tbl_len) {
            // SAFETY: a live context.
            if unsafe { pkey(ctx, port, index, "ibv_get_pkey_index") }? == u16::from_be(key) {
                return Ok(index);
            }
        }
        Err(refuse!(
            EINVAL,
            "ibv_get_pkey_index port={port} pkey=0x{:04x}: not in the table",
            u16::from_be(key)
        ))
    })
}

/// A port's effective speed in units of 100 Mbit/s.
pub(super) unsafe extern "C" fn ibv_query_port_speed(
    ctx: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    code(|| {
        given(ctx, "ibv_query_port_speed", "context")?;
        given(speed, "ibv_query_port_speed", "port_speed")?;
        // SAFETY: a live context and room for the number.
        unsafe { Ok(context::ops(ctx).query_port_speed.ok_or(Errno::EOPNOTSUPP)?(ctx, port, speed)) }
    })
}

/// # Safety
/// `ctx` must be live.
unsafe fn pkey(ctx: *mut ibv_context, port: u8, index: c_int, call: &str) -> Result<u16, Errno> {
    let row = u32::try_from(index).map_err(|_| Errno::EINVAL);
    // SAFETY: the caller vouches for the context.
    row.and_then(|row| unsafe { (gid::library(ctx)?.query_pkey)(ctx, port, row) }).inspect_err(|e| {
        explain(format_args!("{call} port={port} index={index}: {e:?}"));
    })
}

fn check_flags(call: &str, flags: u32) -> Result<(), Errno> {
    if flags != 0 { Err(refuse!(EOPNOTSUPP, "{call} flags=0x{flags:x}: expected 0")) } else { Ok(()) }
}

fn no_row(call: &str, port: u32, index: u32, e: Errno) -> Errno {
    let why = if e == Errno::ENODATA { "the row is empty" } else { "there is no such port or row" };
    explain(format_args!("{call} port={port} index={index}: {why}"));
    e
}
