//! Error numbers as values: inside the library a failure is an `Errno`; the edge turns it into the C convention.
use std::{fmt, io};

/// A positive errno value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno { $(#[allow(missing_docs)] pub const $name: Errno = Errno(libc::$name);)* }
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 { $(libc::$name => f.write_str(stringify!($name)),)* n => write!(f, "errno {n}") }
            }
        }
    };
}
errnos!(EINTR EPERM ENOENT EIO EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENOSPC ENOSYS ENODATA EPROTO
    EOPNOTSUPP EADDRINUSE ENETUNREACH EHOSTUNREACH ECONNREFUSED ETIMEDOUT EMSGSIZE EMFILE ENFILE ENOBUFS
    EBADF EFBIG EISDIR ENOTDIR EROFS ENXIO);

impl Errno {
    /// The calling thread's `errno`.
    pub fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Stores this value in the calling thread's `errno`.
    pub fn store(self) {
        // SAFETY: __errno_location always points to this thread's errno.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<io::Error> for Errno {
    fn from(e: io::Error) -> Self {
        Self(e.raw_os_error().unwrap_or(libc::EIO))
    }
}
