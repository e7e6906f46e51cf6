//! Completion counters.
use super::{Ioctl, code, forgive, object};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::c_int;

const QUERY_CAPS: u16 = 8;
const QP_ATTACH: u16 = 2;
const CREATE: u16 = 0;
const DESTROY: u16 = 1;
const MODIFY: u16 = 2;
const READ: u16 = 3;

/// The two numbers of a counter (`enum ib_uverbs_comp_cntr_entry`).
const COMPLETIONS: u64 = 0;
const ERRORS: u64 = 1;

/// `enum ib_uverbs_comp_cntr_modify_op`.
const SET: u64 = 0;
const INCREMENT: u64 = 1;

/// # Safety
/// `ctx` live; `counter` valid for writes, `link` null or a live command buffer.
pub unsafe extern "C" fn create(
    ctx: *mut ibv_context,
    counter: *mut ibv_comp_cntr,
    link: *mut ibv_command_buffer,
) -> c_int {
    let mut ioctl = Ioctl::new(object::COMP_CNTR, CREATE);
    let place = ioctl.new_handle(0);
    ioctl.link(link);
    // SAFETY: the provider gives a live context and a new counter.
    code(unsafe {
        ioctl.send_only(ctx).map(|()| {
            (*counter).context = ctx;
            (*counter).handle = ioctl.handle_at(place);
        })
    })
}

/// # Safety
/// `counter` live.
pub unsafe extern "C" fn destroy(counter: *mut ibv_comp_cntr) -> c_int {
    let mut ioctl = Ioctl::new(object::COMP_CNTR, DESTROY);
    // SAFETY: the provider gives a live counter.
    code(unsafe {
        ioctl.handle(0, (*counter).handle);
        ioctl.send_only((*counter).context).or_else(forgive)
    })
}

/// # Safety
/// `counter` live.
unsafe fn modify(counter: *mut ibv_comp_cntr, entry: u64, how: u64, value: u64) -> c_int {
    let mut ioctl = Ioctl::new(object::COMP_CNTR, MODIFY);
    // SAFETY: the provider gives a live counter.
    code(unsafe {
        ioctl.handle(0, (*counter).handle);
        ioctl.constant(1, entry);
        ioctl.constant(2, how);
        ioctl.value(3, value);
        ioctl.send_only((*counter).context)
    })
}

/// # Safety
/// `counter` live, `value` valid for writes.
unsafe fn look(counter: *mut ibv_comp_cntr, entry: u64, value: *mut u64) -> c_int {
    let mut ioctl = Ioctl::new(object::COMP_CNTR, READ);
    // SAFETY: the provider gives a live counter and room for its value.
    code(unsafe {
        ioctl.handle(0, (*counter).handle);
        ioctl.constant(1, entry);
        ioctl.out(2, &mut *value);
        ioctl.send_only((*counter).context)
    })
}

macro_rules! modifies {
    ($($name:ident $entry:ident $how:ident;)*) => { $(
        /// # Safety
        /// `counter` live.
        pub unsafe extern "C" fn $name(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
            // SAFETY: the caller's promise is this function's.
            unsafe { modify(counter, $entry, $how, value) }
        }
    )* };
}

modifies! {
    set COMPLETIONS SET;
    set_errors ERRORS SET;
    increment COMPLETIONS INCREMENT;
    increment_errors ERRORS INCREMENT;
}

/// # Safety
/// `counter` live, `value` valid for writes.
pub unsafe extern "C" fn read(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { look(counter, COMPLETIONS, value) }
}

/// # Safety
/// As `read`.
pub unsafe extern "C" fn read_errors(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { look(counter, ERRORS, value) }
}

/// # Safety
/// `qp` and `counter` live, `attr` readable.
pub unsafe extern "C" fn attach(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    let mut ioctl = Ioctl::new(object::QP, QP_ATTACH);
    // SAFETY: the provider gives live objects and its attributes.
    code(unsafe {
        ioctl.handle(0, (*qp).handle);
        ioctl.handle(1, (*counter).handle);
        ioctl.value(2, (*attr).op_mask);
        ioctl.send_only((*qp).context)
    })
}

