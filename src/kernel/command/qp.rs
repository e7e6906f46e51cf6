//! Queue pairs: making, opening, destroying.
use super::write::{self, Extended, Plain, number};
use super::{Ioctl, Tail, Way, answer, code, fill, forgive, object, user_handle};
use crate::abi::*;
use crate::provider::{context as library, object as common};
use crate::sys::errno::Errno;
use crate::sys::pthread;
use std::ffi::c_int;
use std::ptr;

const CREATE: u16 = 0;
const DESTROY: u16 = 1;

const HANDLE: u16 = 0;
const XRCD_HANDLE: u16 = 1;
const PD_HANDLE: u16 = 2;
const SRQ_HANDLE: u16 = 3;
const SEND_CQ_HANDLE: u16 = 4;
const RECV_CQ_HANDLE: u16 = 5;
const IND_TABLE_HANDLE: u16 = 6;
const USER_HANDLE: u16 = 7;
const CAP: u16 = 8;
const TYPE: u16 = 9;
const FLAGS: u16 = 10;
const SOURCE_QPN: u16 = 11;
const EVENT_FD: u16 = 12;
const RESP_CAP: u16 = 13;
const RESP_QP_NUM: u16 = 14;

/// The kernel's flag for `sq_sig_all`.
const SQ_SIG_ALL: u32 = 1 << 12;
/// `comp_mask` bit of the written command.
const WITH_IND_TABLE: u32 = 1;

/// Attributes that the kernel or this function understands.
const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    | IBV_QP_INIT_ATTR_IND_TABLE
    | IBV_QP_INIT_ATTR_RX_HASH
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// What all forms of the command create.
struct New {
    ctx: *mut ibv_context,
    qp: *mut ibv_qp,
    /// Null on a form without.
    verbs_qp: *mut verbs_qp,
    pd: *mut ibv_pd,
    base: ibv_qp_init_attr,
    xrcd: *mut ibv_xrcd,
    ind_table: *mut ibv_rwq_ind_table,
    create_flags: u32,
    source_qpn: u32,
}

impl New {
    /// # Safety
    /// `pd` live, `attr` readable.
    unsafe fn of_pd(pd: *mut ibv_pd, qp: *mut ibv_qp, attr: *const ibv_qp_init_attr) -> Self {
        // SAFETY: the caller vouches for both.
        unsafe {
            Self {
                ctx: (*pd).context,
                qp,
                verbs_qp: ptr::null_mut(),
                pd,
                base: *attr,
                xrcd: ptr::null_mut(),
                ind_table: ptr::null_mut(),
                create_flags: 0,
                source_qpn: 0,
            }
        }
    }

    /// # Safety
    /// `attr` readable.
    unsafe fn of_context(
        ctx: *mut ibv_context,
        qp: *mut verbs_qp,
        attr: *const ibv_qp_init_attr_ex,
    ) -> Result<Self, Errno> {
        // SAFETY: the caller vouches for it; the extended attributes begin with the plain ones.
        let (a, base) = unsafe { (&*attr, *attr.cast::<ibv_qp_init_attr>()) };
        if a.comp_mask & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let has = |bit| a.comp_mask & bit != 0;
        let create_flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { a.create_flags } else { 0 };
        let sourced = create_flags & IBV_QP_CREATE_SOURCE_QPN != 0;
        Ok(Self {
            ctx,
            qp: qp.cast(),
            verbs_qp: qp,
            pd: if has(IBV_QP_INIT_ATTR_PD) { a.pd } else { ptr::null_mut() },
            base,
            xrcd: if has(IBV_QP_INIT_ATTR_XRCD) { a.xrcd } else { ptr::null_mut() },
            ind_table: if has(IBV_QP_INIT_ATTR_IND_TABLE) { a.rwq_ind_tbl } else { ptr::null_mut() },
            create_flags: create_flags & !IBV_QP_CREATE_SOURCE_QPN,
            source_qpn: if sourced { a.source_qpn } else { 0 },
        })
    }

    /// The kernel makes the receiving side of XRC without a PD; it has neither queue of its own.
    fn is_xrc_target(&self) -> bool {
        self.base.qp_type == IBV_QPT_XRC_RECV
    }

