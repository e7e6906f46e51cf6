//! What device and ports say of themselves.
use super::write::{self, Extended, Plain, number};
use super::{Ioctl, Way, code, object};
use crate::abi::*;
use crate::provider::{context as library, object as versioned};
use crate::sys::errno::Errno;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

const QUERY_PORT: u16 = 2;
const QUERY_GID_TABLE: u16 = 5;
const QUERY_GID_ENTRY: u16 = 6;
const QUERY_PORT_SPEED: u16 = 7;

/// Device attributes as far as caller and kernel know them; `resp` keeps the kernel's answer and the provider's tail, and
/// `*resp_size` becomes what of it is filled.
///
/// # Safety
/// `ctx` live, `input` null or readable, `attr` valid for `attr_size` bytes, `resp` for `*resp_size`; both may be null.
pub unsafe extern "C" fn query_device_any(
    ctx: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
    resp: *mut ib_uverbs_ex_query_device_resp,
    resp_size: *mut usize,
) -> c_int {
    // SAFETY: the caller vouches for all.
    code(unsafe { query_device(ctx, input, attr, attr_size, resp, resp_size) })
}

/// # Safety
/// As `query_device_any`.
unsafe fn query_device(
    ctx: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
    resp: *mut ib_uverbs_ex_query_device_resp,
    resp_size: *mut usize,
) -> Result<(), Errno> {
    // Where the provider has no room; cleared below with what else is used.
    let mut own = MaybeUninit::<ib_uverbs_ex_query_device_resp>::uninit();
    // SAFETY: the caller vouches for all pointers that are not null; zero is an answer that says nothing.
    unsafe {
        if input.as_ref().is_some_and(|input| input.comp_mask != 0)
            || attr_size < size_of::<ibv_device_attr>()
        {
            return Err(Errno::EINVAL);
        }
        let given = if resp.is_null() { 0 } else { resp_size.as_ref().copied().unwrap_or(0) };
        let (to, room) =
            if given >= size_of_val(&own) { (resp, given) } else { (own.as_mut_ptr(), size_of_val(&own)) };
        to.cast::<u8>().write_bytes(0, room);
        let mut filled = room;
        // A caller that knows no more than the first command tells is asked for by that one.
        let mut asked = Err(Errno::EOPNOTSUPP);
        if attr_size > size_of::<ibv_device_attr>() {
            let mut request = Extended::of(ib_uverbs_ex_query_device { comp_mask: 0, reserved: 0 });
            let size = size_of_val(&request);
            let core = size_of_val(&own);
            asked =
                write::extended(ctx, number::QUERY_DEVICE, &mut request, size, size, to.cast(), core, room);
        }
        match asked {
            Ok(()) => {}
            Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT)) => {
                let mut request = Plain::of(ib_uverbs_query_device { response: 0 });
                let size = size_of_val(&request);
                let base = &raw mut (*to).base;
                write::plain(ctx, number::QUERY_DEVICE, &mut request, size, base, size_of_val(&*base))?;
                (*to).response_length = size_of::<ib_uverbs_query_device_resp>() as u32;
                filled = size_of::<ib_uverbs_query_device_resp>();
            }
            Err(e) => return Err(e),
        }
        if given > 0 && !resp_size.is_null() {
            *resp_size = filled.min(given);
        }
        if to != resp && given > 0 {
            resp.cast::<u8>().copy_from_nonoverlapping(to.cast(), given);
        }
        if attr_size == size_of::<ibv_device_attr>() {
            attr.cast::<ibv_device_attr>().write(base_attr(&(*to).base));
            return Ok(());
        }
        let mut all = device_attr(&*to);
        let device = (*ctx).device.cast::<verbs_device>();
        let ports = (*device).sysfs.as_ref().map_or(0, |sysfs| sysfs.num_ports);
        all.phys_port_cnt_ex = if ports > 0 { ports } else { all.orig_attr.phys_port_cnt.into() };
        versioned::write_versioned(attr.cast(), attr_size, &all);
    }
    Ok(())
}

