//! Conventions of the exported functions, shown on a provider that does as little as possible.
use super::{ah, cq, event, mr, pd, qp, query, srq};
use crate::abi::*;
use crate::core::context::finish;
use crate::provider::{AsyncEvent, LibraryOps, context, object, table};
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};

/// A context of the fake provider, and objects as its ops hand them out.
struct Fake {
    vctx: Box<verbs_context>,
}

impl Fake {
    fn new() -> Self {
        let mut vctx = Box::new(verbs_context::zeroed());
        // SAFETY: fresh memory that lives in a box until `drop`.
        unsafe {
            context::init(&mut *vctx, null_mut(), -1, 0);
            table::set_ops(&mut *vctx, &OPS);
            context::set_library_ops(&mut *vctx, &LIBRARY);
            vctx.context.num_comp_vectors = 2;
            finish(&mut *vctx);
        }
        Self { vctx }
    }

    fn context(&mut self) -> *mut ibv_context {
        &raw mut self.vctx.context
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // SAFETY: made by `init`, and every object of the test is gone.
        unsafe { context::uninit(&mut *self.vctx) }
    }
}

fn fresh<T>() -> *mut T {
    // SAFETY: the C structs of these tests are plain data; zero is a value of each.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed() }))
}

/// # Safety
/// `object` must come from `fresh`.
unsafe fn drop_fresh<T>(object: *mut T) -> c_int {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(object) });
    0
}

static OPS: verbs_context_ops = {
    unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
        fresh()
    }
    unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: from `alloc_pd`.
        unsafe { drop_fresh(pd) }
    }
    unsafe extern "C" fn reg_mr(
        _: *mut ibv_pd,
        _: *mut c_void,
        _: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        let mr = fresh::<verbs_mr>();
        // SAFETY: fresh.
        unsafe {
            (*mr).access = access;
            (*mr).ibv_mr.lkey = iova as u32;
        }
        mr.cast()
    }
    unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
        // SAFETY: from `reg_mr`.
        unsafe { drop_fresh(mr) }
    }
    unsafe extern "C" fn rereg_mr(
        _: *mut verbs_mr,
        _: c_int,
        _: *mut ibv_pd,
        _: *mut c_void,
        length: usize,
        _: c_int,
    ) -> c_int {
        if length == 666 {
            Errno::EFAULT.store();
            return libc::EFAULT;
        }
        0
    }
    unsafe extern "C" fn create_cq(
        _: *mut ibv_context,
        _: c_int,
        _: *mut ibv_comp_channel,
        _: c_int,
    ) -> *mut ibv_cq {
        fresh::<verbs_cq>().cast()
    }
    unsafe extern "C" fn create_cq_ex(_: *mut ibv_context, _: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        fresh::<verbs_cq>().cast()
    }
    unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
        // SAFETY: from `create_cq` or `create_cq_ex`.
        unsafe { drop_fresh(cq.cast::<verbs_cq>()) }
    }
    unsafe extern "C" fn create_srq(_: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        fresh::<verbs_srq>().cast()
    }
    unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
        // SAFETY: from `create_srq`.
        unsafe { drop_fresh(srq.cast::<verbs_srq>()) }
    }
    unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        let qp = fresh::<verbs_qp>().cast::<ibv_qp>();
        // SAFETY: fresh; PD and attributes are the test's.
        unsafe { object::init_qp(qp, (*pd).context, pd, attr) };
        qp
    }
    unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
        // SAFETY: from `create_qp`.
        unsafe { drop_fresh(qp.cast::<verbs_qp>()) }
    }
    unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, _: c_int) -> c_int {
        // SAFETY: the test's attributes.
        if unsafe { (*attr).qp_state } == IBV_QPS_RTS { libc::EINVAL } else { 0 }
    }
    unsafe extern "C" fn query_qp(
        _: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        _: c_int,
        _: *mut ibv_qp_init_attr,
    ) -> c_int {
        // SAFETY: the test's attributes.
        unsafe { (*attr).qp_state = IBV_QPS_ERR };
        0
    }
    unsafe extern "C" fn in_order(_: *mut ibv_qp, _: u32, flags: u32) -> c_int {
        assert!(flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0);
        3
    }
    unsafe extern "C" fn create_ah(_: *mut ibv_pd, _: *mut ibv_ah_attr) -> *mut ibv_ah {
        fresh()
    }
    unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
        // SAFETY: from `create_ah`.
        unsafe { drop_fresh(ah) }
    }
    unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
        if port != 1 {
            return libc::EINVAL;
        }
        // SAFETY: the library gives a whole struct.
        unsafe {
            ptr::write_bytes(attr, 0x5a, 1);
            (*attr).pkey_tbl_len = 2;
        }
        0
    }
    verbs_context_ops {
        alloc_pd: Some(alloc_pd),
        dealloc_pd: Some(dealloc_pd),
        reg_mr: Some(reg_mr),
        dereg_mr: Some(dereg_mr),
        rereg_mr: Some(rereg_mr),
        create_cq: Some(create_cq),
        create_cq_ex: Some(create_cq_ex),
        destroy_cq: Some(destroy_cq),
        create_srq: Some(create_srq),
        destroy_srq: Some(destroy_srq),
        create_qp: Some(create_qp),
        destroy_qp: Some(destroy_qp),
        modify_qp: Some(modify_qp),
        query_qp: Some(query_qp),
        query_qp_data_in_order: Some(in_order),
        create_ah: Some(create_ah),
        destroy_ah: Some(destroy_ah),
        query_port: Some(query_port),
        ..verbs_context_ops::zeroed()
    }
};