    /// # Safety
    /// All objects named must be live, both tails valid.
    unsafe fn fill(&self, ioctl: &mut Ioctl, request: Tail, room: Tail) {
        ioctl.new_handle(HANDLE);
        // SAFETY: the caller vouches for all.
        unsafe {
            if self.is_xrc_target() {
                ioctl.handle(XRCD_HANDLE, fill::xrcd_handle(self.xrcd));
            } else {
                if let Some(pd) = self.pd.as_ref() {
                    ioctl.handle(PD_HANDLE, pd.handle);
                }
                if let Some(table) = self.ind_table.as_ref() {
                    ioctl.handle(IND_TABLE_HANDLE, table.ind_tbl_handle as u32);
                }
                if !self.base.send_cq.is_null() {
                    ioctl.handle(SEND_CQ_HANDLE, fill::cq_handle(self.base.send_cq));
                }
                let receives = self.base.qp_type != IBV_QPT_XRC_SEND && self.ind_table.is_null();
                if receives && !self.base.recv_cq.is_null() {
                    ioctl.handle(RECV_CQ_HANDLE, fill::cq_handle(self.base.recv_cq));
                }
                if receives && !self.base.srq.is_null() {
                    ioctl.handle(SRQ_HANDLE, fill::srq_handle(self.base.srq));
                }
            }
            if (*self.ctx).async_fd >= 0 {
                ioctl.fd(EVENT_FD, (*self.ctx).async_fd);
            }
            ioctl.tails(request, room);
        }
        ioctl.value(USER_HANDLE, user_handle(self.qp));
        ioctl.constant(TYPE, self.base.qp_type.into());
        let flags = self.create_flags | if self.base.sq_sig_all != 0 { SQ_SIG_ALL } else { 0 };
        if flags != 0 {
            ioctl.value(FLAGS, flags);
        }
        if self.source_qpn != 0 {
            ioctl.value(SOURCE_QPN, self.source_qpn);
        }
    }

    /// Sends it and completes the QP; none where the kernel lacks the method.
    ///
    /// # Safety
    /// As `fill`; the QP is valid for writes.
    unsafe fn by_ioctl(&self, ioctl: &mut Ioctl) -> Result<Option<ib_uverbs_create_qp_resp>, Errno> {
        let cap = fill::cap(&self.base.cap);
        let mut got = ib_uverbs_qp_cap::zeroed();
        let mut qpn = 0u32;
        // SAFETY: the caller vouches for all; capacities and answers live until the command is sent.
        unsafe {
            ioctl.bytes_in(CAP, (&raw const cap).cast(), size_of_val(&cap));
            ioctl.out(RESP_CAP, &mut got);
            ioctl.out(RESP_QP_NUM, &mut qpn);
            if ioctl.try_send(self.ctx)? == Way::Write {
                return Ok(None);
            }
            // The handle is the first attribute.
            let made = ib_uverbs_create_qp_resp { qp_handle: ioctl.handle_at(0), qpn, cap: got, reserved: 0 };
            self.complete(&made);
            Ok(Some(made))
        }
    }

    /// What the plain written command says.
    ///
    /// # Safety
    /// All objects named must be live.
    unsafe fn core(&self) -> ib_uverbs_create_qp {
        // SAFETY: the caller vouches for them.
        unsafe {
            ib_uverbs_create_qp {
                response: 0,
                user_handle: user_handle(self.qp),
                pd_handle: if self.is_xrc_target() {
                    fill::xrcd_handle(self.xrcd)
                } else {
                    self.pd.as_ref().map_or(0, |pd| pd.handle)
                },
                send_cq_handle: fill::cq_handle(self.base.send_cq),
                recv_cq_handle: fill::cq_handle(self.base.recv_cq),
                srq_handle: fill::srq_handle(self.base.srq),
                cap: fill::cap(&self.base.cap),
                sq_sig_all: u8::from(self.base.sq_sig_all != 0),
                qp_type: self.base.qp_type as u8,
                is_srq: u8::from(!self.base.srq.is_null()),
                reserved: 0,
            }
        }
    }

    /// Fills the QP.
    ///
    /// # Safety
    /// The QP is valid for writes and of the layout of its context's provider.
    unsafe fn complete(&self, made: &ib_uverbs_create_qp_resp) {
        // SAFETY: the caller vouches for it.
        unsafe {
            common::init_qp(self.qp, self.ctx, self.pd, &self.base);
            (*self.qp).handle = made.qp_handle;
            (*self.qp).qp_num = made.qpn;
            if !self.verbs_qp.is_null() {
                mark(self.ctx, self.verbs_qp, self.xrcd);
            }
        }
    }
}

