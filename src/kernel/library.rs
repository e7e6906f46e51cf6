//! The calls outside the ops table, served by the kernel's commands and sysfs.
use super::command::{context, device};
use crate::abi::*;
use crate::provider::{AsyncEvent, Events, LibraryOps, Look, context as library};
use crate::sys::errno::Errno;
use crate::sys::folder;
use std::ffi::{CStr, OsStr};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// For every context of a kernel device.
pub static LIBRARY: LibraryOps = LibraryOps {
    events: Events::Read,
    create_comp_channel,
    destroy_comp_channel,
    get_cq_event,
    doorbells: || -1,
    get_async_event,
    query_gid,
    gid_table,
    query_pkey,
    extension: None,
};

unsafe fn create_comp_channel(ctx: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    // SAFETY: the library gives an open context of the kernel's.
    let fd = unsafe { context::comp_channel(ctx) }?;
    Ok(Box::into_raw(Box::new(ibv_comp_channel { context: ctx, fd: fd.into_raw_fd(), refcnt: 0 })))
}

unsafe fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: made above; the library calls this once, when no CQ uses it.
    unsafe {
        libc::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
    Ok(())
}

/// Not called: the caller reads the kernel's records.
unsafe fn get_cq_event(_: *mut ibv_comp_channel, _: Look) -> Result<Option<*mut ibv_cq>, Errno> {
    Err(Errno::EOPNOTSUPP)
}

/// As `get_cq_event`.
unsafe fn get_async_event(_: *mut ibv_context, _: Look) -> Result<Option<AsyncEvent>, Errno> {
    Err(Errno::EOPNOTSUPP)
}

unsafe fn query_gid(ctx: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    // SAFETY: the library gives an open context of the kernel's.
    match unsafe { device::gid_entry(ctx, port, index) } {
        // SAFETY: as above.
        Err(Errno::EOPNOTSUPP) => gid_from_sysfs(&unsafe { folder_of(ctx) }, port, index),
        other => other,
    }
}

unsafe fn gid_table(ctx: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
    // SAFETY: the library gives an open context of the kernel's.
    unsafe {
        let ports = ports(ctx)?;
        let most = ports.iter().map(|port| port.gid_tbl_len.max(0) as usize).sum();
        match device::gid_table(ctx, most) {
            Err(Errno::EOPNOTSUPP) => {
                let folder = folder_of(ctx);
                let mut rows = Vec::new();
                for (port, attr) in (1..).zip(&ports) {
                    for index in 0..attr.gid_tbl_len.max(0) as u32 {
                        rows.extend(gid_from_sysfs(&folder, port, index));
                    }
                }
                Ok(rows)
            }
            other => other,
        }
    }
}

/// # Safety
/// `ctx` must be an open context of the kernel's.
unsafe fn ports(ctx: *mut ibv_context) -> Result<Vec<ibv_port_attr>, Errno> {
    // SAFETY: the caller vouches for the context; each op writes what fits the size it is told, or one struct of ours.
    unsafe {
        let ops = library::ops(ctx);
        let mut head = ibv_device_attr::zeroed();
        let ask = ops.query_device_ex.ok_or(Errno::EOPNOTSUPP)?;
        succeeded(ask(ctx, std::ptr::null(), (&raw mut head).cast(), size_of_val(&head)))?;
        (1..=head.phys_port_cnt)
            .map(|port| {
                let mut attr = ibv_port_attr::zeroed();
                succeeded(ops.query_port.ok_or(Errno::EOPNOTSUPP)?(ctx, port, &mut attr))?;
                Ok(attr)
            })
            .collect()
    }
}

fn succeeded(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code)) }
}

unsafe fn query_pkey(ctx: *mut ibv_context, port: u8, index: u32) -> Result<u16, Errno> {
    // SAFETY: the library gives an open context of the kernel's.
    let file = unsafe { folder_of(ctx) }.join(format!("ports/{port}/pkeys/{index}"));
    let text = folder::text(&file).ok_or(Errno::EINVAL)?;
    let digits = text.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).map_err(|_| Errno::EINVAL)
}

/// The device's folder in sysfs.
///
/// # Safety
/// `ctx` must be an open context.
unsafe fn folder_of(ctx: *mut ibv_context) -> PathBuf {
    // SAFETY: the caller vouches for the context; the path ends in NUL.
    let path = unsafe { CStr::from_ptr((*(*ctx).device).ibdev_path.as_ptr()) };
    PathBuf::from(OsStr::from_bytes(path.to_bytes()))
}

/// Row `index` from the files of a port.
fn gid_from_sysfs(device: &std::path::Path, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    let port_folder = device.join(format!("ports/{port}"));
    let text = folder::text(&port_folder.join(format!("gids/{index}"))).ok_or(Errno::EINVAL)?;
    let gid: std::net::Ipv6Addr = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if gid.is_unspecified() {
        return Err(Errno::ENODATA);
    }
    let attr = |file: &str| folder::text(&port_folder.join(format!("gid_attrs/{file}/{index}")));
    let interface = attr("ndevs").unwrap_or_default();
    let mut row = ibv_gid_entry::zeroed();
    row.gid.raw = gid.octets();
    row.gid_index = index;
    row.port_num = port;
    row.gid_type = match (attr("types").as_deref().map(str::trim), interface.is_empty()) {
        (Some("RoCE v2"), _) => IBV_GID_TYPE_ROCE_V2,
        // A port with an interface is an Ethernet one.
        (Some(_), false) => IBV_GID_TYPE_ROCE_V1,
        _ => IBV_GID_TYPE_IB,
    };
    row.ndev_ifindex = crate::sys::interfaces::index_of(interface.trim());
    Ok(row)
}

/// Gives a context what the library adds: how calls outside the table are served, and a descriptor for its events.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `vctx` must be a view of a context that its provider has just opened.
pub unsafe fn complete(vctx: *mut verbs_context) -> Result<(), Errno> {
    // SAFETY: the caller vouches for it.
    unsafe {
        library::set_library_ops(vctx, &LIBRARY);
        context::give_async_fd(crate::provider::hosted::context(vctx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn gids_are_read_from_their_files() {
        let root = std::env::temp_dir().join(format!("anyverbs-test-gids-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join("ports/1").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        write("gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001\n");
        write("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("gid_attrs/types/1", "RoCE v2\n");
        write("gid_attrs/types/0", "IB/RoCE v1\n");
        write("gid_attrs/ndevs/1", "lo\n");
        let row = gid_from_sysfs(&root, 1, 1).unwrap();
        assert_eq!(
            (row.gid_type, row.gid_index, row.port_num, row.ndev_ifindex),
            (IBV_GID_TYPE_ROCE_V2, 1, 1, 1)
        );
        assert_eq!(row.gid.raw[10..], [0xff, 0xff, 10, 9, 0, 1]);
        assert_eq!(gid_from_sysfs(&root, 1, 0).unwrap().gid_type, IBV_GID_TYPE_IB);
        assert_eq!(gid_from_sysfs(&root, 1, 2).unwrap_err(), Errno::ENODATA);
        assert_eq!(gid_from_sysfs(&root, 1, 3).unwrap_err(), Errno::EINVAL);
        fs::remove_dir_all(&root).unwrap();
    }
}
