//! The exported functions, one file per object: check pointers, convert, call, convert back.
#[macro_use]
mod absent;
mod compat_1_0;
mod marshall;
mod names;
mod nodes;
mod private;
mod private_cmd;
mod private_ioctl;
mod private_variadic;
mod rates;
mod sysfs;