static LIBRARY: LibraryOps = {
    fn row(index: u32) -> ibv_gid_entry {
        let mut row = ibv_gid_entry::zeroed();
        row.gid.raw[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, index as u8]);
        row.gid_index = index;
        row.port_num = 1;
        row.gid_type = IBV_GID_TYPE_ROCE_V2;
        row.ndev_ifindex = 77;
        row
    }
    LibraryOps {
        events: crate::provider::Events::Looked,
        create_comp_channel: |ctx| {
            let channel = fresh::<ibv_comp_channel>();
            // SAFETY: fresh.
            unsafe { (*channel).context = ctx };
            Ok(channel)
        },
        destroy_comp_channel: |channel| {
            // SAFETY: from `create_comp_channel`.
            unsafe { drop_fresh(channel) };
            Ok(())
        },
        get_cq_event: |_, _| Err(Errno::EAGAIN),
        doorbells: || -1,
        get_async_event: |_, _| Ok(Some(AsyncEvent { element: 1, event_type: IBV_EVENT_PORT_ACTIVE })),
        query_gid: |_, port, index| match (port, index) {
            (1, 0 | 2) => Ok(row(index)),
            (1, 1) => Err(Errno::ENODATA),
            _ => Err(Errno::EINVAL),
        },
        gid_table: |_| Ok(vec![row(0), row(2)]),
        query_pkey: |_, port, index| match (port, index) {
            (1, 0) => Ok(0x7fff),
            (1, 1) => Ok(0xffff),
            _ => Err(Errno::EINVAL),
        },
        extension: None,
    }
};

#[test]
fn a_cq_counts_on_its_channel_and_the_channel_stays_until_then() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    // SAFETY: live objects of the fake context.
    unsafe {
        let channel = event::ibv_create_comp_channel(ctx);
        let cookie = ptr::without_provenance_mut(0xc00);
        let queue = cq::ibv_create_cq(ctx, 4, cookie, channel, 1);
        assert_eq!(((*queue).context, (*queue).channel, (*queue).cq_context), (ctx, channel, cookie));
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        (attr.cqe, attr.channel) = (4, channel);
        let extended = fake.vctx.create_cq_ex.unwrap()(ctx, &mut attr);
        assert_eq!((*channel).refcnt, 2);
        assert_eq!(event::ibv_destroy_comp_channel(channel), libc::EBUSY);
        assert_eq!(cq::ibv_destroy_cq(queue), 0);
        assert_eq!(cq::ibv_destroy_cq(extended.cast()), 0);
        assert_eq!(event::ibv_destroy_comp_channel(channel), 0);
    }
}

