//! What exported names do that have no implementation yet: each says EOPNOTSUPP by its own convention.
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};

/// Returns NULL and stores EOPNOTSUPP.
pub(super) extern "C" fn null() -> *mut c_void {
    Errno::EOPNOTSUPP.store();
    std::ptr::null_mut()
}

/// Returns the positive errno value.
pub(super) extern "C" fn errno() -> i32 {
    Errno::EOPNOTSUPP.0
}

/// Returns -1 and stores EOPNOTSUPP.
pub(super) extern "C" fn minus() -> i32 {
    Errno::EOPNOTSUPP.store();
    -1
}

/// Does nothing.
pub(super) extern "C" fn void() {}

/// Commands whose parameters changed between the private nodes: a function of its own for each form.
macro_rules! refused_forms {
    ($($(#[$meta:meta])* $name:ident($($arg:ty),*);)*) => { $(
        $(#[$meta])*
        pub(super) unsafe extern "C" fn $name($(_: $arg),*) -> c_int {
            Errno::EOPNOTSUPP.0
        }
    )* };
}

/// A command or response of the kernel (`rdma/ib_user_verbs.h`), with the provider's tail behind it.
type Message = *mut c_void;

refused_forms! {
    /// context, command, response.
    get_context_34(*mut verbs_context, Message, usize, Message, usize);
    /// Since 57 with descriptors to import, before the response.
    get_context_57(*mut verbs_context, Message, usize, *mut c_void, Message, usize);
    /// context, attributes, CQ, command, response, flags.
    create_cq_ex_34(*mut ibv_context, *const ibv_cq_init_attr_ex, *mut verbs_cq, Message, usize, Message, usize, u32);
    /// Since 59 with the provider's memory for the CQ, behind the attributes.
    create_cq_ex_59(
        *mut ibv_context, *const ibv_cq_init_attr_ex, *mut c_void, *mut verbs_cq, Message, usize, Message, usize, u32
    );
    /// As `create_cq_ex_34`, with a command buffer of the provider's.
    create_cq_ex2_34(
        *mut ibv_context, *const ibv_cq_init_attr_ex, *mut verbs_cq, Message, usize, Message, usize, u32,
        *mut ibv_command_buffer
    );
    /// As `create_cq_ex_59`, with a command buffer of the provider's.
    create_cq_ex2_59(
        *mut ibv_context, *const ibv_cq_init_attr_ex, *mut c_void, *mut verbs_cq, Message, usize, Message, usize, u32,
        *mut ibv_command_buffer
    );
    /// domain, offset, length, iova, fd, access, region. Releases 54 to 56 pass one more argument, which is not read.
    reg_dmabuf_mr_34(*mut ibv_pd, u64, usize, u64, c_int, c_int, *mut verbs_mr);
    /// Since 57 always with a command buffer of the provider's.
    reg_dmabuf_mr_57(*mut ibv_pd, u64, usize, u64, c_int, c_int, *mut verbs_mr, *mut ibv_command_buffer);
    /// context, QP, attributes, command, response.
    create_qp_ex2_34(*mut ibv_context, *mut verbs_qp, *mut ibv_qp_init_attr_ex, Message, usize, Message, usize);
    /// Since 64 with a command buffer of the provider's.
    create_qp_ex2_64(
        *mut ibv_context, *mut verbs_qp, *mut ibv_qp_init_attr_ex, Message, usize, Message, usize,
        *mut ibv_command_buffer
    );
}
