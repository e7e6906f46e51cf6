//! System calls at which no thread is cancelled (pthread_cancel(3)): it may hold our locks. The C library's wrappers are
//! cancellation points, syscall(2) is none. Results and errno are those of the wrappers.
use std::ffi::{c_int, c_long, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

/// read(2).
///
/// # Safety
/// `buffer` has `len` writable bytes.
pub unsafe fn read(fd: RawFd, buffer: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller vouches for the buffer.
    unsafe { libc::syscall(libc::SYS_read, fd as c_long, buffer, len) as isize }
}

/// write(2).
///
/// # Safety
/// `buffer` has `len` readable bytes.
pub unsafe fn write(fd: RawFd, buffer: *const c_void, len: usize) -> isize {
    // SAFETY: the caller vouches for the buffer.
    unsafe { libc::syscall(libc::SYS_write, fd as c_long, buffer, len) as isize }
}

/// sendmsg(2).
///
/// # Safety
/// `message` is as sendmsg(2) wants it.
pub unsafe fn sendmsg(fd: RawFd, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller vouches for the message.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd as c_long, message, flags as c_long) as isize }
}

/// recvmsg(2).
///
/// # Safety
/// `message` is as recvmsg(2) wants it.
pub unsafe fn recvmsg(fd: RawFd, message: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller vouches for the message.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd as c_long, message, flags as c_long) as isize }
}

/// sendmmsg(2).
///
/// # Safety
/// The `count` messages are as sendmmsg(2) wants them.
pub unsafe fn sendmmsg(fd: RawFd, messages: *mut libc::mmsghdr, count: usize, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for the messages.
    unsafe { libc::syscall(libc::SYS_sendmmsg, fd as c_long, messages, count, flags as c_long) as c_int }
}

/// recvmmsg(2) without a timeout.
///
/// # Safety
/// The `count` messages are as recvmmsg(2) wants them.
pub unsafe fn recvmmsg(fd: RawFd, messages: *mut libc::mmsghdr, count: usize, flags: c_int) -> c_int {
    let (flags, no_time) = (flags as c_long, ptr::null_mut::<libc::timespec>());
    // SAFETY: the caller vouches for the messages.
    unsafe { libc::syscall(libc::SYS_recvmmsg, fd as c_long, messages, count, flags, no_time) as c_int }
}

/// connect(2).
///
/// # Safety
/// `address` has `len` readable bytes.
pub unsafe fn connect(fd: RawFd, address: *const libc::sockaddr, len: libc::socklen_t) -> c_int {
    // SAFETY: the caller vouches for the address.
    unsafe { libc::syscall(libc::SYS_connect, fd as c_long, address, len as c_long) as c_int }
}

/// accept4(2), without the peer's address.
pub fn accept(fd: RawFd, flags: c_int) -> RawFd {
    let no_address = ptr::null_mut::<c_void>();
    // SAFETY: no address is asked for.
    unsafe {
        libc::syscall(libc::SYS_accept4, fd as c_long, no_address, no_address, flags as c_long) as RawFd
    }
}

/// epoll_wait(2).
///
/// # Safety
/// `events` has room for `max` events.
pub unsafe fn epoll_wait(fd: RawFd, events: *mut libc::epoll_event, max: c_int, timeout_ms: c_int) -> c_int {
    let (max, timeout) = (max as c_long, timeout_ms as c_long);
    let (no_mask, size) = (ptr::null::<c_void>(), 8usize);
    // SAFETY: the caller vouches for the events; without a mask its size does not matter.
    unsafe {
        libc::syscall(libc::SYS_epoll_pwait, fd as c_long, events, max, timeout, no_mask, size) as c_int
    }
}

/// poll(2) of one descriptor.
pub fn poll(p: &mut libc::pollfd, timeout_ms: c_int) -> c_int {
    let mut time = timespec(Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)));
    let limit = if timeout_ms < 0 { ptr::null_mut() } else { &raw mut time };
    let (no_mask, size) = (ptr::null::<c_void>(), 8usize);
    // SAFETY: one pollfd, and a time that ppoll may change, both of ours.
    unsafe { libc::syscall(libc::SYS_ppoll, ptr::from_mut(p), 1usize, limit, no_mask, size) as c_int }
}

/// Sleeps for about this long.
pub fn nap(time: Duration) {
    let time = timespec(time);
    // SAFETY: only reads the time.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<libc::timespec>()) };
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}
