//! Copies and atomics on application memory that survive a fault: memory may be unmapped, protected or truncated
//! by the application at any moment, and a peer must not be able to crash it through that.
//!
//! The instructions that touch such memory lie between two labels. A SIGSEGV or SIGBUS whose program counter lies
//! there makes the routine return an error; every other fault goes to the handler that was installed before ours.
//! A thread that blocks SIGSEGV is killed by the kernel on any fault, guarded or not.
//! `ANYVERBS_SIGSEGV=0` installs no handler and uses `process_vm_writev` on this process instead.
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

/// The memory could not be read or written; part of the copy may have been done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// How the guarded routines are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Nothing is registered yet; a fault is fatal.
    Bare = 0,
    /// Our signal handler is in place.
    Handler = 1,
    /// The kernel copies for us: no handler wanted, another one has replaced ours, or there is no assembly for this CPU.
    Kernel = 2,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Bare as u8);

/// The protection in force.
#[inline]
pub fn mode() -> Mode {
    match MODE.load(Relaxed) {
        1 => Mode::Handler,
        2 => Mode::Kernel,
        _ => Mode::Bare,
    }
}

/// Whether a guarded fault in this thread ends in an error: the kernel kills a process for one in a thread that blocks its signal, or whose
/// handler is not ours any more. Each thread looks the first time, and again every `OFTEN` times.
#[inline(always)]
pub fn outlives_faults() -> bool {
    /// The looks cost three system calls; between two of them the answer is some microseconds old.
    const OFTEN: u32 = 512;
    thread_local! {
        /// Times until the next look; the upper bit: it would outlive a fault.
        static KNOWN: Cell<u32> = const { Cell::new(0) };
    }
    const YES: u32 = 1 << 31;
    #[cold]
    fn look() -> u32 {
        let answer = signal::are_unblocked() && install() == Mode::Handler;
        (OFTEN - 1) | if answer { YES } else { 0 }
    }
    let left = KNOWN.get();
    let known = if left & !YES > 0 { left - 1 } else { look() };
    KNOWN.set(known);
    known & YES != 0
}

/// Puts the handlers in place, once, and looks whether they still are: where the application has replaced one since,
/// it stays replaced and the kernel copies from then on. Called at every registration of memory.
pub fn install() -> Mode {
    /// The process, by its fork generation, in which a thread installs now; a forked child does not wait for its parent's.
    static INSTALLING: AtomicU32 = AtomicU32::new(0);
    let ours = super::fork::generation();
    loop {
        let now = mode();
        if now != Mode::Bare {
            if now == Mode::Handler && !signal::in_place() {
                MODE.store(Mode::Kernel as u8, Release);
            }
            return mode();
        }
        let busy = INSTALLING.load(Acquire);
        if busy == ours || INSTALLING.compare_exchange(busy, ours, AcqRel, Acquire).is_err() {
            std::thread::yield_now();
            continue;
        }
        if mode() == Mode::Bare {
            let handler = asm::PRESENT && !is_unwanted() && signal::install();
            MODE.store(if handler { Mode::Handler } else { Mode::Kernel } as u8, Release);
        }
        INSTALLING.store(0, Release);
    }
}

fn is_unwanted() -> bool {
    super::settings::is_off("ANYVERBS_SIGSEGV")
}

/// Copies `len` bytes; either side may fault. The last bytes are stored last, so that a reader who polls for them finds
/// the rest. Overlapping ranges give unspecified content.
///
/// # Safety
/// Where `dst` is writable, nothing that Rust considers its own may lie there but through raw pointers or a unique borrow
/// held by the caller.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if MODE.load(Relaxed) == Mode::Kernel as u8 {
        return kernel_copy(dst, src, len);
    }
    // SAFETY: the caller vouches for `dst`; a range that is not mapped ends in the error return.
    ok(unsafe { asm::copy(dst, src, len) })
}

/// The same where [`mode`] has just been [`Mode::Handler`].
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub unsafe fn copy_handled(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: as for `copy`.
    ok(unsafe { asm::copy(dst, src, len) })
}

/// 64 bytes that have the CRC-32 of many, where the register before them is zero.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Folded(pub [u8; 64]);

/// Copies as [`copy`] does, and fills `folded` for all that was copied. `None`: nothing is copied, since this CPU cannot, `len` is not a
/// multiple of [`FOLDED_BLOCK`], or the kernel copies for us.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn copy_folding(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    folded: &mut Folded,
) -> Option<Result<(), Fault>> {
    if len == 0 || !len.is_multiple_of(FOLDED_BLOCK) || MODE.load(Relaxed) == Mode::Kernel as u8 {
        return None;
    }
    let way = fold::best()?;
    // SAFETY: as for `copy`; `len` is as the routine wants it.
    Some(unsafe { fold::copy(way, dst, src, len, folded) })
}

