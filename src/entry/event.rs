//! Completion channels and asynchronous events: getting them and acknowledging them.
use super::compat_1_0;
use crate::abi::*;
use crate::core::convention::{code, given, minus_one, nothing, pointer, refuse};
use crate::core::gid::library;
use crate::provider::{AsyncEvent, Events, Look, context};
use crate::sys::epoll::{read_cancellable, wait_cancellable};
use crate::sys::errno::Errno;
use crate::sys::pthread;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::RawFd;

export!(ibv_create_comp_channel => "ibv_create_comp_channel" @@ "IBVERBS_1.0");
export!(ibv_destroy_comp_channel => "ibv_destroy_comp_channel" @@ "IBVERBS_1.0");
export!(ibv_get_cq_event => "ibv_get_cq_event" @@ "IBVERBS_1.1");
export!(ibv_ack_cq_events => "ibv_ack_cq_events" @@ "IBVERBS_1.1");
export!(ibv_get_async_event => "ibv_get_async_event" @@ "IBVERBS_1.1");
export!(ibv_ack_async_event => "ibv_ack_async_event" @@ "IBVERBS_1.1");

/// A channel whose `fd` can be polled and set to O_NONBLOCK.
pub(super) unsafe extern "C" fn ibv_create_comp_channel(ctx: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        given(ctx, "ibv_create_comp_channel", "context")?;
        // SAFETY: a live context, or what a program of IBVERBS_1.0 has for one.
        unsafe {
            let ctx = compat_1_0::real_context(ctx);
            (library(ctx)?.create_comp_channel)(ctx)
        }
    })
}

/// EBUSY while a CQ uses it.
pub(super) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code(|| {
        given(channel, "ibv_destroy_comp_channel", "channel")?;
        // SAFETY: a live channel, whose context outlives it; CQs are counted under the context's mutex.
        unsafe {
            let ctx = (*channel).context;
            let users = context::with_mutex(ctx, || (*channel).refcnt);
            if users != 0 {
                return Err(refuse!(
                    EBUSY,
                    "ibv_destroy_comp_channel channel={channel:p}: {users} CQs still use it"
                ));
            }
            (library(ctx)?.destroy_comp_channel)(channel).map(|()| 0)
        }
    })
}

/// Waits for the next completion event, or fails with EAGAIN on an O_NONBLOCK fd.
pub(super) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut look = Look::First;
    // SAFETY: the caller's promises are this function's.
    if let Some(fd) = unsafe { reads_cq_events(channel, cq) } {
        let mut record = [0; 1];
        // Outside the fence against panics: a thread may be cancelled while it waits.
        return match read_cancellable(fd, &mut record) {
            // SAFETY: as above; the kernel tells the CQ that was given to it.
            Ok(()) => unsafe { tell_cq_event(record[0], cq, cq_context) },
            Err(e) => failed(e),
        };
    }
    loop {
        let mut waits = None;
        // SAFETY: the caller's promises are this function's.
        let result = unsafe { look_for_cq_event(channel, cq, cq_context, look, &mut waits) };
        match waits {
            None => return result,
            // Outside the fence, as above.
            Some(fds) => look = if wait_cancellable(fds) { Look::Woken } else { Look::Interrupted },
        }
    }
}

/// # Safety
/// A live channel or NULL, places for both answers or NULL.
unsafe fn look_for_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    look: Look,
    waits: &mut Option<[RawFd; 2]>,
) -> c_int {
    minus_one(|| {
        given(channel, "ibv_get_cq_event", "channel")?;
        given(cq, "ibv_get_cq_event", "cq")?;
        // SAFETY: a live channel; the CQ of an event lives until the event is acknowledged; places for both answers.
        unsafe {
            let ctx = (*channel).context;
            let library = library(ctx)?;
            let Some(of) = (library.get_cq_event)(channel, look)? else {
                *waits = Some([(*channel).fd, (library.doorbells)()]);
                return Ok(0);
            };
            hand_out(of, cq, cq_context);
            Ok(0)
        }
    })
}

/// # Safety
/// `of` live, `cq` a place for it, `cq_context` a place for its context or NULL.
unsafe fn hand_out(of: *mut ibv_cq, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) {
    // SAFETY: the caller vouches for all.
    unsafe {
        *cq = of;
        if !cq_context.is_null() {
            *cq_context = (*of).cq_context;
        }
        if let Some(tell) = context::ops((*of).context).cq_event {
            tell(of);
        }
    }
}

/// The descriptor that the kernel's records are read from; none where arguments are missing or events come otherwise.
///
/// # Safety
/// A live channel or NULL.
unsafe fn reads_cq_events(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq) -> Option<RawFd> {
    // SAFETY: the caller vouches for the channel.
    unsafe {
        let channel = channel.as_ref().filter(|_| !cq.is_null())?;
        (library(channel.context).ok()?.events == Events::Read).then_some(channel.fd)
    }
}