#[test]
fn a_cq_of_wrong_size_vector_or_flags_is_refused() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    // SAFETY: live objects of the fake context.
    unsafe {
        for (cqe, vector) in [(0, 0), (-1, 0), (1, 2), (1, -1)] {
            assert!(cq::ibv_create_cq(ctx, cqe, null_mut(), null_mut(), vector).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
        }
        (attr.cqe, attr.wc_flags) = (1, 1 << 12);
        assert!(fake.vctx.create_cq_ex.unwrap()(ctx, &mut attr).is_null());
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
    }
}

#[test]
fn a_port_is_told_in_the_callers_own_size() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    for len in [48, 52, 56, 64] {
        let mut bytes = [0xee_u8; 72];
        // SAFETY: the buffer is longer than every size told.
        let rc = unsafe { fake.vctx.query_port.unwrap()(ctx, 1, bytes.as_mut_ptr().cast(), len) };
        assert_eq!((rc, bytes[0], bytes[47]), (0, 0x5a, 0x5a));
        assert!(bytes[len.min(56)..len].iter().all(|&b| b == 0), "unknown fields are zero");
        assert!(bytes[len..].iter().all(|&b| b == 0xee), "nothing beyond {len}");
    }
    let mut bytes = [0xee_u8; 72];
    // SAFETY: as above.
    unsafe {
        assert_eq!(crate::core::query::ibv_query_port(ctx, 1, bytes.as_mut_ptr().cast()), 0);
        assert_eq!((bytes[47], bytes[48]), (0x5a, 0xee));
        assert_eq!(crate::core::query::ibv_query_port(ctx, 9, bytes.as_mut_ptr().cast()), libc::EINVAL);
    }
}

#[test]
fn empty_gid_rows_differ_by_call_and_short_entries_stay_short() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    // SAFETY: a live context and room for every answer.
    unsafe {
        let mut gid = ibv_gid { raw: [9; 16] };
        assert_eq!((query::ibv_query_gid(ctx, 1, 1, &mut gid), gid.raw), (0, [0; 16]));
        assert_eq!((query::ibv_query_gid(ctx, 1, 2, &mut gid), gid.raw[15]), (0, 2));
        for (port, index) in [(1, 3), (2, 0), (1, -1)] {
            assert_eq!(query::ibv_query_gid(ctx, port, index, &mut gid), -1);
            assert_eq!(Errno::last(), Errno::EINVAL);
        }
        let mut rows = [ibv_gid_entry::zeroed(); 3];
        let whole = size_of::<ibv_gid_entry>();
        assert_eq!(query::query_gid_ex(ctx, 1, 1, &mut rows[0], 0, whole), libc::ENODATA);
        assert_eq!(query::query_gid_ex(ctx, 1, 0, &mut rows[0], 1, whole), libc::EOPNOTSUPP);
        assert_eq!(query::query_gid_ex(ctx, 1, 0, &mut rows[0], 0, whole - 4), 0);
        assert_eq!((rows[0].gid_type, rows[0].ndev_ifindex), (IBV_GID_TYPE_ROCE_V2, 0));
        assert_eq!(query::query_gid_table(ctx, rows.as_mut_ptr(), 1, 0, whole), -(libc::EINVAL as isize));
        assert_eq!(query::query_gid_table(ctx, rows.as_mut_ptr(), 3, 0, whole), 2);
        assert_eq!((rows[0].gid_index, rows[1].gid_index, rows[1].ndev_ifindex), (0, 2, 77));
        let mut kind = 9;
        assert_eq!((query::ibv_query_gid_type(ctx, 1, 0, &mut kind), kind), (0, 1));
    }
}

#[test]
fn pkeys_travel_in_network_byte_order() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    let mut key = 0;
    // SAFETY: a live context and room for the key.
    unsafe {
        assert_eq!((query::ibv_query_pkey(ctx, 1, 0, &mut key), key), (0, 0x7fff_u16.to_be()));
        assert_eq!(query::ibv_query_pkey(ctx, 1, 2, &mut key), -1);
        assert_eq!(query::ibv_get_pkey_index(ctx, 1, 0xffff), 1);
        assert_eq!(query::ibv_get_pkey_index(ctx, 1, 0x7fff_u16.to_be()), 0);
        assert_eq!(query::ibv_get_pkey_index(ctx, 1, 0x1234), -1);
    }
}

