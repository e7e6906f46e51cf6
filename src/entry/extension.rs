//! What this library offers beyond verbs. cbindgen makes `include/anyverbs.h` of this file and of `abi/extension.rs`
//! (`tests/extension.rs`): what it exports is `pub`, and its comments speak to C programmers.
use crate::abi::{anyverbs_counter, anyverbs_fault_counts, anyverbs_path, ibv_context, ibv_qp};
use crate::core::convention::{code, given, nothing};
use crate::core::extension;
use crate::provider::object;
use crate::soft::node;
use crate::sys::errno::Errno;
use anyverbs_counters::{COUNTERS, Values};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

export!(anyverbs_version => "anyverbs_version" @@ "ANYVERBS_1.0");
export!(anyverbs_qp_path => "anyverbs_qp_path" @@ "ANYVERBS_1.0");
export!(anyverbs_set_faults => "anyverbs_set_faults" @@ "ANYVERBS_1.0");
export!(anyverbs_set_qp_faults => "anyverbs_set_qp_faults" @@ "ANYVERBS_1.0");
export!(anyverbs_read_faults => "anyverbs_read_faults" @@ "ANYVERBS_1.0");
export!(anyverbs_read_qp_faults => "anyverbs_read_qp_faults" @@ "ANYVERBS_1.0");
export!(anyverbs_start_trace => "anyverbs_start_trace" @@ "ANYVERBS_1.0");
export!(anyverbs_stop_trace => "anyverbs_stop_trace" @@ "ANYVERBS_1.0");
export!(anyverbs_query_port_counters => "anyverbs_query_port_counters" @@ "ANYVERBS_1.0");
export!(anyverbs_query_qp_counters => "anyverbs_query_qp_counters" @@ "ANYVERBS_1.0");

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

/// Has the messages of all queue pairs of a context go wrong, of those that it has and those that it gets: `faults` is a
/// string as ANYVERBS_FAULTS takes it, for example "loss=1%,delay=200us,seed=7". Chance begins anew with the seed, and
/// kill_qp_after counts from now on. NULL or "" ends all faults.
///
/// EINVAL: the string is wrong, and the faults stay as they were.
pub unsafe extern "C" fn anyverbs_set_faults(context: *mut ibv_context, faults: *const c_char) -> c_int {
    code(|| {
        given(context, "anyverbs_set_faults", "context")?;
        // SAFETY: a live context, and a string or NULL.
        unsafe {
            (extension::of(context, "anyverbs_set_faults")?.set_faults)(context, text(faults))?;
        }
        Ok(0)
    })
}

/// The same for one queue pair.
pub unsafe extern "C" fn anyverbs_set_qp_faults(qp: *mut ibv_qp, faults: *const c_char) -> c_int {
    code(|| {
        given(qp, "anyverbs_set_qp_faults", "qp")?;
        // SAFETY: a live queue pair, and a string or NULL.
        unsafe {
            (extension::of((*qp).context, "anyverbs_set_qp_faults")?.set_qp_faults)(qp, text(faults))?;
        }
        Ok(0)
    })
}

/// Tells what faults have done to the queue pairs of a context so far, to those that are gone as well. `size` is
/// sizeof(struct anyverbs_fault_counts).
pub unsafe extern "C" fn anyverbs_read_faults(
    context: *mut ibv_context,
    counts: *mut anyverbs_fault_counts,
    size: usize,
) -> c_int {
    code(|| {
        given(context, "anyverbs_read_faults", "context")?;
        given(counts, "anyverbs_read_faults", "counts")?;
        // SAFETY: a live context; the caller gives `size` bytes.
        unsafe {
            let now = (extension::of(context, "anyverbs_read_faults")?.read_faults)(context)?;
            object::write_versioned(counts.cast(), size, &now);
        }
        Ok(0)
    })
}

