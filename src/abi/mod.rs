//! `repr(C)` mirrors of the public and private headers (rdma-core 65), const-asserted; no behaviour.
//!
//! Names are the C names. C enums are integer constants (`u32`, or `c_int` where a value is negative); big-endian
//! fields are plain integers in network byte order, as in C. Flexible unions whose members have one type are one field.
#![allow(non_camel_case_types, non_snake_case)]

/// Asserts size and offsets of a mirror, and gives it `zeroed()`. `x86_64` before the name says that the numbers hold
/// there only: the type has a `pthread_mutex_t` in it, whose size differs between architectures.
macro_rules! layout {
    (x86_64 $t:ident: $size:literal; $($f:ident $off:literal),* $(,)?) => {
        #[cfg(target_arch = "x86_64")]
        layout! { @assert $t $size $($f $off)* }
        layout! { @zeroed $t }
    };
    ($t:ident: $size:literal; $($f:ident $off:literal),* $(,)?) => {
        layout! { @assert $t $size $($f $off)* }
        layout! { @zeroed $t }
    };
    (@assert $t:ident $size:literal $($f:ident $off:literal)*) => {
        const _: () = {
            assert!(size_of::<$t>() == $size);
            $(assert!(::core::mem::offset_of!($t, $f) == $off);)*
        };
    };
    (@zeroed $t:ident) => {
        impl $t {
            /// All bits zero, as C callers initialise it.
            pub const fn zeroed() -> Self {
                // SAFETY: every field is an integer, a raw pointer, an optional function or made of these; zero is valid.
                unsafe { ::core::mem::zeroed() }
            }
        }
    };
}

/// The values of one C enum.
macro_rules! consts {
    (#[doc = $doc:literal] $t:ty; $($n:ident = $v:expr;)*) => {
        $(#[doc = $doc] pub const $n: $t = $v;)*
    };
}

mod ah;
mod compat_1_0;
mod consts_device;
mod consts_object;
mod consts_queue;
mod context;
mod cq;
mod device;
mod extension;
mod flow;
mod kern;
mod mr;
mod ops;
mod pd;
mod private;
mod qp;
mod srq;
mod uverbs;
mod wq;
mod wr;

pub use ah::*;
pub use compat_1_0::*;
pub use consts_device::*;
pub use consts_object::*;
pub use consts_queue::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use extension::*;
pub use flow::*;
pub use kern::*;
pub use mr::*;
pub use ops::*;
pub use pd::*;
pub use private::*;
pub use qp::*;
pub use srq::*;
pub use uverbs::*;
pub use wq::*;
pub use wr::*;
