//! Devices, contexts, and the calls outside the ops table.
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::import;
use super::{ChannelObject, Context, CqObject, QpObject, SrqObject, buffer, context, object};
use crate::abi::*;
use crate::provider::{self, AsyncEvent, Found, LibraryOps, Look, Provider};
use crate::soft::channel::{AsyncQueue, CompChannel};
use crate::soft::device::{self, Device};
use crate::soft::gid::{GidEntry, GidTable};
use crate::soft::lid::Lids;
use crate::soft::link::faults::OfContext;
use crate::soft::node;
use crate::soft::types::EventType;
use crate::sys::errno::Errno;
use crate::sys::fd;
use crate::sys::log::explain;

/// urxe as a source of devices.
pub struct Soft;

impl Provider for Soft {
    fn name(&self) -> &'static str {
        "urxe"
    }

    fn devices(&self, kernel_devices: bool) -> Vec<Found> {
        device::listed(kernel_devices).into_iter().map(found).collect()
    }

    fn token_of(&self, cmd_fd: RawFd) -> Option<usize> {
        import::identify(cmd_fd).map(|(device, _)| device as usize)
    }

    unsafe fn alloc_context(&self, dev: *mut ibv_device, token: usize) -> Result<*mut verbs_context, Errno> {
        // SAFETY: the caller's promises are this function's.
        unsafe { open(dev, token) }.inspect_err(|e| match *e {
            // Told where it was found: no device, or a setting that means nothing.
            Errno::ENODEV | Errno::EINVAL => {}
            Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => {
                explain(format_args!("ibv_open_device: {e:?}: no descriptors or memory are left for urxe"));
            }
            e => explain(format_args!(
                "ibv_open_device: {e:?}: the kernel refuses urxe a memory file, eventfd or epoll set"
            )),
        })
    }
}

/// A context of the device with this number. ENODEV, which is told, where there is none any more; else errors are those of memory files,
/// eventfd and epoll_create.
///
/// # Safety
/// As for `alloc_context`.
unsafe fn open(dev: *mut ibv_device, token: usize) -> Result<*mut verbs_context, Errno> {
    let device = device::listed(false).into_iter().nth(token).ok_or_else(|| {
        explain(format_args!("ibv_open_device: the environment offers this device no longer"));
        Errno::ENODEV
    })?;
    let node = node::node()?;
    // What is wrong with the table is told, also where nobody comes to need it.
    Lids::given();
    node.stats.name_device(device.index, &device.name);
    let events = Arc::new(AsyncQueue::new()?);
    // A descriptor for the same queue that `ibv_close_device` may close.
    let async_fd = fd::duplicate(events.fd())?;
    node.events.add(&events);
    // From now on somebody must see when the port changes.
    node.wires.start(node);
    let cmd_fd = import::command_fd(node, device.index)?.into_raw_fd();
    let faults = OfContext::new(node.faults);
    let context =
        Box::into_raw(Box::new(Context { vctx: verbs_context::zeroed(), node, events, device, faults }));
    // SAFETY: the context is new and nobody else's; `uninit` closes the descriptors given here.
    unsafe {
        let vctx = &raw mut (*context).vctx;
        provider::context::init(vctx, dev, cmd_fd, 0);
        provider::table::set_ops(vctx, &OPS);
        provider::context::set_library_ops(vctx, &LIBRARY);
        (*vctx).context.async_fd = async_fd.into_raw_fd();
        (*vctx).context.num_comp_vectors = device::comp_vectors() as i32;
        Ok(vctx)
    }
}

unsafe extern "C" fn free_context(c: *mut ibv_context) {
    // SAFETY: the library calls this once, for a context that `alloc_context` made and that has no users left.
    unsafe {
        let whole = std::ptr::from_ref(context(c)).cast_mut();
        provider::context::uninit(&raw mut (*whole).vctx);
        drop(Box::from_raw(whole));
    }
}

static LIBRARY: LibraryOps = LibraryOps {
    events: provider::Events::Looked,
    create_comp_channel,
    destroy_comp_channel,
    get_cq_event,
    doorbells: crate::soft::engine::doorbells,
    get_async_event,
    query_gid,
    gid_table,
    query_pkey,
    extension: Some(&super::extension::EXTENSION),
};

unsafe fn create_comp_channel(c: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    let channel = Arc::new(CompChannel::new()?);
    let c = ibv_comp_channel { context: c, fd: channel.fd(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(ChannelObject { c, channel })).cast())
}

unsafe fn destroy_comp_channel(c: *mut ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: the library calls this once, when no CQ uses the channel.
    drop(unsafe { Box::from_raw(c.cast::<ChannelObject>()) });
    Ok(())
}

