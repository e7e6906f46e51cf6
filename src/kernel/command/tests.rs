//! Commands as a scripted kernel sees them.
use super::write::{Extended, Plain, number};
use super::*;
use crate::kernel::double::{self, Command, attr};
use crate::provider::context as library;
use std::cell::RefCell;
use std::rc::Rc;

const INVOKE_WRITE: (u16, u16) = (object::DEVICE, 0);

/// A context whose device and kernel are the test's.
pub(super) struct Context {
    vctx: Box<verbs_context>,
    _device: Box<verbs_device>,
}

impl Context {
    pub(super) fn new(ioctl_write: bool) -> Self {
        let mut vctx = Box::new(verbs_context::zeroed());
        // SAFETY: plain data; zero is a value of each field.
        let mut device: Box<verbs_device> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: fresh memory, and a device that lives as long.
        unsafe {
            library::init(&mut *vctx, (&raw mut *device).cast(), -1, 14);
            (*library::private(&raw mut vctx.context)).ex.use_ioctl_write = ioctl_write;
        }
        Self { vctx, _device: device }
    }

    pub(super) fn get(&mut self) -> *mut ibv_context {
        &raw mut self.vctx.context
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `init`; the test's objects are gone.
        unsafe { library::uninit(&mut *self.vctx) }
    }
}

/// What came, in short.
type Log = Rc<RefCell<Vec<String>>>;