/// Sets `comp_mask` and `xrcd` of a QP, wherever its release has them.
///
/// # Safety
/// `qp` valid for writes, `ctx` its context.
unsafe fn mark(ctx: *mut ibv_context, qp: *mut verbs_qp, xrcd: *mut ibv_xrcd) {
    // SAFETY: the layout is that of the provider which gave the QP; `xrcd` follows `comp_mask`.
    unsafe {
        let mask = qp.byte_add((*library::private(ctx)).layout.qp_comp_mask).cast::<u32>();
        if xrcd.is_null() {
            return;
        }
        *mask |= VERBS_QP_XRCD;
        mask.byte_add(8).cast::<*mut ibv_xrcd>().write(xrcd);
    }
}

/// # Safety
/// `pd` live; QP, attributes, request and answer valid.
pub unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_init_attr,
    cmd: *mut Plain<ib_uverbs_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live PD, a new QP, attributes, its request and its answer.
    code(unsafe {
        let new = New::of_pd(pd, qp, attr);
        plain(&new, cmd, cmd_size, resp, resp_size).map(|cap| (*attr).cap = cap)
    })
}

/// # Safety
/// `ctx` live; QP, attributes, request and answer valid.
pub unsafe extern "C" fn create_qp_ex(
    ctx: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    cmd: *mut Plain<ib_uverbs_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    resp_size: usize,
) -> c_int {
    // The written form knows nothing else.
    const PLAIN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the provider gives a live context, a new QP, attributes, its request and its answer.
    code(unsafe {
        if (*attr).comp_mask & !PLAIN != 0 {
            return code(Err(Errno::EOPNOTSUPP));
        }
        New::of_context(ctx, qp, attr)
            .and_then(|new| plain(&new, cmd, cmd_size, resp, resp_size))
            .map(|cap| (*attr).cap = cap)
    })
}

/// # Safety
/// All of `new`, request and answer valid.
unsafe fn plain(
    new: &New,
    cmd: *mut Plain<ib_uverbs_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    resp_size: usize,
) -> Result<ibv_qp_cap, Errno> {
    let core = size_of::<Plain<ib_uverbs_create_qp>>();
    let (request, room) = (
        Tail::behind(cmd, core, cmd_size),
        Tail::behind(resp, size_of::<ib_uverbs_create_qp_resp>(), resp_size),
    );
    // SAFETY: the caller vouches for all.
    unsafe {
        let mut ioctl = Ioctl::new(object::QP, CREATE);
        new.fill(&mut ioctl, request, room);
        if let Some(made) = new.by_ioctl(&mut ioctl)? {
            answer(resp, resp_size, made);
            return Ok(fill::from_cap(&made.cap));
        }
        (*cmd).core = new.core();
        write::plain(new.ctx, number::CREATE_QP, cmd, cmd_size, resp, resp_size)?;
        new.complete(&*resp);
        Ok(fill::from_cap(&(*resp).cap))
    }
}

/// `ibv_cmd_create_qp_ex2` as it was before release 64.
///
/// # Safety
/// As `create_qp_ex`.
pub unsafe extern "C" fn create_qp_ex2(
    ctx: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    cmd: *mut Extended<ib_uverbs_ex_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_qp_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { create_qp_ex2_64(ctx, qp, attr, cmd, cmd_size, resp, resp_size, ptr::null_mut()) }
}

/// # Safety
/// As `create_qp_ex`; `driver` null or a live command buffer.
pub unsafe extern "C" fn create_qp_ex2_64(
    ctx: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    cmd: *mut Extended<ib_uverbs_ex_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_qp_resp,
    resp_size: usize,
    driver: *mut ibv_command_buffer,
) -> c_int {
    // SAFETY: the provider gives a live context, a new QP, attributes, its request and its answer.
    code(unsafe {
        New::of_context(ctx, qp, attr)
            .and_then(|new| extended(&new, cmd, cmd_size, resp, resp_size, driver))
            .map(|cap| (*attr).cap = cap)
    })
}

