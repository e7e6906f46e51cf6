//! Regions by attributes, DMA handles, and what the kernel exports as a dma-buf.
use super::write::Plain;
use super::{Ioctl, Way, code, forgive, mr, object};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};

const REG_MR: u16 = 5;
const DMAH_ALLOC: u16 = 0;
const DMAH_FREE: u16 = 1;
const DMABUF_ALLOC: u16 = 0;

/// What of a mask is looked at: memory of the application or a dma-buf, with or without a DMA handle. A buffer of the library
/// is memory of the application to the kernel.
const IOVA: u64 = IBV_REG_MR_MASK_IOVA;
const ADDR: u64 = IBV_REG_MR_MASK_ADDR;
const DMABUF: u64 = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;

/// Registers by ioctl; memory of the application by the written command where the kernel does not have the method.
///
/// # Safety
/// `pd` live, `region` valid for writes, `attr` readable; a DMA handle that its mask names is a live `verbs_dmah`.
pub unsafe extern "C" fn reg_mr_ex(
    pd: *mut ibv_pd,
    region: *mut verbs_mr,
    attr: *mut ibv_mr_init_attr,
) -> c_int {
    // SAFETY: the provider gives a live PD, a new region and its attributes.
    code(unsafe {
        let a = *attr;
        let (has, kind) = match a.comp_mask & (IOVA | ADDR | DMABUF) {
            mask if mask & !IOVA == ADDR => (ADDR, IBV_MR_TYPE_MR),
            mask if mask == IOVA | DMABUF => (DMABUF, IBV_MR_TYPE_DMABUF_MR),
            _ => return code(Err(Errno::EINVAL)),
        };
        let start = a.addr.expose_provenance() as u64;
        let iova = if a.comp_mask & IOVA != 0 { a.iova } else { start };
        let (mut lkey, mut rkey) = (0u32, 0u32);
        let mut ioctl = Ioctl::new(object::MR, REG_MR);
        let place = ioctl.new_handle(0);
        ioctl.handle(1, (*pd).handle);
        ioctl.value(3, iova);
        if has == ADDR {
            ioctl.value(4, start);
        }
        ioctl.value(5, a.length as u64);
        ioctl.value(6, a.access as u32);
        if has == DMABUF {
            ioctl.fd(7, a.fd);
            ioctl.value(8, a.fd_offset);
        }
        ioctl.out(9, &mut lkey);
        ioctl.out(10, &mut rkey);
        let with_handle = a.comp_mask & IBV_REG_MR_MASK_DMAH != 0;
        if with_handle {
            ioctl.handle(2, (*a.dmah.cast::<verbs_dmah>()).handle);
        }
        ioctl.try_send((*pd).context).and_then(|way| match way {
            Way::Done => {
                mr::fill(region, pd, kind, a.access, ioctl.handle_at(place), lkey, rkey);
                Ok(())
            }
            Way::Write if has == ADDR && !with_handle => by_write(pd, region, a.addr, &a, iova),
            Way::Write => Err(Errno::EOPNOTSUPP),
        })
    })
}

/// # Safety
/// `pd` live, `region` valid for writes.
unsafe fn by_write(
    pd: *mut ibv_pd,
    region: *mut verbs_mr,
    addr: *mut c_void,
    a: &ibv_mr_init_attr,
    iova: u64,
) -> Result<(), Errno> {
    let mut cmd = Plain::of(ib_uverbs_reg_mr::zeroed());
    let mut resp = ib_uverbs_reg_mr_resp::zeroed();
    let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the caller vouches for PD and region; request and answer are ours.
    match unsafe { mr::reg_mr(pd, addr, a.length, iova, a.access, region, &mut cmd, size, &mut resp, room) } {
        0 => Ok(()),
        e => Err(Errno(e)),
    }
}

/// # Safety
/// `ctx` live; `dmah` valid for writes, `attr` readable.
pub unsafe extern "C" fn alloc_dmah(
    ctx: *mut ibv_context,
    dmah: *mut verbs_dmah,
    attr: *mut ibv_dmah_init_attr,
) -> c_int {
    let mut ioctl = Ioctl::new(object::DMAH, DMAH_ALLOC);
    let place = ioctl.new_handle(0);
    // SAFETY: the provider gives a live context, a new object and its attributes.
    code(unsafe {
        let a = *attr;
        if a.comp_mask & IBV_DMAH_INIT_ATTR_MASK_CPU_ID != 0 {
            ioctl.value(1, a.cpu_id);
        }
        if a.comp_mask & IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE != 0 {
            // Nothing but one of its forms.
            ioctl.handle(2, 0);
            ioctl.chosen(a.tph_mem_type.into());
        }
        if a.comp_mask & IBV_DMAH_INIT_ATTR_MASK_PH != 0 {
            ioctl.value(3, a.ph);
        }
        ioctl.send_only(ctx).map(|()| {
            (*dmah).dmah.context = ctx;
            (*dmah).handle = ioctl.handle_at(place);
        })
    })
}