unsafe fn get_cq_event(c: *mut ibv_comp_channel, look: Look) -> Result<Option<*mut ibv_cq>, Errno> {
    // SAFETY: a live channel of urxe; destroying a CQ takes its events off the channel first, under the same lock.
    unsafe {
        let channel: &ChannelObject = object(c);
        let cookie = channel.channel.next_event(look, |cookie| {
            let cq = *cookie as *mut ibv_cq;
            object::<_, CqObject>(cq).comp_events.fetch_add(1, Ordering::SeqCst);
        })?;
        Ok(cookie.map(|cookie| cookie as *mut ibv_cq))
    }
}

unsafe fn get_async_event(c: *mut ibv_context, look: Look) -> Result<Option<AsyncEvent>, Errno> {
    // SAFETY: a live context of urxe; destroying an object takes its events off the queue first, under the same lock.
    let event = unsafe { context(c).events.next_event(look, |event| count(event.kind, event.element)) }?;
    Ok(event.map(|event| AsyncEvent { element: event.element as u64, event_type: event.kind.raw() }))
}

/// Counts an event as handed out to the object that it names.
///
/// # Safety
/// `element` must be a live object of the kind that such events name.
unsafe fn count(kind: EventType, element: usize) {
    // SAFETY: the caller vouches for the object.
    let counter = unsafe {
        match kind {
            EventType::CqErr => &object::<_, CqObject>(element as *mut ibv_cq).async_events,
            EventType::SrqErr | EventType::SrqLimitReached => {
                &object::<_, SrqObject>(element as *mut ibv_srq).async_events
            }
            _ if kind.names_an_object() => &object::<_, QpObject>(element as *mut ibv_qp).async_events,
            _ => return,
        }
    };
    counter.fetch_add(1, Ordering::SeqCst);
}

unsafe fn query_gid(c: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    // SAFETY: a live context of urxe.
    let gids = unsafe { gids(c) };
    match gids.get(index as usize) {
        Some(entry) if port == 1 => Ok(row(index as usize, &entry)),
        None if port == 1 && (index as usize) < gids.len() => Err(Errno::ENODATA),
        _ => Err(Errno::EINVAL),
    }
}

unsafe fn gid_table(c: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
    // SAFETY: a live context of urxe.
    let gids = unsafe { gids(c) };
    Ok(gids.entries().iter().map(|(index, entry)| row(*index, entry)).collect())
}

/// The GID table; of a context inherited over a fork, the child's own, since the parent's may have been in use.
///
/// # Safety
/// `c` must be a live context of urxe.
unsafe fn gids(c: *mut ibv_context) -> &'static GidTable {
    // SAFETY: the caller vouches for the context.
    let node = unsafe { context(c) }.node;
    if node.is_ours() { node.gids() } else { node::node().map_or(node.gids(), |own| own.gids()) }
}

fn row(index: usize, entry: &GidEntry) -> ibv_gid_entry {
    let mut row = ibv_gid_entry::zeroed();
    row.gid.raw = entry.gid.0;
    row.gid_index = index as u32;
    row.port_num = 1;
    // An InfiniBand port's GIDs belong to no network interface.
    if device::port_lid() == 0 {
        row.gid_type = IBV_GID_TYPE_ROCE_V2;
        row.ndev_ifindex = entry.ifindex;
    } else {
        row.gid_type = IBV_GID_TYPE_IB;
    }
    row
}

fn found(d: Device) -> Found {
    // Paths are told where the view library makes them lead somewhere.
    let path = |folder: &str, name: &str| {
        if crate::sys::has_view() { format!("{folder}/{name}") } else { String::new() }
    };
    Found {
        dev_path: path("/sys/class/infiniband_verbs", &d.node),
        ibdev_path: path("/sys/class/infiniband", &d.name),
        name: d.name,
        dev_name: d.node,
        node_type: IBV_NODE_CA,
        transport_type: IBV_TRANSPORT_IB,
        guid: u64::from_ne_bytes(d.guid),
        index: -1,
        token: d.index as usize,
    }
}

unsafe fn query_pkey(_: *mut ibv_context, port: u8, index: u32) -> Result<u16, Errno> {
    if port == 1 && index == 0 { Ok(0xffff) } else { Err(Errno::EINVAL) }
}

unsafe extern "C" fn query_device_ex(
    c: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> i32 {
    // SAFETY: the library passes a live context, and `attr` has `size` bytes of an older or newer version of the struct.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            explain(format_args!(
                "ibv_query_device_ex input.comp_mask=0x{:x}: expected 0",
                (*input).comp_mask
            ));
            return libc::EINVAL;
        }
        provider::object::write_versioned(attr.cast(), size, &context(c).device.attr_ex());
    }
    0
}