/// What [`copy_folding`] copies whole numbers of.
pub const FOLDED_BLOCK: usize = 256;

#[path = "guard_fold.rs"]
mod fold;

/// Adds to the 8-byte aligned 64-bit word at `at`, as one atomic operation; returns the old value.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Fault> {
    reachable_word(at)?;
    let mut old = 0;
    // SAFETY: as for `copy`; `old` is a local.
    ok(unsafe { asm::fetch_add(at, add, &mut old) }).map(|()| old)
}

/// Stores `swap` in the 8-byte aligned 64-bit word at `at` if it holds `expect`, as one atomic operation; returns the old value.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn compare_swap(at: *mut u64, expect: u64, swap: u64) -> Result<u64, Fault> {
    reachable_word(at)?;
    let mut old = 0;
    // SAFETY: as for `copy`; `old` is a local.
    ok(unsafe { asm::compare_swap(at, expect, swap, &mut old) }).map(|()| old)
}

#[inline]
fn ok(failed: usize) -> Result<(), Fault> {
    if failed == 0 { Ok(()) } else { Err(Fault) }
}

/// Refuses a misaligned word, and, where no handler protects, one that the kernel cannot change: it adds 0 to its first half.
#[inline]
fn reachable_word(at: *mut u64) -> Result<(), Fault> {
    if !at.is_aligned() {
        return Err(Fault);
    }
    if MODE.load(Relaxed) != Mode::Kernel as u8 {
        return Ok(());
    }
    const ADD_ZERO: u32 = 1 << 28;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel checks the address; at worst it wakes a waiter, which any futex allows.
    let n = unsafe { libc::syscall(libc::SYS_futex, at, operation, 0, 0usize, at, ADD_ZERO) };
    if n < 0 && super::errno::Errno::last() == super::errno::Errno::EFAULT { Err(Fault) } else { Ok(()) }
}

/// The kernel reads and writes both sides for us and reports what is not there. Where a sandbox forbids the call, the copy is bare.
#[cold]
fn kernel_copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec { iov_base: src.wrapping_add(done).cast_mut().cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: dst.wrapping_add(done).cast(), iov_len: len - done };
        // SAFETY: both vectors are locals; the kernel checks the memory that they describe.
        let n = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        if n > 0 {
            done += n as usize;
        } else if n < 0 && !matches!(super::errno::Errno::last().0, libc::EFAULT | libc::ENOMEM) {
            // SAFETY: nothing can tell us whether the memory is there: as with any memcpy, the application vouches for it.
            return ok(unsafe { asm::copy(dst.wrapping_add(done), src.wrapping_add(done), len - done) });
        } else {
            return Err(Fault);
        }
    }
    Ok(())
}

mod signal {
    use super::*;

    const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
    /// The actions that ours replaced; leaked boxes, written before our handler is in place.
    static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] =
        [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())];

    pub fn install() -> bool {
        SIGNALS.iter().zip(&PREVIOUS).all(|(&sig, slot)| {
            let Some(old) = current(sig) else { return false };
            if is_ours(&old) {
                return true;
            }
            let mut ours = old;
            ours.sa_sigaction = handler as *const () as usize;
            ours.sa_flags =
                libc::SA_SIGINFO | libc::SA_ONSTACK | (old.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
            slot.store(Box::into_raw(Box::new(old)), Release);
            // SAFETY: `ours` is a complete action whose handler lives as long as the library, which is never unloaded.
            unsafe { libc::sigaction(sig, &ours, ptr::null_mut()) == 0 }
        })
    }

    pub fn are_unblocked() -> bool {
        let mut blocked = MaybeUninit::uninit();
        // SAFETY: the mask is filled where the call returns 0, and only read then.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr()) == 0
                && SIGNALS.iter().all(|sig| libc::sigismember(blocked.as_ptr(), *sig) == 0)
        }
    }

    pub fn in_place() -> bool {
        SIGNALS.iter().all(|&sig| current(sig).is_some_and(|now| is_ours(&now)))
    }

    fn is_ours(action: &libc::sigaction) -> bool {
        action.sa_sigaction == handler as *const () as usize
    }

    fn current(sig: libc::c_int) -> Option<libc::sigaction> {
        let mut now = MaybeUninit::uninit();
        // SAFETY: the kernel fills `now` when it returns 0.
        unsafe { (libc::sigaction(sig, ptr::null(), now.as_mut_ptr()) == 0).then(|| now.assume_init()) }
    }

    extern "C" fn handler(sig: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a ucontext_t to an SA_SIGINFO handler, and its siginfo.
        unsafe {
            if (*info).si_code > 0 && asm::redirect(&mut *context.cast()) {
                return;
            }
            let slot = &PREVIOUS[usize::from(sig == libc::SIGBUS)];
            let old = slot.load(Acquire);
            if !old.is_null() { forward(sig, info, context, &*old) } else { default(sig, info) }
        }
    }

    /// Does what would have happened without us.
    unsafe fn forward(
        sig: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
        old: &libc::sigaction,
    ) {
        // SAFETY: `info` is the kernel's; a handler found in `old` has the type that its flags say.
        unsafe {
            match old.sa_sigaction {
                libc::SIG_DFL => default(sig, info),
                // The kernel does not let a synchronous fault be ignored either.
                libc::SIG_IGN if (*info).si_code > 0 => default(sig, info),
                libc::SIG_IGN => {}
                address => {
                    if old.sa_flags & libc::SA_RESETHAND != 0 {
                        libc::signal(sig, libc::SIG_DFL);
                    }
                    if old.sa_flags & libc::SA_SIGINFO != 0 {
                        type Full =
                            unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                        std::mem::transmute::<usize, Full>(address)(sig, info, context);
                    } else {
                        std::mem::transmute::<usize, unsafe extern "C" fn(libc::c_int)>(address)(sig);
                    }
                }
            }
        }
    }

    /// Restores the default action; a fault happens again on return, a signal that was sent is sent again.
    unsafe fn default(sig: libc::c_int, info: *mut libc::siginfo_t) {
        // SAFETY: `signal` and `raise` may be called in a handler; `info` is the kernel's.
        unsafe {
            libc::signal(sig, libc::SIG_DFL);
            if (*info).si_code <= 0 {
                libc::raise(sig);
            }
        }
    }
}

