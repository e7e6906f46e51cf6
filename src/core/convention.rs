//! How C learns of a failure: NULL with errno, a positive errno value, or -1 with errno (facts/abi.md 9.1).
//!
//! Each function runs the body of an exported function and is its panic fence: where the build unwinds, a panic becomes
//! EIO; release builds abort.
use crate::sys::errno::Errno;
use crate::sys::log;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// A pointer; NULL with errno on failure. A NULL that comes with `Ok` has set errno already.
pub fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    fenced(body).unwrap_or_else(|e| {
        e.store();
        ptr::null_mut()
    })
}

/// 0 or a positive errno value, which is stored in errno as well.
pub fn code(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match fenced(body) {
        Ok(rc) => {
            if rc > 0 {
                Errno(rc).store();
            }
            rc
        }
        Err(e) => {
            e.store();
            e.0
        }
    }
}

/// A result, or -1 with errno.
pub fn minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    fenced(body).unwrap_or_else(|e| {
        e.store();
        -1
    })
}

/// A count, or a negative errno value, which is stored in errno as well.
pub fn negative(body: impl FnOnce() -> Result<isize, Errno>) -> isize {
    fenced(body).unwrap_or_else(|e| {
        e.store();
        -(e.0 as isize)
    })
}

/// A function without a result.
pub fn nothing(body: impl FnOnce()) {
    let _ = fenced(|| {
        body();
        Ok(())
    });
}

/// Checks that an argument is not NULL.
///
/// # Errors
/// EINVAL, explained.
#[inline]
pub fn given<T>(pointer: *mut T, call: &str, argument: &str) -> Result<*mut T, Errno> {
    if pointer.is_null() {
        log::explain(format_args!("{call}: {argument} is NULL"));
        return Err(Errno::EINVAL);
    }
    Ok(pointer)
}

/// Explains a refusal and gives its errno: `refuse!(EINVAL, "ibv_x mr={mr:p}: expected ...")`.
macro_rules! refuse {
    ($errno:ident, $($text:tt)*) => {{
        $crate::sys::log::explain(format_args!($($text)*));
        $crate::sys::errno::Errno::$errno
    }};
}
pub(crate) use refuse;

fn fenced<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_reports_the_errno_its_own_way() {
        assert!(pointer::<u8>(|| Err(Errno::ENOMEM)).is_null());
        assert_eq!(Errno::last(), Errno::ENOMEM);
        assert_eq!(code(|| Err(Errno::EBUSY)), libc::EBUSY);
        assert_eq!(Errno::last(), Errno::EBUSY);
        assert_eq!(code(|| Ok(libc::EINVAL)), libc::EINVAL);
        assert_eq!(Errno::last(), Errno::EINVAL);
        assert_eq!(minus_one(|| Err(Errno::EAGAIN)), -1);
        assert_eq!(Errno::last(), Errno::EAGAIN);
        assert_eq!(negative(|| Err(Errno::EINVAL)), -(libc::EINVAL as isize));
    }

    #[test]
    fn success_leaves_errno_alone() {
        Errno::ENODATA.store();
        assert_eq!((code(|| Ok(0)), minus_one(|| Ok(3)), negative(|| Ok(5))), (0, 3, 5));
        assert_eq!(Errno::last(), Errno::ENODATA);
    }

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(code(|| panic!("a bug, shown by a test")), libc::EIO);
    }
}
