//! `libanyverbs-view.so`: preloaded beside libibverbs.so.1, it shows `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband` as they would look if the embedded devices were the kernel's. All other paths go to libc as they came.
//!
//! - `calls`: the C functions that take a path, each of which translates it and calls libc's.
//! - `path`: which paths are the view's, and where they lead.
//! - `tree`: the view as a private folder of text files and links, made when first looked at and removed at exit.
//! - `content`: what stands in it.
//! - `verbs`: what libibverbs in this process says of its devices.
#![cfg_attr(test, allow(dead_code))]

// A test program keeps its own libc.
#[cfg(not(test))]
mod calls;
mod content;
mod path;
mod tree;
mod verbs;

/// libibverbs looks for this name, and tells paths below `/sys` and `/dev` only where it finds it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static anyverbs_view: u32 = 1;