/// # Safety
/// `dmah` live.
pub unsafe extern "C" fn free_dmah(dmah: *mut verbs_dmah) -> c_int {
    let mut ioctl = Ioctl::new(object::DMAH, DMAH_FREE);
    // SAFETY: the provider gives a live object.
    code(unsafe {
        ioctl.handle(0, (*dmah).handle);
        ioctl.send_only((*dmah).dmah.context).or_else(forgive)
    })
}

/// A descriptor of the dma-buf for what a provider would map at this offset; -1 and errno where there is none.
///
/// # Safety
/// `ctx` live.
pub unsafe extern "C" fn export_dmabuf_fd(ctx: *mut ibv_context, offset: libc::off_t) -> c_int {
    let mut ioctl = Ioctl::new(object::DMABUF, DMABUF_ALLOC);
    let place = ioctl.new_handle(0);
    ioctl.value(1, offset as u64);
    // SAFETY: the provider gives a live context.
    match unsafe { ioctl.send_only(ctx) } {
        Ok(()) => ioctl.handle_at(place) as c_int,
        Err(e) => {
            e.store();
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::command::device;
    use crate::kernel::command::tests::{Context, put};
    use crate::kernel::double::{self, Command, attr};
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What came: object and method, or a write's number; then number, length, form and value of the attributes that are not
    /// answers, by number.
    type Heard = Rc<RefCell<Vec<String>>>;

    fn kernel(heard: &Heard, lack: c_int) -> impl FnMut(Command<'_>) -> Result<(), Errno> + 'static {
        let heard = heard.clone();
        move |command| {
            let (object, method, attrs) = match command {
                Command::Ioctl(object, method, attrs) => (object, method, attrs),
                Command::Write(number, request) => {
                    heard.borrow_mut().push(format!("write {number}"));
                    let at = u64::from_ne_bytes(request[8..16].try_into().unwrap()) as usize;
                    let to = std::ptr::with_exposed_provenance_mut::<ib_uverbs_reg_mr_resp>(at);
                    // SAFETY: the command gives the address of its answer.
                    unsafe { to.write(ib_uverbs_reg_mr_resp { mr_handle: 9, lkey: 0x11, rkey: 0x22 }) };
                    return Ok(());
                }
            };
            let mut all: Vec<_> = attrs.iter().filter(|a| a.data < 1 << 40).collect();
            all.sort_by_key(|a| a.attr_id);
            let form = |a: &ib_uverbs_attr| {
                if a.attr_data == 0 { String::new() } else { format!("#{}", a.attr_data) }
            };
            let words = all.iter().map(|a| format!(" {}/{}{}={:x}", a.attr_id, a.len, form(a), a.data));
            heard.borrow_mut().push(format!("{object}.{method}{}", words.collect::<String>()));
            if lack != 0 {
                return Err(Errno(lack));
            }
            match (object, method) {
                (object::MR, REG_MR) => {
                    attr(attrs, 0).data = 9;
                    put(attrs, 9, 0x11u32);
                    put(attrs, 10, 0x22u32);
                }
                (object::DEVICE, 7) => put(attrs, 1, 4000u64),
                _ => attr(attrs, 0).data = 9,
            }
            Ok(())
        }
    }

    fn attributes(mask: u64, dmah: &mut verbs_dmah) -> ibv_mr_init_attr {
        ibv_mr_init_attr {
            length: 0x2000,
            access: 7,
            comp_mask: mask,
            iova: 0x9000,
            addr: std::ptr::without_provenance_mut(0x3000),
            fd: 33,
            fd_offset: 0x1000,
            dmah: (&raw mut *dmah).cast(),
            buf: std::ptr::null_mut(),
        }
    }

    /// Registers by each of these masks on a kernel that says `lack`; what came of it, and what the kernel was asked.
    fn register(masks: &[u64], lack: c_int) -> (Vec<(c_int, u32)>, Vec<String>) {
        let mut context = Context::new(false);
        let heard = Heard::default();
        let mut pd = ibv_pd { context: context.get(), handle: 0x21 };
        let mut dmah = verbs_dmah { dmah: ibv_dmah { context: pd.context }, handle: 0x77 };
        let done = double::with(kernel(&heard, lack), || {
            let each = masks.iter().map(|&mask| {
                // SAFETY: plain data; zero is a value of each field.
                let mut mr: verbs_mr = unsafe { std::mem::zeroed() };
                let mut attr = attributes(mask, &mut dmah);
                // SAFETY: everything is the test's; the scripted kernel pins nothing.
                let rc = unsafe { reg_mr_ex(&mut pd, &mut mr, &mut attr) };
                assert_eq!(mr.ibv_mr.rkey, if rc == 0 { 0x22 } else { 0 });
                (rc, mr.mr_type)
            });
            each.collect()
        });
        (done, heard.take())
    }

    #[test]
    fn memory_or_a_dma_buf_is_registered_with_or_without_a_dma_handle() {
        let (done, heard) = register(&[0x2, 0x3, 0x12, 0x22, 0xd, 0x1d], 0);
        let [mr, dmabuf] = [(0, IBV_MR_TYPE_MR), (0, IBV_MR_TYPE_DMABUF_MR)];
        assert_eq!(done, [mr, mr, mr, mr, dmabuf, dmabuf]);
        let at_3000 = "7.5 0/0=0 1/0=21 3/8=3000 4/8=3000 5/8=2000 6/4=7";
        assert_eq!(heard[0], at_3000);
        assert_eq!(heard[1], "7.5 0/0=0 1/0=21 3/8=9000 4/8=3000 5/8=2000 6/4=7");
        assert_eq!(heard[2], "7.5 0/0=0 1/0=21 2/0=77 3/8=3000 4/8=3000 5/8=2000 6/4=7");
        assert_eq!(heard[3], at_3000);
        assert_eq!(heard[4], "7.5 0/0=0 1/0=21 3/8=9000 5/8=2000 6/4=7 7/0=21 8/8=1000");
        assert_eq!(heard[5], "7.5 0/0=0 1/0=21 2/0=77 3/8=9000 5/8=2000 6/4=7 7/0=21 8/8=1000");
    }

    #[test]
    fn neither_or_both_kinds_of_memory_are_refused() {
        let masks = [0, 0x1, 0x4, 0x5, 0x6, 0x7, 0xa, 0xc, 0xe, 0xf, 0x10, 0x1e, 0x1f, 0x20, 0x21, 0x40];
        let (done, heard) = register(&masks, 0);
        assert!(done.iter().all(|&(rc, _)| rc == libc::EINVAL) && heard.is_empty(), "{done:?} {heard:?}");
    }

    #[test]
    fn memory_is_registered_by_the_written_command_where_the_method_is_missing() {
        for lack in [libc::EPROTONOSUPPORT, libc::ENOTTY] {
            let (done, heard) = register(&[0x2, 0x3, 0x12, 0xd], lack);
            let codes: Vec<c_int> = done.iter().map(|&(rc, _)| rc).collect();
            assert_eq!(codes, [0, 0, libc::EOPNOTSUPP, libc::EOPNOTSUPP]);
            assert_eq!(heard.iter().filter(|line| line.starts_with("7.5")).count(), 1, "asked once");
            assert_eq!(heard[1..], ["write 9", "write 9"]);
        }
    }

    #[test]
    fn a_dma_handle_has_what_its_mask_names() {
        let mut context = Context::new(true);
        let (ctx, heard) = (context.get(), Heard::default());
        // SAFETY: everything is the test's and lives.
        double::with(kernel(&heard, 0), || unsafe {
            let mut dmah = verbs_dmah { dmah: ibv_dmah { context: std::ptr::null_mut() }, handle: 0 };
            let mut attr = ibv_dmah_init_attr { comp_mask: 0, cpu_id: 5, ph: 2, tph_mem_type: 1 };
            for mask in [0, 1, 2, 4, 7] {
                attr.comp_mask = mask;
                assert_eq!(alloc_dmah(ctx, &mut dmah, &mut attr), 0);
            }
            assert_eq!((dmah.dmah.context, dmah.handle), (ctx, 9));
            assert_eq!(free_dmah(&mut dmah), 0);
        });
        let all = ["0/0=0", "0/0=0 1/4=5", "0/0=0 3/1=2", "0/0=0 2/0#1=0", "0/0=0 1/4=5 2/0#1=0 3/1=2"];
        let expected = all.iter().map(|attrs| format!("17.0 {attrs}")).chain(["17.1 0/0=9".into()]);
        assert_eq!(heard.take(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_port_tells_its_speed_and_a_mapping_becomes_a_dma_buf() {
        let mut context = Context::new(true);
        let (ctx, heard) = (context.get(), Heard::default());
        let mut speed = 0;
        // SAFETY: everything is the test's and lives.
        double::with(kernel(&heard, 0), || unsafe {
            assert_eq!(device::query_port_speed(ctx, 3, &mut speed), 0);
            assert_eq!(export_dmabuf_fd(ctx, 0x12000), 9);
        });
        assert_eq!(speed, 4000);
        assert_eq!(heard.take(), ["0.7 0/8=3", "18.0 0/0=0 1/8=12000"]);
    }

    #[test]
    fn a_kernel_that_lacks_them_is_eopnotsupp() {
        for lack in [libc::EPROTONOSUPPORT, libc::ENOTTY] {
            let mut context = Context::new(true);
            let (ctx, heard) = (context.get(), Heard::default());
            let mut dmah = verbs_dmah { dmah: ibv_dmah { context: ctx }, handle: 0 };
            let mut attr = ibv_dmah_init_attr { comp_mask: 0, cpu_id: 0, ph: 0, tph_mem_type: 0 };
            // SAFETY: everything is the test's and lives.
            double::with(kernel(&heard, lack), || unsafe {
                assert_eq!(alloc_dmah(ctx, &mut dmah, &mut attr), libc::EOPNOTSUPP);
                assert_eq!(free_dmah(&mut dmah), libc::EOPNOTSUPP);
                assert_eq!(device::query_port_speed(ctx, 1, &mut 0), libc::EOPNOTSUPP);
                assert_eq!((export_dmabuf_fd(ctx, 0), Errno::last()), (-1, Errno::EOPNOTSUPP));
            });
        }
    }
}
