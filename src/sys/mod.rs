//! The only libc calls outside `kernel` and `soft::link`.
pub mod annotate;
pub mod append;
pub mod atomic;
pub mod barrier;
pub mod cache;
pub mod clock;
pub mod epoll;
pub mod errno;
pub mod eventfd;
pub mod exit;
pub mod fd;
pub mod folder;
pub mod fork;
pub mod futex;
pub mod guard;
pub mod inode;
pub mod interfaces;
pub mod latch;
pub mod lock;
pub mod log;
pub mod map;
pub mod memfd;
pub mod netlink;
pub mod pidfd;
pub mod process_vm;
pub mod pthread;
pub mod random;
pub mod rtnetlink;
pub mod seqpacket;
pub mod settings;
pub mod signal;
pub mod sysfs;
pub mod thread;
pub mod timerfd;
pub mod uncancelled;

/// The process runs with more rights than its caller: environment variables are then not obeyed.
pub fn is_setuid() -> bool {
    // SAFETY: getauxval, and the id calls, have no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 || libc::getuid() != libc::geteuid() }
}

/// The view library is loaded: this process finds the embedded devices below /sys and /dev.
pub fn has_view() -> bool {
    // SAFETY: the name is a C string.
    unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"anyverbs_view".as_ptr()).is_null() }
}