#[test]
fn a_region_gets_the_librarys_fields_and_rereg_tells_who_failed() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    let mut memory = [0u8; 64];
    let addr = memory.as_mut_ptr().cast::<c_void>();
    // SAFETY: live objects of the fake context; the fake registers nothing.
    unsafe {
        let (domain, other) = (pd::ibv_alloc_pd(ctx), pd::ibv_alloc_pd(ctx));
        let optional = IBV_ACCESS_RELAXED_ORDERING;
        let region = mr::ibv_reg_mr_iova2(domain, addr, 64, 0x1234, IBV_ACCESS_LOCAL_WRITE | optional);
        assert_eq!(((*region).context, (*region).pd, (*region).addr), (ctx, domain, addr));
        assert_eq!(((*region).length, (*region).lkey), (64, 0x1234));
        assert_eq!((*region.cast::<verbs_mr>()).access as u32, IBV_ACCESS_LOCAL_WRITE);
        assert!(mr::ibv_reg_mr(domain, addr, 64, IBV_ACCESS_REMOTE_WRITE as c_int).is_null());
        assert_eq!(Errno::last(), Errno::EINVAL);
        assert!(mr::ibv_reg_mr(domain, addr, usize::MAX, 0).is_null());

        let (all, none) = (IBV_REREG_MR_FLAGS_SUPPORTED as c_int, null_mut());
        let translation = IBV_REREG_MR_CHANGE_TRANSLATION as c_int;
        let access = IBV_REREG_MR_CHANGE_ACCESS as c_int;
        for (flags, to, address, length, rights) in [
            (0, none, null_mut(), 0, 0),
            (8, none, null_mut(), 0, 0),
            (translation, none, null_mut(), 64, 0),
            (translation, none, addr, 0, 0),
            (translation, none, addr, 64, 1),
            (IBV_REREG_MR_CHANGE_PD as c_int, none, null_mut(), 0, 0),
            (access, none, null_mut(), 0, IBV_ACCESS_REMOTE_WRITE as c_int),
        ] {
            let rc = mr::ibv_rereg_mr(region, flags, to, address, length, rights);
            assert_eq!(rc, IBV_REREG_MR_ERR_INPUT, "flags {flags}");
        }
        assert_eq!(((*region).pd, (*region).length), (domain, 64));
        assert_eq!(mr::ibv_rereg_mr(region, translation, none, addr, 666, 0), IBV_REREG_MR_ERR_CMD);
        assert_eq!(Errno::last(), Errno::EFAULT);
        assert_eq!(mr::ibv_rereg_mr(region, all, other, addr, 32, 1), 0);
        assert_eq!(((*region).pd, (*region).length), (other, 32));
        assert_eq!(mr::ibv_dereg_mr(region), 0);
        pd::ibv_dealloc_pd(domain);
        pd::ibv_dealloc_pd(other);
    }
}

#[test]
fn library_buffers_register_within_their_bounds_and_pd() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    // SAFETY: live objects of the fake context.
    unsafe {
        let (domain, other) = (pd::ibv_alloc_pd(ctx), pd::ibv_alloc_pd(ctx));
        let mut buf = null_mut();
        let addr = mr::ibv_alloc_buf(domain, 8192, &mut buf);
        assert_eq!(addr.addr() % 4096, 0);
        let region = mr::ibv_reg_buf_mr(domain, buf, addr.byte_add(4096), 4096, 1);
        assert_eq!(((*region).addr, (*region).length), (addr.byte_add(4096), 4096));
        mr::ibv_dereg_mr(region);
        for (to, from, length) in [(domain, addr.byte_add(4096), 4097), (other, addr, 1)] {
            assert!(mr::ibv_reg_buf_mr(to, buf, from, length, 1).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
        }
        assert_eq!(mr::ibv_export_buf_dmabuf_fd(buf), -1);
        assert_eq!(Errno::last(), Errno::ENODATA);
        mr::ibv_free_buf(buf);
        pd::ibv_dealloc_pd(domain);
        pd::ibv_dealloc_pd(other);
    }
}