/// What the first command tells, which is all that `ibv_query_device` asks.
fn base_attr(b: &ib_uverbs_query_device_resp) -> ibv_device_attr {
    let mut to = ibv_device_attr::zeroed();
    macro_rules! same {
        ($($f:ident)*) => { $(to.$f = b.$f as _;)* };
    }
    same!(node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver max_qp max_qp_wr
        device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom
        max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp
        max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr
        max_map_per_fmr max_srq max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt);
    to
}

/// The kernel's answer in the application's words. What an older kernel leaves out is zero.
fn device_attr(r: &ib_uverbs_ex_query_device_resp) -> ibv_device_attr_ex {
    let mut to = ibv_device_attr_ex::zeroed();
    let b = &r.base;
    to.orig_attr = base_attr(b);
    let told = |end: usize| r.response_length as usize >= end;
    macro_rules! end_of {
        ($f:ident) => {
            offset_of!(ib_uverbs_ex_query_device_resp, $f) + size_of_val(&r.$f)
        };
    }
    if told(end_of!(odp_reserved)) {
        to.odp_caps.general_caps = r.odp_general_caps;
        to.odp_caps.per_transport_caps.rc_odp_caps = r.rc_odp_caps;
        to.odp_caps.per_transport_caps.uc_odp_caps = r.uc_odp_caps;
        to.odp_caps.per_transport_caps.ud_odp_caps = r.ud_odp_caps;
    }
    if told(end_of!(timestamp_mask)) {
        to.completion_timestamp_mask = r.timestamp_mask;
    }
    if told(end_of!(hca_core_clock)) {
        to.hca_core_clock = r.hca_core_clock;
    }
    to.device_cap_flags_ex =
        if told(end_of!(device_cap_flags_ex)) { r.device_cap_flags_ex } else { b.device_cap_flags.into() };
    if told(end_of!(rss_reserved)) {
        to.rss_caps.supported_qpts = r.rss_supported_qpts;
        to.rss_caps.max_rwq_indirection_tables = r.max_rwq_indirection_tables;
        to.rss_caps.max_rwq_indirection_table_size = r.max_rwq_indirection_table_size;
    }
    if told(end_of!(max_wq_type_rq)) {
        to.max_wq_type_rq = r.max_wq_type_rq;
    }
    if told(end_of!(raw_packet_caps)) {
        to.raw_packet_caps = r.raw_packet_caps;
    }
    if told(end_of!(tm_reserved)) {
        to.tm_caps = ibv_tm_caps {
            max_rndv_hdr_size: r.tm_max_rndv_hdr_size,
            max_num_tags: r.tm_max_num_tags,
            flags: r.tm_flags,
            max_ops: r.tm_max_ops,
            max_sge: r.tm_max_sge,
        };
    }
    if told(end_of!(cq_reserved)) {
        to.cq_mod_caps.max_cq_count = r.max_cq_moderation_count;
        to.cq_mod_caps.max_cq_period = r.max_cq_moderation_period;
    }
    if told(end_of!(max_dm_size)) {
        to.max_dm_size = r.max_dm_size;
    }
    if told(end_of!(xrc_odp_caps)) {
        to.xrc_odp_caps = r.xrc_odp_caps;
    }
    to
}

/// Attributes of a port, as many bytes as the provider's release has of them.
///
/// # Safety
/// `ctx` live, `attr` valid for the struct of the provider's release, `cmd` for `cmd_size` bytes.
pub unsafe extern "C" fn query_port(
    ctx: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    cmd: *mut Plain<ib_uverbs_query_port>,
    cmd_size: usize,
) -> c_int {
    let mut answer = ib_uverbs_query_port_resp_ex::zeroed();
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_PORT);
    ioctl.constant(0, port.into());
    ioctl.out(1, &mut answer);
    // SAFETY: the provider gives a live context, its request and room for the attributes.
    code(unsafe {
        ioctl.try_send(ctx).and_then(|way| {
            if way == Way::Write {
                (*cmd).core.port_num = port;
                (*cmd).core.reserved = [0; 7];
                let legacy = &mut answer.legacy_resp;
                let room = size_of_val(legacy);
                write::plain(ctx, number::QUERY_PORT, cmd, cmd_size, legacy, room)?;
            }
            let size = (*library::private(ctx)).layout.port_attr;
            versioned::write_versioned(attr.cast(), size, &port_attr(&answer));
            Ok(())
        })
    })
}