/// # Safety
/// All of `new`, request and answer valid; `driver` null or a live command buffer.
unsafe fn extended(
    new: &New,
    cmd: *mut Extended<ib_uverbs_ex_create_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_qp_resp,
    resp_size: usize,
    driver: *mut ibv_command_buffer,
) -> Result<ibv_qp_cap, Errno> {
    let core = size_of::<Extended<ib_uverbs_ex_create_qp>>();
    let answer_core = size_of::<ib_uverbs_ex_create_qp_resp>();
    let (request, room) = (Tail::behind(cmd, core, cmd_size), Tail::behind(resp, answer_core, resp_size));
    // SAFETY: the caller vouches for all.
    unsafe {
        let mut ioctl = Ioctl::new(object::QP, CREATE);
        new.fill(&mut ioctl, request, room);
        ioctl.link(driver);
        if let Some(base) = new.by_ioctl(&mut ioctl)? {
            let length = answer_core as u32;
            let made = ib_uverbs_ex_create_qp_resp { base, comp_mask: 0, response_length: length };
            answer(resp, resp_size, made);
            return Ok(fill::from_cap(&base.cap));
        }
        if !driver.is_null() {
            return Err(Errno::EOPNOTSUPP);
        }
        let plain = new.core();
        let table = new.ind_table.as_ref().map(|table| table.ind_tbl_handle as u32);
        (*cmd).core = ib_uverbs_ex_create_qp {
            user_handle: plain.user_handle,
            pd_handle: plain.pd_handle,
            send_cq_handle: plain.send_cq_handle,
            recv_cq_handle: plain.recv_cq_handle,
            srq_handle: plain.srq_handle,
            cap: plain.cap,
            sq_sig_all: plain.sq_sig_all,
            qp_type: plain.qp_type,
            is_srq: plain.is_srq,
            reserved: 0,
            comp_mask: if table.is_some() { WITH_IND_TABLE } else { 0 },
            create_flags: new.create_flags | if new.source_qpn != 0 { IBV_QP_CREATE_SOURCE_QPN } else { 0 },
            rwq_ind_tbl_handle: table.unwrap_or(0),
            source_qpn: new.source_qpn,
        };
        write::extended(
            new.ctx,
            number::CREATE_QP,
            cmd,
            core,
            cmd_size,
            resp.cast(),
            answer_core,
            resp_size,
        )?;
        new.complete(&(*resp).base);
        Ok(fill::from_cap(&(*resp).base.cap))
    }
}

/// Joins the QP that another process made in the same XRC domain.
///
/// # Safety
/// `ctx` live; QP valid for `qp_size` bytes; attributes, request and answer valid.
pub unsafe extern "C" fn open_qp(
    ctx: *mut ibv_context,
    qp: *mut verbs_qp,
    qp_size: c_int,
    attr: *mut ibv_qp_open_attr,
    cmd: *mut Plain<ib_uverbs_open_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_qp_resp,
    resp_size: usize,
) -> c_int {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the provider gives a live context, a new QP, attributes, its request and its answer.
    code(unsafe {
        let a = &*attr;
        if a.comp_mask & NEEDED != NEEDED {
            return code(Err(Errno::EOPNOTSUPP));
        }
        (*cmd).core = ib_uverbs_open_qp {
            response: 0,
            user_handle: user_handle(qp),
            pd_handle: fill::xrcd_handle(a.xrcd),
            qpn: a.qp_num,
            qp_type: a.qp_type as u8,
            reserved: [0; 7],
        };
        write::plain(ctx, number::OPEN_QP, cmd, cmd_size, resp, resp_size).map(|()| {
            let mut init = ibv_qp_init_attr::zeroed();
            init.qp_context = a.qp_context;
            init.qp_type = a.qp_type;
            common::init_qp(qp.cast(), ctx, ptr::null_mut(), &init);
            let base = qp.cast::<ibv_qp>();
            (*base).handle = (*resp).qp_handle;
            (*base).qp_num = a.qp_num;
            (*base).state = IBV_QPS_UNKNOWN;
            let layout = (*library::private(ctx)).layout;
            if qp_size as usize >= layout.qp_comp_mask + 16 {
                mark(ctx, qp, a.xrcd);
            }
        })
    })
}

/// Waits until the application has acknowledged all events that the kernel had told.
///
/// # Safety
/// `qp` live.
pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut told = ib_uverbs_destroy_resp::zeroed();
    let mut ioctl = Ioctl::new(object::QP, DESTROY);
    // SAFETY: the provider gives a live QP, whose mutex and condition the library made.
    code(unsafe {
        let ctx = (*qp).context;
        ioctl.handle(0, (*qp).handle);
        ioctl.out(1, &mut told);
        let done = ioctl.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let core = ib_uverbs_destroy_answered { response: 0, handle: (*qp).handle, reserved: 0 };
                let mut request = Plain::of(core);
                let (size, room) = (size_of_val(&request), size_of_val(&told));
                write::plain(ctx, number::DESTROY_QP, &mut request, size, &mut told, room)
            }
        });
        done.map(|()| {
            let done = &raw const (*qp).events_completed;
            pthread::wait_acknowledged(
                &raw mut (*qp).mutex,
                &raw mut (*qp).cond,
                &[(done, told.events_reported)],
            );
        })
        .or_else(forgive)
    })
}