#[test]
fn qp_state_follows_success_only() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    // SAFETY: live objects of the fake context.
    unsafe {
        let domain = pd::ibv_alloc_pd(ctx);
        let mut init = ibv_qp_init_attr::zeroed();
        init.qp_type = IBV_QPT_RC;
        let pair = qp::ibv_create_qp(domain, &mut init);
        let mut attr = ibv_qp_attr::zeroed();
        let state = IBV_QP_STATE as c_int;
        attr.qp_state = IBV_QPS_INIT;
        assert_eq!((qp::ibv_modify_qp(pair, &mut attr, 0), (*pair).state), (0, IBV_QPS_RESET));
        assert_eq!((qp::ibv_modify_qp(pair, &mut attr, state), (*pair).state), (0, IBV_QPS_INIT));
        attr.qp_state = IBV_QPS_RTS;
        assert_eq!(qp::ibv_modify_qp(pair, &mut attr, state), libc::EINVAL);
        assert_eq!((*pair).state, IBV_QPS_INIT);
        assert_eq!(qp::ibv_query_qp(pair, &mut attr, 0, &mut init), 0);
        assert_eq!((*pair).state, IBV_QPS_INIT);
        qp::ibv_query_qp(pair, &mut attr, state, &mut init);
        assert_eq!((*pair).state, IBV_QPS_ERR);

        assert!(qp::ibv_qp_to_qp_ex(pair).is_null());
        (*pair.cast::<verbs_qp>()).comp_mask = VERBS_QP_EX;
        assert_eq!(qp::ibv_qp_to_qp_ex(pair), pair.cast());

        let mut ece = ibv_ece::zeroed();
        assert_eq!(qp::ibv_set_ece(pair, &mut ece), libc::EOPNOTSUPP);
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
        let device_only = IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
        assert_eq!(qp::ibv_query_qp_data_in_order(pair, IBV_WR_SEND, device_only), 1);
        assert_eq!(qp::ibv_query_qp_data_in_order(pair, IBV_WR_SEND, device_only | 1), 3);
        assert_eq!(qp::ibv_query_qp_data_in_order(pair, IBV_WR_SEND, 1 << 7), 0);
        let group = ibv_gid { raw: [0xfe; 16] };
        assert_eq!(qp::ibv_attach_mcast(pair, &group, 0), libc::EINVAL);
        qp::ibv_destroy_qp(pair);
        pd::ibv_dealloc_pd(domain);
    }
}

#[test]
fn acknowledgements_reach_the_counter_of_their_kind() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    // SAFETY: live objects of the fake context.
    unsafe {
        let domain = pd::ibv_alloc_pd(ctx);
        let queue = cq::ibv_create_cq(ctx, 1, null_mut(), null_mut(), 0);
        let shared = srq::ibv_create_srq(domain, &mut ibv_srq_init_attr::zeroed());
        let pair = qp::ibv_create_qp(domain, &mut ibv_qp_init_attr::zeroed());
        event::ibv_ack_cq_events(queue, 3);
        let mut e = ibv_async_event::zeroed();
        (e.element.cq, e.event_type) = (queue, IBV_EVENT_CQ_ERR);
        event::ibv_ack_async_event(&mut e);
        (e.element.srq, e.event_type) = (shared, IBV_EVENT_SRQ_LIMIT_REACHED);
        event::ibv_ack_async_event(&mut e);
        (e.element.qp, e.event_type) = (pair, IBV_EVENT_QP_LAST_WQE_REACHED);
        event::ibv_ack_async_event(&mut e);
        assert_eq!(((*queue).comp_events_completed, (*queue).async_events_completed), (3, 1));
        assert_eq!(((*shared).events_completed, (*pair).events_completed), (1, 1));
        assert_eq!(event::ibv_get_async_event(ctx, &mut e), 0);
        assert_eq!((e.element.port_num, e.event_type), (1, IBV_EVENT_PORT_ACTIVE));
        event::ibv_ack_async_event(&mut e);
        qp::ibv_destroy_qp(pair);
        srq::ibv_destroy_srq(shared);
        cq::ibv_destroy_cq(queue);
        pd::ibv_dealloc_pd(domain);
    }
}