fn port_attr(r: &ib_uverbs_query_port_resp_ex) -> ibv_port_attr {
    let mut to = ibv_port_attr::zeroed();
    let l = &r.legacy_resp;
    macro_rules! same {
        ($($f:ident)*) => { $(to.$f = l.$f as _;)* };
    }
    same!(state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len
        lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state
        link_layer flags);
    to.port_cap_flags2 = r.port_cap_flags2;
    to.active_speed_ex = r.active_speed_ex;
    to
}

/// A row of a port's GID table.
///
/// # Errors
/// EOPNOTSUPP where the kernel does not tell by ioctl, ENODATA for an empty row, EINVAL where there is none.
///
/// # Safety
/// `ctx` must be an open context of the kernel's.
pub unsafe fn gid_entry(ctx: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    let mut row = ib_uverbs_gid_entry::zeroed();
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_GID_ENTRY);
    ioctl.constant(0, port.into());
    ioctl.constant(1, index.into());
    ioctl.value(2, 0u32);
    ioctl.out(3, &mut row);
    // SAFETY: the caller vouches for the context. The method's bit is the first of the next object's, which has fewer.
    unsafe { sent_or_unknown(ioctl.send(ctx)) }?;
    Ok(entry(&row))
}

/// All rows that hold a GID, of all ports.
///
/// # Errors
/// EOPNOTSUPP where the kernel does not tell by ioctl.
///
/// # Safety
/// As `gid_entry`; `most` rows at most are asked for.
pub unsafe fn gid_table(ctx: *mut ibv_context, most: usize) -> Result<Vec<ibv_gid_entry>, Errno> {
    // An attribute has 64 KiB at most.
    let most = most.clamp(1, usize::from(u16::MAX) / size_of::<ib_uverbs_gid_entry>());
    let mut rows = vec![ib_uverbs_gid_entry::zeroed(); most];
    let mut count = 0u64;
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_GID_TABLE);
    ioctl.constant(0, size_of::<ib_uverbs_gid_entry>() as u64);
    ioctl.value(1, 0u32);
    ioctl.bytes_out(2, rows.as_mut_ptr().cast(), size_of_val(&rows[..]));
    ioctl.out(3, &mut count);
    // SAFETY: the caller vouches for the context.
    unsafe { sent_or_unknown(ioctl.send(ctx)) }?;
    Ok(rows.iter().take(count as usize).map(entry).collect())
}

/// The speed of a port in units of 100 Mb/s.
///
/// # Safety
/// `ctx` live, `speed` valid for writes.
pub unsafe extern "C" fn query_port_speed(ctx: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_PORT_SPEED);
    ioctl.constant(0, port.into());
    // SAFETY: the provider gives a live context and room for the answer.
    code(unsafe {
        ioctl.out(1, &mut *speed);
        ioctl.send_only(ctx)
    })
}

fn sent_or_unknown(sent: Result<(), Errno>) -> Result<(), Errno> {
    sent.map_err(|e| match e {
        Errno(libc::ENOTTY | libc::EPROTONOSUPPORT) => Errno::EOPNOTSUPP,
        e => e,
    })
}

fn entry(row: &ib_uverbs_gid_entry) -> ibv_gid_entry {
    let mut to = ibv_gid_entry::zeroed();
    to.gid.raw[..8].copy_from_slice(&row.gid[0].to_ne_bytes());
    to.gid.raw[8..].copy_from_slice(&row.gid[1].to_ne_bytes());
    to.gid_index = row.gid_index;
    to.port_num = row.port_num;
    to.gid_type = row.gid_type;
    to.ndev_ifindex = row.netdev_ifindex;
    to
}
