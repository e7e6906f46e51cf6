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
    /// `device_cap_flags_ex`.
    offers: Rc<Cell<u64>>,
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
            Command::Ioctl(kind::DEVICE, 0, attrs) if attrs.iter().any(|a| a.attr_id == 1) => {
                let mut told = ib_uverbs_ex_query_device_resp::zeroed();
                if usize::from(attr(attrs, 1).len) == size_of_val(&told) {
                    told.response_length = size_of_val(&told) as u32;
                    told.device_cap_flags_ex = self.offers.get();
                    put(attrs, 1, told);
                }
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

/// A QP with all of these for `ibv_wr_*`.
unsafe fn extended(made: &Made, ops: u64) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr_ex::zeroed();
    (init.send_cq, init.recv_cq, init.qp_type, init.pd) = (made.cq, made.cq, IBV_QPT_RC, made.pd);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = ops;
    // SAFETY: CQ and PD live.
    unsafe { qp::create_qp_ex(made.ctx, &mut init) }
}

/// ATOMIC WRITE of two pieces with so many bytes each.
fn atomic_write(pieces: &mut [ibv_sge; 2], bytes: &[u8; 8], each: u32) -> ibv_send_wr {
    for (i, piece) in pieces.iter_mut().enumerate() {
        *piece = ibv_sge { addr: bytes[4 * i..].as_ptr().expose_provenance() as u64, length: each, lkey: 1 };
    }
    let mut wr = send();
    (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_ATOMIC_WRITE, pieces.as_mut_ptr(), 2);
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 0x5000, rkey: 0x77 };
    wr
}

#[test]
fn what_a_kernel_does_not_have_is_refused_before_it_is_posted() {
    with_qp(|kernel, made| {
        let (mut pieces, mut bad) = ([ibv_sge { addr: 0, length: 0, lkey: 0 }; 2], ptr::null_mut());
        let mut wr = atomic_write(&mut pieces, b"eightly!", 4);
        // SAFETY: QP and requests live.
        unsafe {
            assert_eq!(post::post_send(made.qp, &mut wr, &mut bad), libc::EOPNOTSUPP);
            assert_eq!(bad, &raw mut wr);
            for op in [IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_ATOMIC_WRITE] {
                assert!(
                    extended(made, IBV_QP_EX_WITH_SEND | op).is_null() && Errno::last() == Errno::EOPNOTSUPP
                );
            }
        }
        assert_eq!(kernel.doorbells.get(), 0);
    });
}

#[test]
fn flush_and_atomic_write_are_posted_where_the_kernel_has_them() {
    with_qp(|kernel, made| {
        kernel.offers.set(IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_ATOMIC_WRITE);
        let (mut pieces, mut bad) = ([ibv_sge { addr: 0, length: 0, lkey: 0 }; 2], ptr::null_mut());
        let word = |qp: *mut ibv_qp, entry: u32, at: usize| {
            // SAFETY: the QP lives; its entries have 512 bytes.
            unsafe { object::<_, QpObject>(qp).sq.entry(entry).add(at).cast::<u64>().read() }
        };
        // SAFETY: QPs and requests live.
        unsafe {
            // The entry holds the bytes, wherever they lay and whatever the QP takes inline.
            assert_eq!(post::post_send(made.qp, &mut atomic_write(&mut pieces, b"eightly!", 4), &mut bad), 0);
            assert_eq!([24, 208].map(|at| word(made.qp, 0, at)), [0x5000, u64::from_ne_bytes(*b"eightly!")]);
            assert_eq!(word(made.qp, 0, 184), 8 << 32 | 8, "length and what is left of it");
            for each in [3, 5] {
                let mut wr = atomic_write(&mut pieces, b"eightly!", each);
                assert_eq!(post::post_send(made.qp, &mut wr, &mut bad), libc::EINVAL);
            }
            let mut flush = send();
            flush.opcode = IBV_WR_FLUSH;
            assert_eq!(post::post_send(made.qp, &mut flush, &mut bad), libc::EINVAL, "it says not what");

            let qp = extended(made, IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE);
            assert!(!qp.is_null(), "{:?}", Errno::last());
            (*qp).state = IBV_QPS_RTS;
            let ex = qp.cast::<ibv_qp_ex>();
            let calls = |ex: *mut ibv_qp_ex| ((*ex).wr_start.unwrap(), (*ex).wr_complete.unwrap());
            let (start, complete) = calls(ex);
            start(ex);
            (*ex).wr_flush.unwrap()(ex, 0x77, 0x6000, 64, IBV_FLUSH_GLOBAL as u8, IBV_FLUSH_RANGE as u8);
            (*ex).wr_atomic_write.unwrap()(ex, 0x77, 0x7000, b"by calls".as_ptr().cast());
            assert_eq!(complete(ex), 0);
            assert_eq!([24, 32].map(|at| word(qp, 0, at)), [0x6000, 0x77 << 32 | 64]);
            assert_eq!((word(qp, 0, 40) as u16, word(qp, 0, 184)), (IBV_FLUSH_GLOBAL as u16, 64 << 32 | 64));
            assert_eq!([24, 208].map(|at| word(qp, 1, at)), [0x7000, u64::from_ne_bytes(*b"by calls")]);

            start(ex);
            (*ex).wr_flush.unwrap()(ex, 0x77, 0x6000, 1 << 32, 1, 0);
            assert_eq!(complete(ex), libc::EINVAL);
            assert_eq!(qp::destroy_qp(qp), 0);
        }
        assert_eq!(kernel.doorbells.get(), 2);
    });
}