#[test]
fn an_address_handle_answers_the_sender() {
    let mut fake = Fake::new();
    let ctx = fake.context();
    let mut wc = ibv_wc::zeroed();
    let mut attr = ibv_ah_attr::zeroed();
    let mut grh = ibv_grh::zeroed();
    let mapped = |last| {
        let mut gid = ibv_gid { raw: [0; 16] };
        gid.raw[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
        gid
    };
    grh.version_tclass_flow = 0x6120_0005_u32.to_be();
    (grh.hop_limit, grh.sgid, grh.dgid) = (64, mapped(99), mapped(2));
    // SAFETY: a live context; completion, header and answer are the test's own.
    unsafe {
        (wc.sl, wc.slid) = (3, 7);
        assert_eq!(ah::ibv_init_ah_from_wc(ctx, 1, &mut wc, null_mut(), &mut attr), 0);
        assert_eq!((attr.is_global, attr.sl, attr.dlid, attr.port_num), (0, 3, 7, 1));
        wc.wc_flags = IBV_WC_GRH;
        assert_eq!(ah::ibv_init_ah_from_wc(ctx, 1, &mut wc, &mut grh, &mut attr), 0);
        assert_eq!((attr.is_global, attr.grh.sgid_index, attr.grh.dgid.raw[15]), (1, 2, 99));
        assert_eq!((attr.grh.flow_label, attr.grh.traffic_class, attr.grh.hop_limit), (5, 0x12, 64));
        assert_eq!(ah::ibv_init_ah_from_wc(ctx, 1, &mut wc, null_mut(), &mut attr), -1);
        grh.dgid = mapped(50);
        assert_eq!(ah::ibv_init_ah_from_wc(ctx, 1, &mut wc, &mut grh, &mut attr), -1);
        grh.dgid = mapped(0);
        let domain = pd::ibv_alloc_pd(ctx);
        let handle = ah::ibv_create_ah_from_wc(domain, &mut wc, &mut grh, 1);
        assert_eq!(((*handle).context, (*handle).pd), (ctx, domain));
        ah::ibv_destroy_ah(handle);
        pd::ibv_dealloc_pd(domain);
    }
}

#[test]
fn null_arguments_are_einval_not_a_crash() {
    // SAFETY: NULL everywhere is what the functions check for.
    unsafe {
        for code in [
            pd::ibv_dealloc_pd(null_mut()),
            mr::ibv_dereg_mr(null_mut()),
            cq::ibv_destroy_cq(null_mut()),
            cq::ibv_resize_cq(null_mut(), 1),
            srq::ibv_destroy_srq(null_mut()),
            srq::ibv_query_srq(null_mut(), null_mut()),
            qp::ibv_destroy_qp(null_mut()),
            qp::ibv_modify_qp(null_mut(), null_mut(), 0),
            qp::ibv_attach_mcast(null_mut(), ptr::null(), 0),
            ah::ibv_destroy_ah(null_mut()),
            event::ibv_destroy_comp_channel(null_mut()),
            crate::core::query::ibv_query_device(null_mut(), null_mut()),
        ] {
            assert_eq!(code, libc::EINVAL);
        }
        assert!(pd::ibv_alloc_pd(null_mut()).is_null());
        assert!(mr::ibv_reg_mr(null_mut(), null_mut(), 0, 0).is_null());
        assert_eq!(mr::ibv_rereg_mr(null_mut(), 1, null_mut(), null_mut(), 0, 0), IBV_REREG_MR_ERR_INPUT);
        assert_eq!(event::ibv_get_cq_event(null_mut(), null_mut(), null_mut()), -1);
        assert_eq!(query::ibv_query_gid(null_mut(), 1, 0, null_mut()), -1);
        event::ibv_ack_cq_events(null_mut(), 1);
        event::ibv_ack_async_event(null_mut());
        mr::ibv_free_buf(null_mut());
    }
}