/// # Safety
/// `record` is a CQ's address, as the kernel was given it; places for both answers, the second or NULL.
unsafe fn tell_cq_event(record: u64, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int {
    minus_one(|| {
        // SAFETY: the caller vouches for all; a CQ waits for its events before it goes.
        unsafe { hand_out(std::ptr::with_exposed_provenance_mut(record as usize), cq, cq_context) };
        Ok(0)
    })
}

fn failed(e: Errno) -> c_int {
    e.store();
    -1
}

/// Acknowledges `n` completion events of a CQ.
pub(super) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    nothing(|| {
        if given(cq, "ibv_ack_cq_events", "cq").is_ok() {
            // SAFETY: a live CQ.
            unsafe {
                pthread::acknowledge(
                    &raw mut (*cq).mutex,
                    &raw mut (*cq).cond,
                    &raw mut (*cq).comp_events_completed,
                    n,
                );
            }
        }
    });
}

/// Waits for the context's next asynchronous event, or fails with EAGAIN on an O_NONBLOCK fd.
pub(super) unsafe extern "C-unwind" fn ibv_get_async_event(
    ctx: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut look = Look::First;
    // SAFETY: the caller's promises are this function's.
    if let Some(fd) = unsafe { reads_async_events(ctx, event) } {
        let mut record = [0; 2];
        return match read_cancellable(fd, &mut record) {
            // SAFETY: as above; the kernel tells an object that was given to it.
            Ok(()) => unsafe { tell_async_event(ctx, event, kernel_event(record)) },
            Err(e) => failed(e),
        };
    }
    loop {
        let mut waits = None;
        // SAFETY: the caller's promises are this function's.
        let result = unsafe { look_for_async_event(ctx, event, look, &mut waits) };
        match waits {
            None => return result,
            Some(fd) => look = if wait_cancellable([fd, -1]) { Look::Woken } else { Look::Interrupted },
        }
    }
}

/// # Safety
/// A live context or NULL, room for the event or NULL.
unsafe fn look_for_async_event(
    ctx: *mut ibv_context,
    event: *mut ibv_async_event,
    look: Look,
    waits: &mut Option<RawFd>,
) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_get_async_event", "context")?;
        given(event, "ibv_get_async_event", "event")?;
        // SAFETY: a live context and room for the event.
        unsafe {
            let Some(next) = (library(ctx)?.get_async_event)(ctx, look)? else {
                *waits = Some((*ctx).async_fd);
                return Ok(0);
            };
            Ok(tell_async_event(ctx, event, next))
        }
    })
}

/// # Safety
/// As `reads_cq_events`, of a context.
unsafe fn reads_async_events(ctx: *mut ibv_context, event: *mut ibv_async_event) -> Option<RawFd> {
    // SAFETY: the caller vouches for the context.
    unsafe {
        let reads = !ctx.is_null() && !event.is_null() && library(ctx).ok()?.events == Events::Read;
        reads.then(|| (*ctx).async_fd)
    }
}

/// `struct ib_uverbs_async_event_desc`: element, then event type and a reserved word.
fn kernel_event(record: [u64; 2]) -> AsyncEvent {
    let [a, b, c, d, ..] = record[1].to_ne_bytes();
    AsyncEvent { element: record[0], event_type: u32::from_ne_bytes([a, b, c, d]) }
}

/// # Safety
/// A live context, room for the event; its element is what the event's type says.
unsafe fn tell_async_event(ctx: *mut ibv_context, event: *mut ibv_async_event, next: AsyncEvent) -> c_int {
    minus_one(|| {
        // SAFETY: the caller vouches for all.
        unsafe {
            *event = ibv_async_event::zeroed();
            (*event).event_type = next.event_type;
            match affected(next.event_type) {
                Affected::Port => (*event).element.port_num = next.element as c_int,
                _ => (*event).element.cq = std::ptr::with_exposed_provenance_mut(next.element as usize),
            }
            if let Some(tell) = context::ops(ctx).async_event {
                tell(ctx, event);
            }
        }
        Ok(0)
    })
}

/// Acknowledges an asynchronous event; its object may be destroyed afterwards.
pub(super) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    nothing(|| {
        if given(event, "ibv_ack_async_event", "event").is_err() {
            return;
        }
        macro_rules! acknowledge {
            ($object:expr, $counter:ident) => {{
                let object = $object;
                pthread::acknowledge(
                    &raw mut (*object).mutex,
                    &raw mut (*object).cond,
                    &raw mut (*object).$counter,
                    1,
                )
            }};
        }
        // SAFETY: an event from ibv_get_async_event, whose object lives until this call.
        unsafe {
            let element = (*event).element;
            match affected((*event).event_type) {
                Affected::Cq => acknowledge!(element.cq, async_events_completed),
                Affected::Qp => acknowledge!(element.qp, events_completed),
                Affected::Srq => acknowledge!(element.srq, events_completed),
                Affected::Wq => acknowledge!(element.wq, events_completed),
                Affected::Port => {}
            }
        }
    });
}

/// Which member of the event's union is valid.
enum Affected {
    Cq,
    Qp,
    Srq,
    Wq,
    /// A port, or the whole device.
    Port,
}

fn affected(event_type: u32) -> Affected {
    match event_type {
        IBV_EVENT_CQ_ERR => Affected::Cq,
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => Affected::Qp,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Affected::Srq,
        IBV_EVENT_WQ_FATAL => Affected::Wq,
        _ => Affected::Port,
    }
}