/// A script that notes each command and answers by `answer`.
fn noted(
    log: &Log,
    mut answer: impl FnMut(&mut Command<'_>) -> Result<(), Errno> + 'static,
) -> impl FnMut(Command<'_>) -> Result<(), Errno> + 'static {
    let log = log.clone();
    move |mut command| {
        log.borrow_mut().push(match &mut command {
            Command::Ioctl(object::DEVICE, 0, attrs) => format!("invoke {:#x}", attr(attrs, 2).data),
            Command::Ioctl(object, method, attrs) => {
                let ids: Vec<String> = attrs.iter().map(|a| format!("{:x}", a.attr_id)).collect();
                format!("ioctl {object} {method}: {}", ids.join(" "))
            }
            Command::Write(number, request) => format!("write {number:#x} of {}", request.len()),
        });
        answer(&mut command)
    }
}

fn taken(log: &Log) -> Vec<String> {
    log.take()
}

/// A request with a tail of 8 bytes, and an answer with one of 16.
#[repr(C)]
struct Tailed<T> {
    head: T,
    tail: [u8; 8],
}

#[repr(C)]
struct Answered<T> {
    head: T,
    tail: [u64; 2],
}

fn request<T>(core: T) -> Tailed<Plain<T>> {
    Tailed { head: Plain::of(core), tail: *b"provider" }
}

fn make_cq(ctx: *mut ibv_context, cq: &mut verbs_cq) -> (c_int, u32) {
    let mut cmd = request(ib_uverbs_create_cq::zeroed());
    let mut resp = Answered { head: ib_uverbs_create_cq_resp::zeroed(), tail: [0; 2] };
    // SAFETY: everything is the test's and lives.
    let rc = unsafe {
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let (cmd, resp) = ((&raw mut cmd).cast(), (&raw mut resp).cast());
        cq::create_cq(ctx, 100, ptr::null_mut(), 1, (&raw mut *cq).cast(), cmd, size, resp, room)
    };
    (rc, resp.head.cqe)
}

fn new_cq() -> verbs_cq {
    // SAFETY: plain data; zero is a value of each field.
    unsafe { std::mem::zeroed() }
}

/// Writes through the address in an attribute.
pub(super) fn put<T>(attrs: &mut [ib_uverbs_attr], id: u16, value: T) {
    let to = attr(attrs, id).data as usize;
    // SAFETY: the command gives the address of such a value.
    unsafe { std::ptr::with_exposed_provenance_mut::<T>(to).write(value) };
}

#[test]
fn a_cq_is_made_by_ioctl_with_the_providers_tails() {
    let (mut context, log) = (Context::new(true), Log::default());
    let ctx = context.get();
    let script = noted(&log, |command| {
        let Command::Ioctl(.., attrs) = command else { panic!("a write") };
        assert_eq!((attr(attrs, 1).data, attr(attrs, 4).data), (100, 1));
        // A tail of eight bytes lies in the attribute itself.
        assert_eq!((attr(attrs, 0x1000).len, attr(attrs, 0x1000).data.to_ne_bytes()), (8, *b"provider"));
        assert_eq!(attr(attrs, 0x1001).len, 16);
        assert!(attrs.iter().all(|a| a.flags == 1));
        attr(attrs, 0).data = 77;
        put(attrs, 6, 127u32);
        Ok(())
    });
    let mut cq = new_cq();
    assert_eq!(double::with(script, || make_cq(ctx, &mut cq)), (0, 127));
    assert_eq!((cq.cq_ex.handle, cq.cq_ex.cqe), (77, 127));
    assert_eq!(taken(&log), ["ioctl 3 0: 0 1 2 4 1000 1001 6"]);
}

#[test]
fn a_method_that_the_kernel_lacks_is_written_and_not_tried_again() {
    let (mut context, log) = (Context::new(false), Log::default());
    let ctx = context.get();
    let script = noted(&log, |command| match command {
        Command::Ioctl(..) => Err(Errno(libc::EPROTONOSUPPORT)),
        Command::Write(_, request) => {
            // Header, response, user handle, cqe, vector, channel, reserved, tail.
            let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            assert_eq!((word(4), word(24), word(28), word(32)), (6 << 16 | 12, 100, 1, u32::MAX));
            assert_eq!(&request[40..], b"provider");
            let at = u64::from_ne_bytes(request[8..16].try_into().unwrap()) as usize;
            let answer = ib_uverbs_create_cq_resp { cq_handle: 5, cqe: 255 };
            // SAFETY: the command gives the address of its answer.
            unsafe { std::ptr::with_exposed_provenance_mut::<ib_uverbs_create_cq_resp>(at).write(answer) };
            Ok(())
        }
    });
    let mut cq = new_cq();
    let made = double::with(script, || [make_cq(ctx, &mut cq), make_cq(ctx, &mut cq)]);
    assert_eq!(made, [(0, 255), (0, 255)]);
    assert_eq!((cq.cq_ex.handle, cq.cq_ex.cqe), (5, 255));
    assert_eq!(taken(&log), ["ioctl 3 0: 0 1 2 4 1000 1001 6", "write 0x12 of 48", "write 0x12 of 48"]);
}

#[test]
fn a_kernel_without_ioctls_is_asked_once() {
    let (mut context, log) = (Context::new(false), Log::default());
    let ctx = context.get();
    let script = noted(&log, |command| match command {
        Command::Ioctl(..) => Err(Errno(libc::ENOTTY)),
        Command::Write(..) => Ok(()),
    });
    double::with(script, || {
        // SAFETY: the context lives, and the handles are only told to the script.
        unsafe {
            assert_eq!(destroy(ctx, object::PD, 0, 3, number::DEALLOC_PD), Ok(()));
            assert_eq!(destroy(ctx, object::MR, 1, 4, number::DEREG_MR), Ok(()));
            let mut dm: verbs_dm = std::mem::zeroed();
            dm.dm.context = ctx;
            assert_eq!(mr::free_dm(&mut dm), libc::EOPNOTSUPP);
        }
    });
    assert_eq!(taken(&log), ["ioctl 1 0: 0", "write 0x4 of 12", "write 0xd of 12"]);
}

#[test]
fn other_errors_are_final_and_stand_in_errno() {
    let (mut context, log) = (Context::new(true), Log::default());
    let ctx = context.get();
    let mut cq = new_cq();
    let made = double::with(noted(&log, |_| Err(Errno::ENOMEM)), || make_cq(ctx, &mut cq));
    assert_eq!((made.0, Errno::last()), (libc::ENOMEM, Errno::ENOMEM));
    assert_eq!(taken(&log).len(), 1);
}

#[test]
fn a_written_command_travels_inside_an_ioctl_where_the_kernel_takes_that() {
    let (mut context, log) = (Context::new(true), Log::default());
    let ctx = context.get();
    let script = noted(&log, |command| {
        let Command::Ioctl(object, method, attrs) = command else { panic!("a write") };
        assert_eq!((*object, *method), INVOKE_WRITE);
        // The core without its header, the answer, the number, the tail.
        assert_eq!((attr(attrs, 0).len, attr(attrs, 1).len, attr(attrs, 2).len), (40, 12, 8));
        assert_eq!((attr(attrs, 0x1000).len, attr(attrs, 0x1001).len), (8, 20));
        put(attrs, 1, ib_uverbs_reg_mr_resp { mr_handle: 9, lkey: 0x11, rkey: 0x22 });
        Ok(())
    });
    let mut pd = ibv_pd { context: ctx, handle: 6 };
    // SAFETY: plain data; zero is a value of each field.
    let mut mr: verbs_mr = unsafe { std::mem::zeroed() };
    let mut cmd = request(ib_uverbs_reg_mr::zeroed());
    let mut resp = Answered { head: ib_uverbs_reg_mr_resp::zeroed(), tail: [0; 2] };
    let rc = double::with(script, || {
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let (at, cmd, resp) = (ptr::without_provenance_mut(0x5000), &raw mut cmd, &raw mut resp);
        // SAFETY: everything is the test's; the scripted kernel pins nothing.
        unsafe { mr::reg_mr(&mut pd, at, 64, 0x5000, 7, &mut mr, cmd.cast(), size, resp.cast(), room) }
    });
    assert_eq!(rc, 0);
    assert_eq!((mr.ibv_mr.handle, mr.ibv_mr.lkey, mr.ibv_mr.rkey, mr.access), (9, 0x11, 0x22, 7));
    assert_eq!(taken(&log), ["invoke 0x9"]);
}

#[test]
fn an_extended_command_counts_its_cores_and_tails_in_words_of_eight_bytes() {
    let (mut context, log) = (Context::new(false), Log::default());
    let ctx = context.get();
    let script = noted(&log, |command| {
        let Command::Write(number, request) = command else { panic!("an ioctl") };
        assert_eq!(*number, 0x8000_0000 | 52);
        let half = |at: usize| u16::from_ne_bytes(request[at..at + 2].try_into().unwrap());
        // Core in, core out; behind the answer's address the provider's.
        assert_eq!((half(4), half(6), half(16), half(18)), (5, 3, 1, 2));
        Ok(())
    });
    let core = ib_uverbs_ex_create_wq::zeroed();
    let mut cmd = Tailed { head: Extended::of(core), tail: *b"provider" };
    let mut resp = Answered { head: ib_uverbs_ex_create_wq_resp::zeroed(), tail: [0; 2] };
    let sent = double::with(script, || {
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let (own, answer) = (size_of_val(&cmd.head), size_of_val(&resp.head));
        let (cmd, resp) = ((&raw mut cmd).cast(), (&raw mut resp).cast());
        // SAFETY: everything is the test's.
        unsafe { write::extended::<ib_uverbs_ex_create_wq>(ctx, 52, cmd, own, size, resp, answer, room) }
    });
    assert_eq!(sent, Ok(()));
    assert_eq!(taken(&log), ["write 0x80000034 of 72"]);
}

#[test]
fn destroying_waits_for_the_events_that_the_kernel_had_told() {
    let mut context = Context::new(true);
    let ctx = context.get();
    let mut qp: Box<verbs_qp> = Box::new(verbs_qp::zeroed());
    let base: *mut ibv_qp = (&raw mut *qp).cast();
    // SAFETY: the QP is the test's; its mutex is made before it is used.
    unsafe {
        let init = ibv_qp_init_attr::zeroed();
        crate::provider::object::init_qp(base, ctx, ptr::null_mut(), &init);
    }
    let address = base.expose_provenance();
    let script = move |command: Command<'_>| {
        let Command::Ioctl(object::QP, 1, attrs) = command else { panic!("something else") };
        put(attrs, 1, ib_uverbs_destroy_resp { events_reported: 1 });
        // The application acknowledges its event a little later.
        std::thread::spawn(move || {
            let qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(address);
            // SAFETY: the QP lives until `destroy_qp` has seen the acknowledgement, which is the last access.
            unsafe {
                let (mutex, cond) = (&raw mut (*qp).mutex, &raw mut (*qp).cond);
                crate::sys::pthread::acknowledge(mutex, cond, &raw mut (*qp).events_completed, 1);
            }
        });
        Ok(())
    };
    // SAFETY: as above.
    unsafe {
        assert_eq!(double::with(script, || qp::destroy_qp(base)), 0);
        assert_eq!((*base).events_completed, 1);
    }
}

#[test]
fn a_device_that_is_gone_is_told() {
    let mut context = Context::new(true);
    let ctx = context.get();
    let destroyed = double::with(
        |_| Err(Errno::EIO),
        || {
            // SAFETY: the context lives.
            unsafe { destroy(ctx, object::PD, 0, 3, number::DEALLOC_PD) }
        },
    );
    assert_eq!(destroyed, Err(Errno::EIO));
}

#[test]
fn too_many_attributes_are_refused() {
    let mut context = Context::new(true);
    let mut command = Ioctl::new(object::QP, 0);
    (0..=MAX_ATTRS).for_each(|i| command.value(i as u16, 0u8));
    let sent = double::with(
        |_| panic!("sent"),
        || {
            // SAFETY: the context lives; the command is refused before it is sent.
            unsafe { command.send(context.get()) }
        },
    );
    assert_eq!(sent, Err(Errno::EINVAL));
}

#[test]
fn a_port_of_an_older_release_has_fewer_bytes() {
    let mut context = Context::new(true);
    let ctx = context.get();
    // SAFETY: the context lives.
    unsafe { (*library::private(ctx)).layout = crate::provider::layout::Layout::of(34, 44).unwrap() };
    let script = |command: Command<'_>| {
        let Command::Ioctl(object::DEVICE, 2, attrs) = command else { panic!("something else") };
        let mut told = ib_uverbs_query_port_resp_ex::zeroed();
        (told.legacy_resp.lid, told.port_cap_flags2, told.active_speed_ex) = (7, 3, 9);
        put(attrs, 1, told);
        Ok(())
    };
    let mut attr = ibv_port_attr::zeroed();
    attr.active_speed_ex = 0xdead;
    let mut cmd = Plain::of(ib_uverbs_query_port::zeroed());
    let rc = double::with(script, || {
        let size = size_of_val(&cmd);
        // SAFETY: everything is the test's.
        unsafe { device::query_port(ctx, 1, &mut attr, &mut cmd, size) }
    });
    assert_eq!((rc, attr.lid, attr.port_cap_flags2, attr.active_speed_ex), (0, 7, 3, 0xdead));
}
