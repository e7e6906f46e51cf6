//! Copies between this process and another one's memory (process_vm_writev, process_vm_readv; Linux 3.2).
use super::errno::Errno;

/// A piece of memory of either process.
pub type Iovec = libc::iovec;

/// How a copy ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// Every byte was copied.
    All,
    /// Some page of either side is not there, or the copy was too large for one call; the first part may have been copied.
    Fault,
    /// The kernel, a namespace, a seccomp filter or an LSM does not allow it, or the process is gone: use another way.
    Refused(Errno),
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From here into the other process.
    Write,
    /// From the other process to here.
    Read,
}

/// Bytes at the end of a copy to another process that are copied after all others: who waits for the last word finds the rest. The
/// kernel's string copies show their bytes in any order, but one after the other.
const LAST: usize = 8;

/// Copies `len` bytes between the `local` pieces and `[remote, remote + len)` of process `pid`. To there the last bytes go last.
///
/// # Safety
/// For [`Way::Read`] the local pieces must be memory that may be written; the kernel checks that it is mapped.
#[inline(always)]
pub unsafe fn copy(way: Way, pid: i32, local: &[Iovec], remote: u64, len: usize) -> Copied {
    let remote = Iovec { iov_base: remote as *mut _, iov_len: len };
    let is_ordered = way == Way::Read || len <= LAST;
    // SAFETY: the kernel checks every address of both sides; writing the local ones is the caller's promise.
    let result = unsafe {
        match local {
            _ if is_ordered => call(way, pid, local, &[remote]),
            // The cheaper of two ways: pieces of the other side are looked up each on its own.
            [one] => call(way, pid, &split(*one), &[remote]),
            _ => call(way, pid, local, &split(remote)),
        }
    };
    match result {
        Ok(n) if n == len => Copied::All,
        Ok(_) | Err(Errno::EFAULT) => Copied::Fault,
        Err(e) => Copied::Refused(e),
    }
}

/// All but the last bytes, and these.
#[inline(always)]
fn split(whole: Iovec) -> [Iovec; 2] {
    let first = whole.iov_len.saturating_sub(LAST);
    let at = whole.iov_base.cast::<u8>().wrapping_add(first).cast();
    [Iovec { iov_len: first, ..whole }, Iovec { iov_base: at, iov_len: whole.iov_len - first }]
}

/// The system call, in place: after it each return from a function costs some tens of nanoseconds, since the kernel's mitigations
/// empty what the processor knows of returns.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn call(way: Way, pid: i32, local: &[Iovec], remote: &[Iovec]) -> Result<usize, Errno> {
    let number = match way {
        Way::Write => libc::SYS_process_vm_writev,
        Way::Read => libc::SYS_process_vm_readv,
    };
    let result: isize;
    // SAFETY: the kernel's convention: six arguments, the result in rax, rcx and r11 lost. It reads the two lists, which live
    // meanwhile, and of what they name only what the caller vouches for is written.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") pid as isize,
            in("rsi") local.as_ptr(),
            in("rdx") local.len(),
            in("r10") remote.as_ptr(),
            in("r8") remote.len(),
            in("r9") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result >= 0 { Ok(result as usize) } else { Err(Errno(-result as i32)) }
}

/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn call(way: Way, pid: i32, local: &[Iovec], remote: &[Iovec]) -> Result<usize, Errno> {
    let (local, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    let (remote, ranges) = (remote.as_ptr(), remote.len() as libc::c_ulong);
    // SAFETY: the kernel checks every address of both sides; writing the local ones is the caller's promise.
    let n = unsafe {
        match way {
            Way::Write => libc::process_vm_writev(pid, local, count, remote, ranges, 0),
            Way::Read => libc::process_vm_readv(pid, local, count, remote, ranges, 0),
        }
    };
    usize::try_from(n).map_err(|_| Errno::last())
}

/// Whether the kernel lets us copy to and from `pid`: permissions come before addresses, so a null address tells.
pub fn allowed(way: Way, pid: i32) -> bool {
    let mut byte = 0u8;
    let local = Iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the only local byte is ours.
    pid > 0 && unsafe { copy(way, pid, &[local], 0, 1) } == Copied::Fault
}

/// Whether others may look into this process as far as its user goes (PR_GET_DUMPABLE).
pub fn is_dumpable() -> bool {
    // SAFETY: this prctl only asks.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 }
}

/// Where Yama lets only descendants attach (ptrace_scope 1), allows it to every process of this user (PR_SET_PTRACER_ANY).
pub fn allow_same_user() {
    let scope = std::fs::read("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|s| s.first() == Some(&b'1')) {
        // SAFETY: this prctl takes integers; where Yama is absent it fails.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: &mut [u8]) -> Iovec {
        Iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn last_word_is_a_piece_of_its_own() {
        let mut bytes = [0u8; 30];
        let whole = piece(&mut bytes);
        let [first, last] = split(whole);
        assert_eq!((first.iov_base, first.iov_len, last.iov_len), (whole.iov_base, 22, LAST));
        assert_eq!(last.iov_base as usize, whole.iov_base as usize + 22);
    }

    #[test]
    fn copies_both_ways_and_tells_a_hole_from_a_refusal() {
        // SAFETY: getpid only asks.
        let me = unsafe { libc::getpid() };
        if !allowed(Way::Write, me) || !allowed(Way::Read, me) {
            eprintln!("skipped: process_vm is not allowed here");
            return;
        }
        let (mut a, mut b, mut target) = ([1u8; 3], [2u8; 2], [0u8; 8]);
        let at = target.as_mut_ptr() as u64;
        // SAFETY: all pieces are local arrays.
        unsafe {
            assert_eq!(copy(Way::Write, me, &[piece(&mut a), piece(&mut b)], at + 1, 5), Copied::All);
            assert_eq!(target, [0, 1, 1, 1, 2, 2, 0, 0]);
            assert_eq!(copy(Way::Read, me, &[piece(&mut b)], at, 2), Copied::All);
            let (mut long, mut place) = ([0u8; 30], [0u8; 30]);
            long.iter_mut().zip(1..).for_each(|(byte, n)| *byte = n);
            let there = place.as_mut_ptr() as u64;
            assert_eq!(copy(Way::Write, me, &[piece(&mut long)], there, 30), Copied::All);
            assert_eq!(place, long);
            let (front, back) = long.split_at_mut(27);
            back.copy_from_slice(&[7, 8, 9]);
            assert_eq!(copy(Way::Write, me, &[piece(front), piece(back)], there, 30), Copied::All);
            assert_eq!(place, long);
            assert_eq!(b, [0, 1]);
            assert_eq!(copy(Way::Write, me, &[piece(&mut a)], 8, 3), Copied::Fault);
            assert!(matches!(copy(Way::Write, -1, &[piece(&mut a)], at, 3), Copied::Refused(_)));
        }
    }
}
