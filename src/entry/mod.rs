//! The exported functions, one file per object: check pointers, convert, call, convert back.
mod absent;
mod ah;
mod compat_1_0;
mod compat_1_0_post;
mod compat_1_0_queue;
mod counter;
mod cq;
mod device;
mod event;
mod extension;
mod fork;
mod marshall;
mod mr;
mod names;
mod nodes;
mod pd;
mod private;
mod private_cmd;
mod private_ioctl;
mod private_variadic;
mod qp;
mod query;
mod rates;
mod srq;
mod sysfs;
#[cfg(test)]
mod tests;
