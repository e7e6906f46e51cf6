//! Signals: none for our own thread, and whether an interrupted wait is to go on.
use std::mem::MaybeUninit;

/// A set of signals.
pub type Set = libc::sigset_t;

/// Blocks every signal but faults in this thread and gives the mask before, for a thread that is made meanwhile: the
/// application's handlers must not run on ours, but a guarded copy must see its fault.
pub fn block_all() -> Set {
    let mut all = MaybeUninit::<Set>::uninit();
    let mut before = MaybeUninit::<Set>::uninit();
    // SAFETY: both sets are ours; sigfillset and pthread_sigmask fill them.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Restores a mask.
pub fn restore(mask: &Set) {
    // SAFETY: the mask came from `block_all`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Every handler that the application has installed asks for interrupted calls to go on (SA_RESTART), as read(2) would;
/// poll(2) does not do that by itself.
pub fn all_restart() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks; `action` is ours and was zeroed.
        unsafe {
            if libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) != 0 {
                return true;
            }
            let action = action.assume_init();
            matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
                || action.sa_flags & libc::SA_RESTART != 0
        }
    })
}
