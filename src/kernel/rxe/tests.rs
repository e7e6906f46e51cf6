//! The provider on a scripted kernel whose queues lie in a memory file, which is also the context's descriptor.
use super::*;
use crate::kernel::command::object as kind;
use crate::kernel::double::{self, Command, attr};
use crate::sys::map::Mapping;
use crate::sys::memfd;
use queue::MmapInfo;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::rc::Rc;

/// Bytes of one queue: a header, and eight entries of 512.
const QUEUE: usize = 8192;
const QUEUES: usize = 8;
/// Attributes of answers.
const UHW_OUT: u16 = 0x1001;

/// What the script and the test share.
#[derive(Clone, Default)]
struct Kernel {
    /// The device is gone: everything answers EIO.
    gone: Rc<Cell<bool>>,
    /// POST_SEND came so often.
    doorbells: Rc<Cell<u32>>,
    queues: Rc<Cell<usize>>,
}

impl Kernel {
    /// The next queue of the file.
    fn queue(&self) -> MmapInfo {
        let n = self.queues.get();
        self.queues.set(n + 1);
        assert!(n < QUEUES, "the file has no more queues");
        MmapInfo { offset: (n * QUEUE) as u64, size: QUEUE as u32, pad: 0 }
    }

    fn answer(&self, command: Command<'_>) -> Result<(), Errno> {
        if self.gone.get() {
            return Err(Errno::EIO);
        }
        match command {
            Command::Ioctl(kind::CQ, 0, attrs) => {
                put(attrs, UHW_OUT, self.queue());
                put(attrs, 6, 7u32);
            }
            Command::Ioctl(kind::QP, 0, attrs) => {
                put(attrs, UHW_OUT, [self.queue(), self.queue()]);
                put(attrs, RESP_CAP, CAP);
                put(attrs, RESP_QP_NUM, 17u32);
            }
            Command::Ioctl(..) => {}
            Command::Write(number, _) => {
                assert_eq!(number, crate::kernel::command::write::number::POST_SEND);
                self.doorbells.set(self.doorbells.get() + 1);
            }
        }
        Ok(())
    }
}

const RESP_CAP: u16 = 13;
const RESP_QP_NUM: u16 = 14;
const CAP: ib_uverbs_qp_cap = ib_uverbs_qp_cap {
    max_send_wr: 7,
    max_recv_wr: 7,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 32,
};

/// Writes through the address in an attribute.
fn put<T>(attrs: &mut [ib_uverbs_attr], id: u16, value: T) {
    let to = attr(attrs, id).data as usize;
    // SAFETY: the command gives the address of such a value.
    unsafe { std::ptr::with_exposed_provenance_mut::<T>(to).write(value) };
}

/// A file of queues with eight entries of 512 bytes each.
fn queues() -> OwnedFd {
    let file = memfd::create(c"anyverbs-test", QUEUE * QUEUES).unwrap();
    let map = Mapping::shared(file.as_fd(), QUEUE * QUEUES, true).unwrap();
    for n in 0..QUEUES {
        // SAFETY: within the file.
        unsafe {
            let head = map.base().add(n * QUEUE).cast::<u32>();
            head.write(9);
            head.add(1).write(7);
        }
    }
    file
}

/// What a program has made.
struct Made {
    ctx: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

/// Runs `test` with a connected QP on a scripted kernel.
fn with_qp(test: impl FnOnce(&Kernel, &Made)) {
    let kernel = Kernel::default();
    let script = kernel.clone();
    // SAFETY: plain data; zero is a value of each field.
    let mut device: Box<verbs_device> = Box::new(unsafe { std::mem::zeroed() });
    double::with(
        move |command| script.answer(command),
        || {
            // SAFETY: the device lives through all, objects until they are destroyed.
            unsafe {
                let vctx = open((&raw mut *device).cast(), queues()).unwrap();
                let ctx = hosted::context(vctx);
                let pd = objects::alloc_pd(ctx);
                let cq = cq::create_cq(ctx, 7, ptr::null_mut(), 0);
                let mut init = ibv_qp_init_attr::zeroed();
                (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
                let qp = qp::create_qp(pd, &mut init);
                assert!(!pd.is_null() && !cq.is_null() && !qp.is_null(), "{:?}", Errno::last());
                assert_eq!((init.cap.max_send_wr, init.cap.max_inline_data), (7, 32));
                (*qp).state = IBV_QPS_RTS;
                test(&kernel, &Made { ctx, pd, cq, qp });
                free_context(ctx);
            }
        },
    );
}

/// A SEND of 8 bytes.
fn send() -> ibv_send_wr {
    let mut wr = ibv_send_wr::zeroed();
    (wr.wr_id, wr.opcode, wr.send_flags) = (1, IBV_WR_SEND, IBV_SEND_SIGNALED);
    wr
}

#[test]
fn a_list_rings_one_doorbell_and_a_receive_none() {
    with_qp(|kernel, made| {
        let (mut second, mut bad) = (send(), ptr::null_mut());
        let mut first = send();
        first.next = &mut second;
        let (mut receive, mut bad_receive) = (ibv_recv_wr::zeroed(), ptr::null_mut());
        // SAFETY: QP and requests live.
        unsafe {
            assert_eq!(post::post_recv(made.qp, &mut receive, &mut bad_receive), 0);
            assert_eq!(post::post_send(made.qp, &mut first, &mut bad), 0);
            assert_eq!(kernel.doorbells.get(), 1);
            assert_eq!(object::<_, QpObject>(made.qp).sq.producer(), 2);
            assert_eq!(qp::destroy_qp(made.qp), 0);
            assert_eq!(cq::destroy_cq(made.cq), 0);
            assert_eq!(objects::dealloc_pd(made.pd), 0);
        }
    });
}

#[test]
fn of_a_device_that_is_gone_everything_says_so_and_objects_stay_until_it_is_forgiven() {
    with_qp(|kernel, made| {
        kernel.gone.set(true);
        let (mut wr, mut bad) = (send(), ptr::null_mut());
        let mut wc = ibv_wc::zeroed();
        let mut port = ibv_port_attr::zeroed();
        // SAFETY: QP and requests live; a destroy that fails leaves its object as it was.
        unsafe {
            assert_eq!(post::post_send(made.qp, &mut wr, &mut bad), libc::EIO);
            assert_eq!(bad, &raw mut wr);
            assert_eq!(cq::poll_cq(made.cq, 1, &mut wc), 0);
            assert_eq!(objects::query_port(made.ctx, 1, &mut port), libc::EIO);
            assert!(objects::alloc_pd(made.ctx).is_null() && Errno::last() == Errno::EIO);
            assert!(cq::create_cq(made.ctx, 1, ptr::null_mut(), 0).is_null());
            assert_eq!(qp::destroy_qp(made.qp), libc::EIO);
            assert_eq!(cq::destroy_cq(made.cq), libc::EIO);
            assert_eq!(objects::dealloc_pd(made.pd), libc::EIO);
            // The kernel of the next device answers again.
            kernel.gone.set(false);
            assert_eq!(qp::destroy_qp(made.qp), 0);
            assert_eq!(cq::destroy_cq(made.cq), 0);
            assert_eq!(objects::dealloc_pd(made.pd), 0);
        }
    });
}
