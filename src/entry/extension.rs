//! What this library offers beyond verbs. cbindgen makes `include/anyverbs.h` of this file and of `abi/extension.rs`
//! (`tests/extension.rs`): what it exports is `pub`, and its comments speak to C programmers.
use crate::abi::{anyverbs_path, ibv_qp};
use crate::core::convention::{code, given};
use crate::core::extension;
use std::ffi::{c_char, c_int};

export!(anyverbs_version => "anyverbs_version" @@ "ANYVERBS_1.0");
export!(anyverbs_qp_path => "anyverbs_qp_path" @@ "ANYVERBS_1.0");

/// The version of this library, as `MAJOR.MINOR.PATCH`.
pub extern "C" fn anyverbs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Tells how a queue pair reaches its peer, from the move to RTR on.
pub unsafe extern "C" fn anyverbs_qp_path(qp: *mut ibv_qp, path: *mut anyverbs_path) -> c_int {
    code(|| {
        given(qp, "anyverbs_qp_path", "qp")?;
        given(path, "anyverbs_qp_path", "path")?;
        // SAFETY: a live queue pair, and room for the answer.
        unsafe { *path = (extension::of((*qp).context, "anyverbs_qp_path")?.qp_path)(qp)? };
        Ok(0)
    })
}