// Every routine keeps the stack pointer as it found it, so that `anyverbs_guard_failed` can stand in for its end.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod asm {
    use std::ptr::addr_of;

    pub const PRESENT: bool = true;

    unsafe extern "C" {
        #[link_name = "anyverbs_guard_copy"]
        pub fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
        #[cfg(target_arch = "x86_64")]
        #[link_name = "anyverbs_guard_copy_folding"]
        pub fn copy_folding(
            dst: *mut u8,
            src: *const u8,
            len: usize,
            folded: *mut super::Folded,
            constants: *const [u64; 4],
        ) -> usize;
        #[cfg(target_arch = "x86_64")]
        #[link_name = "anyverbs_guard_copy_folding_narrow"]
        pub fn copy_folding_narrow(
            dst: *mut u8,
            src: *const u8,
            len: usize,
            folded: *mut super::Folded,
            constants: *const [u64; 4],
        ) -> usize;
        #[link_name = "anyverbs_guard_fetch_add"]
        pub fn fetch_add(at: *mut u64, add: u64, old: *mut u64) -> usize;
        #[link_name = "anyverbs_guard_compare_swap"]
        pub fn compare_swap(at: *mut u64, expect: u64, swap: u64, old: *mut u64) -> usize;
        static anyverbs_guard_begin: u8;
        static anyverbs_guard_end: u8;
        static anyverbs_guard_failed: u8;
    }

    /// Sends an interrupted guarded routine to its error return; false when the fault was elsewhere.
    pub fn redirect(context: &mut libc::ucontext_t) -> bool {
        #[cfg(target_arch = "x86_64")]
        let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let pc = &mut context.uc_mcontext.pc;
        let (begin, end) = (addr_of!(anyverbs_guard_begin), addr_of!(anyverbs_guard_end));
        let inside = (begin as usize..end as usize).contains(&(*pc as usize));
        if inside {
            *pc = addr_of!(anyverbs_guard_failed) as usize as _;
        }
        inside
    }

    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(include_str!("guard_x86_64.s"), options(att_syntax));
    #[cfg(target_arch = "aarch64")]
    std::arch::global_asm!(include_str!("guard_aarch64.s"));
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod asm {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    pub const PRESENT: bool = false;

    pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize {
        // SAFETY: passed on to the caller.
        unsafe { std::ptr::copy(src, dst, len) };
        0
    }

    pub unsafe fn fetch_add(at: *mut u64, add: u64, old: *mut u64) -> usize {
        // SAFETY: passed on to the caller, who has checked the alignment.
        unsafe { *old = AtomicU64::from_ptr(at).fetch_add(add, SeqCst) };
        0
    }

    pub unsafe fn compare_swap(at: *mut u64, expect: u64, swap: u64, old: *mut u64) -> usize {
        // SAFETY: passed on to the caller, who has checked the alignment.
        unsafe {
            *old = AtomicU64::from_ptr(at)
                .compare_exchange(expect, swap, SeqCst, SeqCst)
                .unwrap_or_else(|now| now)
        };
        0
    }

    pub fn redirect(_: &mut libc::ucontext_t) -> bool {
        false
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