/// # Safety
/// `ctx` live, `caps` valid for `size` bytes.
pub unsafe extern "C" fn query_caps(
    ctx: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    if size < size_of::<ibv_comp_cntr_caps>() {
        return code(Err(Errno::EINVAL));
    }
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_CAPS);
    // SAFETY: the provider gives a live context and room for the answer.
    code(unsafe {
        ioctl.out(0, &mut (*caps).max_counters);
        ioctl.out(1, &mut (*caps).max_value);
        ioctl.out(2, &mut (*caps).supported_qp_attach_ops);
        ioctl.send_only(ctx)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::command::tests::{Context, put};
    use crate::kernel::double::{self, Command, attr};

    type Said = std::rc::Rc<std::cell::RefCell<String>>;

    /// What a command says: object, method, and each attribute's number, length and value; answers with 9 where it asks.
    fn told(to: &Said) -> impl FnMut(Command<'_>) -> Result<(), Errno> + 'static {
        let to = to.clone();
        move |command| {
            let Command::Ioctl(object, method, attrs) = command else { panic!("a write") };
            assert!(attrs.iter().all(|a| a.flags == 1));
            let mut text = format!("{object}.{method}");
            for a in attrs.iter() {
                let value = if a.data < 1 << 32 { a.data.to_string() } else { "out".into() };
                text += &format!(" {}/{}={value}", a.attr_id, a.len);
            }
            to.replace(text);
            match (object, method) {
                (object::COMP_CNTR, CREATE) => attr(attrs, 0).data = 9,
                (object::COMP_CNTR, READ) => put(attrs, 2, 77u64),
                (object::DEVICE, QUERY_CAPS) => {
                    put(attrs, 0, 5u32);
                    put(attrs, 1, 6u64);
                    put(attrs, 2, 7u32);
                }
                _ => {}
            }
            Ok(())
        }
    }

    #[test]
    fn a_counter_is_made_changed_read_attached_and_destroyed() {
        let mut context = Context::new(true);
        let ctx = context.get();
        let said = Said::default();
        let mut counter = ibv_comp_cntr { context: std::ptr::null_mut(), handle: 0 };
        let counter = &raw mut counter;
        let (mut value, mut qp) = (0, Box::new(verbs_qp::zeroed()));
        let qp: *mut ibv_qp = (&raw mut *qp).cast();
        let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: 0x15 };
        let heard = || said.take();
        // SAFETY: everything is the test's and lives.
        double::with(told(&said), || unsafe {
            ((*qp).context, (*qp).handle) = (ctx, 3);
            assert_eq!((create(ctx, counter, std::ptr::null_mut()), heard()), (0, "19.0 0/0=0".into()));
            assert_eq!(((*counter).context, (*counter).handle), (ctx, 9));
            assert_eq!((set(counter, 4), heard()), (0, "19.2 0/0=9 1/8=0 2/8=0 3/8=4".into()));
            assert_eq!((set_errors(counter, 4), heard()), (0, "19.2 0/0=9 1/8=1 2/8=0 3/8=4".into()));
            assert_eq!((increment(counter, 4), heard()), (0, "19.2 0/0=9 1/8=0 2/8=1 3/8=4".into()));
            assert_eq!((increment_errors(counter, 4), heard()), (0, "19.2 0/0=9 1/8=1 2/8=1 3/8=4".into()));
            assert_eq!((read(counter, &mut value), heard()), (0, "19.3 0/0=9 1/8=0 2/8=out".into()));
            assert_eq!((read_errors(counter, &mut value), heard()), (0, "19.3 0/0=9 1/8=1 2/8=out".into()));
            assert_eq!(value, 77);
            assert_eq!((attach(qp, counter, &mut attr), heard()), (0, "4.2 0/0=3 1/0=9 2/4=21".into()));
            assert_eq!((destroy(counter), heard()), (0, "19.1 0/0=9".into()));
        });
    }

    #[test]
    fn the_capabilities_need_room_for_all_of_them() {
        let mut context = Context::new(true);
        let ctx = context.get();
        let said = Said::default();
        let mut caps = ibv_comp_cntr_caps { max_value: 0, max_counters: 0, supported_qp_attach_ops: 0 };
        let size = size_of_val(&caps);
        // SAFETY: everything is the test's and lives.
        double::with(told(&said), || unsafe {
            assert_eq!(query_caps(ctx, &mut caps, size - 1), libc::EINVAL);
            assert_eq!(said.take(), "");
            assert_eq!(query_caps(ctx, &mut caps, size), 0);
        });
        assert_eq!(said.take(), "0.8 0/4=out 1/8=out 2/4=out");
        assert_eq!((caps.max_counters, caps.max_value, caps.supported_qp_attach_ops), (5, 6, 7));
    }

    #[test]
    fn a_kernel_without_counters_is_eopnotsupp() {
        let mut context = Context::new(true);
        let ctx = context.get();
        for lack in [libc::EPROTONOSUPPORT, libc::ENOTTY] {
            let mut counter = ibv_comp_cntr { context: ctx, handle: 1 };
            // SAFETY: everything is the test's and lives.
            double::with(
                move |_| Err(Errno(lack)),
                || unsafe {
                    assert_eq!(create(ctx, &mut counter, std::ptr::null_mut()), libc::EOPNOTSUPP);
                    assert_eq!(increment(&mut counter, 1), libc::EOPNOTSUPP);
                    assert_eq!(destroy(&mut counter), libc::EOPNOTSUPP);
                },
            );
        }
    }
}