unsafe extern "C" fn query_port(c: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> i32 {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the library passes a live context and room for the whole struct.
    unsafe {
        let gids = gids(c);
        let mut a = device::port_attr(gids);
        let context = context(c);
        if context.node.is_ours() {
            (a.bad_pkey_cntr, a.qkey_viol_cntr) = context.node.stats.violations(context.device.index);
        }
        attr.write(a);
    }
    0
}

unsafe extern "C" fn query_port_speed(_: *mut ibv_context, port: u32, speed: *mut u64) -> i32 {
    if port != 1 {
        explain(format_args!("ibv_query_port_speed port_num={port}: expected 1, the only port"));
        return libc::EINVAL;
    }
    // SAFETY: the library passes room for the number.
    unsafe { speed.write(device::PORT_SPEED) };
    0
}

unsafe extern "C" fn query_rt_values(_: *mut ibv_context, values: *mut ibv_values_ex) -> i32 {
    // SAFETY: the caller passes room for the struct.
    unsafe {
        let wanted = (*values).comp_mask;
        (*values).comp_mask = wanted & IBV_VALUES_MASK_RAW_CLOCK;
        if wanted & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = crate::sys::clock::now_ns();
            (*values).raw_clock.tv_sec = (now / 1_000_000_000) as i64;
            (*values).raw_clock.tv_nsec = (now % 1_000_000_000) as i64;
        }
    }
    0
}

/// What urxe has; all else says EOPNOTSUPP by the default table.
static OPS: verbs_context_ops = {
    use super::{address, counters, domains, handles, import, memory, post, qp, queues, window, xrcd};
    verbs_context_ops {
        alloc_parent_domain: Some(domains::alloc_parent_domain),
        alloc_td: Some(domains::alloc_td),
        dealloc_td: Some(domains::dealloc_td),
        modify_cq: Some(queues::modify_cq),
        import_dm: Some(import::import_dm),
        import_mr: Some(import::import_mr),
        import_pd: Some(import::import_pd),
        unimport_dm: Some(import::unimport_dm),
        unimport_mr: Some(import::unimport_mr),
        unimport_pd: Some(import::unimport_pd),
        open_qp: Some(handles::open_qp),
        attach_mcast: Some(qp::attach_mcast),
        detach_mcast: Some(qp::detach_mcast),
        advise_mr: Some(memory::advise_mr),
        alloc_buf: Some(buffer::alloc_buf),
        alloc_dm: Some(memory::alloc_dm),
        free_buf: Some(buffer::free_buf),
        alloc_mw: Some(window::alloc_mw),
        alloc_null_mr: Some(memory::alloc_null_mr),
        alloc_pd: Some(memory::alloc_pd),
        bind_mw: Some(window::bind_mw),
        close_xrcd: Some(xrcd::close_xrcd),
        create_ah: Some(address::create_ah),
        create_comp_cntr: Some(counters::create_comp_cntr),
        destroy_comp_cntr: Some(counters::destroy_comp_cntr),
        inc_comp_cntr: Some(counters::inc_comp_cntr),
        inc_err_comp_cntr: Some(counters::inc_err_comp_cntr),
        qp_attach_comp_cntr: Some(counters::qp_attach_comp_cntr),
        query_comp_cntr_caps: Some(counters::query_comp_cntr_caps),
        read_comp_cntr: Some(counters::read_comp_cntr),
        read_err_comp_cntr: Some(counters::read_err_comp_cntr),
        set_comp_cntr: Some(counters::set_comp_cntr),
        set_err_comp_cntr: Some(counters::set_err_comp_cntr),
        create_cq: Some(queues::create_cq),
        create_cq_ex: Some(queues::create_cq_ex),
        create_qp: Some(qp::create_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        create_srq: Some(queues::create_srq),
        create_srq_ex: Some(queues::create_srq_ex),
        dealloc_mw: Some(window::dealloc_mw),
        dealloc_pd: Some(memory::dealloc_pd),
        dereg_mr: Some(memory::dereg_mr),
        dm_export_dmabuf_fd: Some(memory::dm_export_dmabuf_fd),
        destroy_ah: Some(address::destroy_ah),
        destroy_cq: Some(queues::destroy_cq),
        destroy_qp: Some(qp::destroy_qp),
        destroy_srq: Some(queues::destroy_srq),
        free_context: Some(free_context),
        free_dm: Some(memory::free_dm),
        get_srq_num: Some(queues::get_srq_num),
        modify_qp: Some(qp::modify_qp),
        modify_srq: Some(queues::modify_srq),
        open_xrcd: Some(xrcd::open_xrcd),
        poll_cq: Some(post::poll_cq),
        post_recv: Some(post::post_recv),
        post_send: Some(post::post_send),
        post_srq_recv: Some(post::post_srq_recv),
        query_device_ex: Some(query_device_ex),
        query_port: Some(query_port),
        query_port_speed: Some(query_port_speed),
        query_qp: Some(qp::query_qp),
        query_rt_values: Some(query_rt_values),
        query_srq: Some(queues::query_srq),
        reg_dm_mr: Some(memory::reg_dm_mr),
        reg_dmabuf_mr: Some(memory::reg_dmabuf_mr),
        reg_mr: Some(memory::reg_mr),
        req_notify_cq: Some(post::req_notify_cq),
        rereg_mr: Some(memory::rereg_mr),
        resize_cq: Some(queues::resize_cq),
        ..verbs_context_ops::zeroed()
    }
};
