//! The C functions that take a path. Each looks whether the path is the view's, and calls libc's function of the same name with the path
//! as it came or translated. Variadic ones take their optional argument as a plain one: in the calling conventions of Linux on x86-64
//! and AArch64 it arrives in the same register.
use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{AT_FDCWD, mode_t, size_t, ssize_t};

use crate::tree::{self, Seen};

/// libc's function of a name, found once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    fn get(&self) -> Option<*mut c_void> {
        let mut function = self.found.load(Ordering::Relaxed);
        if function.is_null() {
            // SAFETY: the name is a C string.
            function = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(function, Ordering::Relaxed);
        }
        if function.is_null() {
            set_errno(libc::ENOSYS);
            return None;
        }
        Some(function)
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

/// `name(arguments) -> result, path at directory, failed`: calls libc's `name`, with `path` translated.
macro_rules! by_path {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $path:ident at $dir:expr, $failed:expr;)*) => {$(
        /// libc's function of this name.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            });
            let Some(next) = NEXT.get() else { return $failed };
            // SAFETY: the caller's path is a C string or null; libc's function has this very signature.
            unsafe {
                let seen = tree::look($dir, $path);
                let $path = seen.as_ref().map_or($path, |seen| seen.real.as_ptr());
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(next)($($arg),*)
            }
        }
    )*};
}

by_path! {
    stat(path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    stat64(path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    lstat(path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    lstat64(path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    fstatat(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int, path at dir, -1;
    fstatat64(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int, path at dir, -1;
    __xstat(version: c_int, path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    __xstat64(version: c_int, path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    __lxstat(version: c_int, path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    __lxstat64(version: c_int, path: *const c_char, buf: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    __fxstatat(version: c_int, dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int, path at dir, -1;
    __fxstatat64(version: c_int, dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int, path at dir, -1;
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut c_void) -> c_int, path at dir, -1;

    access(path: *const c_char, mode: c_int) -> c_int, path at AT_FDCWD, -1;
    eaccess(path: *const c_char, mode: c_int) -> c_int, path at AT_FDCWD, -1;
    euidaccess(path: *const c_char, mode: c_int) -> c_int, path at AT_FDCWD, -1;
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, path at dir, -1;

    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, path at AT_FDCWD, -1;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, path at AT_FDCWD, -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, path at dir, -1;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, path at dir, -1;
    __open_2(path: *const c_char, flags: c_int) -> c_int, path at AT_FDCWD, -1;
    __open64_2(path: *const c_char, flags: c_int) -> c_int, path at AT_FDCWD, -1;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, path at dir, -1;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, path at dir, -1;
    fopen(path: *const c_char, mode: *const c_char) -> *mut c_void, path at AT_FDCWD, ptr::null_mut();
    fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void, path at AT_FDCWD, ptr::null_mut();
    freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, path at AT_FDCWD, ptr::null_mut();
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, path at AT_FDCWD, ptr::null_mut();

    opendir(path: *const c_char) -> *mut c_void, path at AT_FDCWD, ptr::null_mut();
    scandir(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    scandir64(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, path at AT_FDCWD, -1;
    scandirat(dir: c_int, path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, path at dir, -1;
    scandirat64(dir: c_int, path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, path at dir, -1;

    readlink(path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t, path at AT_FDCWD, -1;
    readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t, path at dir, -1;
    __readlink_chk(path: *const c_char, buf: *mut c_char, size: size_t, room: size_t) -> ssize_t, path at AT_FDCWD, -1;
    __readlinkat_chk(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t, room: size_t) -> ssize_t, path at dir, -1;

    getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, path at AT_FDCWD, -1;
    lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t, path at AT_FDCWD, -1;
    listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t, path at AT_FDCWD, -1;
    llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t, path at AT_FDCWD, -1;
}

/// The path as the program sees it, in `buf` or in memory that it frees.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, buf: *mut c_char) -> *mut c_char {
    static NEXT: Next = Next::new(c"realpath");
    let Some(next) = NEXT.get() else { return ptr::null_mut() };
    // SAFETY: the caller's arguments are libc's.
    unsafe {
        let seen = tree::look(AT_FDCWD, path);
        let real = seen.as_ref().map_or(path, |seen| seen.real.as_ptr());
        let next = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char,
        >(next);
        shown(seen, next(real, buf), buf.is_null())
    }
}

/// The same with the size of `buf`, as fortified programs call it.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, buf: *mut c_char, room: size_t) -> *mut c_char {
    static NEXT: Next = Next::new(c"__realpath_chk");
    let Some(next) = NEXT.get() else { return ptr::null_mut() };
    // SAFETY: the caller's arguments are libc's.
    unsafe {
        let seen = tree::look(AT_FDCWD, path);
        let real = seen.as_ref().map_or(path, |seen| seen.real.as_ptr());
        let next = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, *mut c_char, size_t) -> *mut c_char,
        >(next);
        shown(seen, next(real, buf, room), buf.is_null())
    }
}

/// `realpath` into memory that the program frees.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's path is a C string.
    unsafe { realpath(path, ptr::null_mut()) }
}

/// Ends the process without its exit handlers, yet not without removing the view.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    tree::remove();
    // SAFETY: the call does not return.
    unsafe {
        libc::syscall(libc::SYS_exit_group, status);
        std::hint::unreachable_unchecked()
    }
}

/// The same by its other name.
///
/// # Safety
/// As for libc's.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as for `_exit`.
    unsafe { _exit(status) }
}

/// Turns a path that libc resolved in the tree into what the program would see of it.
///
/// # Safety
/// `resolved` must be null, or a C string: `from_malloc`, or in the caller's PATH_MAX bytes.
unsafe fn shown(seen: Option<Seen>, resolved: *mut c_char, from_malloc: bool) -> *mut c_char {
    let Some(seen) = seen else { return resolved };
    if resolved.is_null() {
        return resolved;
    }
    // SAFETY: the caller vouches for the string.
    let bytes = unsafe { CStr::from_ptr(resolved) }.to_bytes();
    let mut path = match Path::new(OsStr::from_bytes(bytes)).strip_prefix(&seen.root) {
        Ok(inside) => [b"/", inside.as_os_str().as_bytes()].concat(),
        // A node, which is /dev/null to libc.
        Err(_) if bytes == b"/dev/null" => seen.shown,
        Err(_) => return resolved,
    };
    path.push(0);
    // SAFETY: what malloc gave is replaced, since the path may be longer; in the caller's buffer a node's path fits, and any other is
    // shorter than what stood there.
    unsafe {
        if from_malloc {
            libc::free(resolved.cast());
            return libc::strdup(path.as_ptr().cast());
        }
        ptr::copy_nonoverlapping(path.as_ptr().cast(), resolved, path.len());
    }
    resolved
}