/// Tells what faults have done to a queue pair so far.
pub unsafe extern "C" fn anyverbs_read_qp_faults(
    qp: *mut ibv_qp,
    counts: *mut anyverbs_fault_counts,
    size: usize,
) -> c_int {
    code(|| {
        given(qp, "anyverbs_read_qp_faults", "qp")?;
        given(counts, "anyverbs_read_qp_faults", "counts")?;
        // SAFETY: a live queue pair; the caller gives `size` bytes.
        unsafe {
            let now = (extension::of((*qp).context, "anyverbs_read_qp_faults")?.read_qp_faults)(qp)?;
            object::write_versioned(counts.cast(), size, &now);
        }
        Ok(0)
    })
}

/// Writes from now on what goes over every path to a pcapng file, as ANYVERBS_PCAP does from the beginning: `%p` in the
/// name is the process's number, a pcapng file that is there is continued. A trace that goes on ends.
///
/// EEXIST: the file is there, and no pcapng file. Else what open(2) and write(2) give; an older trace goes on then.
pub unsafe extern "C" fn anyverbs_start_trace(file: *const c_char) -> c_int {
    code(|| {
        given(file.cast_mut(), "anyverbs_start_trace", "file")?;
        // SAFETY: the caller gives a C string.
        node::node()?.start_trace(OsStr::from_bytes(unsafe { CStr::from_ptr(file) }.to_bytes()))?;
        Ok(0)
    })
}

/// Ends the trace of this process, if there is one; all that it has seen is in its file.
pub extern "C" fn anyverbs_stop_trace() {
    nothing(|| {
        if let Some(node) = node::existing() {
            node.stop_trace();
        }
    });
}

/// A C string; NULL is the empty one.
///
/// # Safety
/// `text` must be NULL or a C string that lives as long as it is used.
unsafe fn text<'a>(text: *const c_char) -> &'a CStr {
    // SAFETY: the caller vouches for it.
    if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } }
}

/// Reads what this process has counted on a port: the sum over its queue pairs, also those that are gone.
///
/// Give room for `*count` counters; `*count` then tells how many there are, of which as many as had room are filled
/// in. `counters` may be NULL where `*count` is 0. Look for counters by name: later releases have more of them, in any
/// order. `anyverbs stats` and sysfs under `anyverbs run` show the sum over all processes of a user instead.
pub unsafe extern "C" fn anyverbs_query_port_counters(
    context: *mut ibv_context,
    port_num: u32,
    counters: *mut anyverbs_counter,
    count: *mut usize,
) -> c_int {
    const CALL: &str = "anyverbs_query_port_counters";
    code(|| {
        given(context, CALL, "context")?;
        // SAFETY: a live context, and room for the answer.
        unsafe {
            fill(CALL, counters, count, || (extension::of(context, CALL)?.port_counters)(context, port_num))
        }
    })
}

/// Reads what a queue pair has counted since it was created, as anyverbs_query_port_counters.
pub unsafe extern "C" fn anyverbs_query_qp_counters(
    qp: *mut ibv_qp,
    counters: *mut anyverbs_counter,
    count: *mut usize,
) -> c_int {
    const CALL: &str = "anyverbs_query_qp_counters";
    code(|| {
        given(qp, CALL, "qp")?;
        // SAFETY: a live queue pair, and room for the answer.
        unsafe { fill(CALL, counters, count, || (extension::of((*qp).context, CALL)?.qp_counters)(qp)) }
    })
}

/// Writes counters with their names into an application's array.
///
/// # Safety
/// `count` must be null or valid, and `counters` valid for as many.
unsafe fn fill(
    call: &str,
    counters: *mut anyverbs_counter,
    count: *mut usize,
    values: impl FnOnce() -> Result<Values, Errno>,
) -> Result<c_int, Errno> {
    given(count, call, "count")?;
    // SAFETY: the caller vouches for both.
    unsafe {
        if *count > 0 {
            given(counters, call, "counters")?;
        }
        let values = values()?;
        for (at, &counter) in COUNTERS.iter().enumerate().take(*count) {
            let name = counter.row().path.as_ptr().cast();
            counters.add(at).write(anyverbs_counter { name, value: values[counter] });
        }
        *count = COUNTERS.len();
    }
    Ok(0)
}
