//! urxe's devices while its verbs are not there yet: listing, opening and queries work, all else is EOPNOTSUPP.
use crate::abi::*;
use crate::provider::{Found, LibraryOps, Provider, context, object, table};
use crate::soft::device;
use crate::soft::gid::GidTable;
use crate::sys::errno::Errno;
use std::ffi::c_int;
use std::sync::OnceLock;

/// Lists the embedded devices.
pub struct Embedded;

#[repr(C)]
struct Context {
    vctx: verbs_context,
    device: device::Device,
}

fn gids() -> &'static GidTable {
    static TABLE: OnceLock<GidTable> = OnceLock::new();
    TABLE.get_or_init(GidTable::new)
}

impl Provider for Embedded {
    fn name(&self) -> &'static str {
        "urxe"
    }
    fn devices(&self, kernel_devices: bool) -> Vec<Found> {
        let found = |d: device::Device| Found {
            name: d.name,
            dev_name: d.node,
            dev_path: String::new(),
            ibdev_path: String::new(),
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            guid: u64::from_ne_bytes(d.guid),
            index: -1,
            token: d.index as usize,
        };
        device::listed(kernel_devices).into_iter().map(found).collect()
    }
    unsafe fn alloc_context(&self, dev: *mut ibv_device, token: usize) -> Result<*mut verbs_context, Errno> {
        let device = device::listed(false).into_iter().nth(token).ok_or(Errno::ENODEV)?;
        let whole = Box::into_raw(Box::new(Context { vctx: verbs_context::zeroed(), device }));
        // SAFETY: fresh memory.
        unsafe {
            let vctx = &raw mut (*whole).vctx;
            context::init(vctx, dev, libc::eventfd(0, libc::EFD_CLOEXEC), 0);
            table::set_ops(vctx, &OPS);
            context::set_library_ops(vctx, &LIBRARY);
            (*vctx).context.async_fd = libc::eventfd(0, libc::EFD_CLOEXEC);
            (*vctx).context.num_comp_vectors = device::comp_vectors() as c_int;
            Ok(vctx)
        }
    }
}

unsafe fn whole(ctx: *mut ibv_context) -> *mut Context {
    ctx.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

unsafe extern "C" fn free_context(ctx: *mut ibv_context) {
    // SAFETY: from `alloc_context`.
    unsafe {
        context::uninit(&raw mut (*whole(ctx)).vctx);
        drop(Box::from_raw(whole(ctx)));
    }
}

unsafe extern "C" fn query_device_ex(
    ctx: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the caller gives `size` bytes.
    unsafe { object::write_versioned(attr.cast(), size, &(*whole(ctx)).device.attr_ex()) };
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller gives a struct.
    unsafe { *attr = device::port_attr(gids()) };
    0
}

static OPS: verbs_context_ops = verbs_context_ops {
    free_context: Some(free_context),
    query_device_ex: Some(query_device_ex),
    query_port: Some(query_port),
    ..verbs_context_ops::zeroed()
};

fn row(index: usize, entry: crate::soft::gid::GidEntry) -> ibv_gid_entry {
    let mut row = ibv_gid_entry::zeroed();
    row.gid.raw = entry.gid.0;
    row.gid_index = index as u32;
    row.port_num = 1;
    row.gid_type = IBV_GID_TYPE_ROCE_V2;
    row.ndev_ifindex = entry.ifindex;
    row
}

static LIBRARY: LibraryOps = LibraryOps {
    create_comp_channel: |_| Err(Errno::EOPNOTSUPP),
    destroy_comp_channel: |_| Err(Errno::EOPNOTSUPP),
    get_cq_event: |_| Err(Errno::EOPNOTSUPP),
    get_async_event: |_| Err(Errno::EOPNOTSUPP),
    query_gid: |_, port, index| match gids().get(index as usize) {
        Some(entry) if port == 1 && !entry.gid.is_zero() => Ok(row(index as usize, entry)),
        Some(_) if port == 1 => Err(Errno::ENODATA),
        _ => Err(Errno::EINVAL),
    },
    gid_table: |_| Ok(gids().entries().into_iter().map(|(i, e)| row(i, e)).collect()),
    query_pkey: |_, port, index| if (port, index) == (1, 0) { Ok(0xffff) } else { Err(Errno::EINVAL) },
};
