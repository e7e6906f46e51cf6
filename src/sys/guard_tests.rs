use super::*;

const PAGE: usize = 4096;

/// Pages of an anonymous mapping, given back when dropped.
struct Pages(*mut u8, usize);

impl Pages {
    fn new(pages: usize) -> Self {
        Self::map(pages, -1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }
    fn map(pages: usize, fd: i32, flags: i32) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, placed by the kernel.
        let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, prot, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast(), pages)
    }
    fn protect(&self, page: usize, prot: i32) {
        // SAFETY: the page is ours and no reference points into it.
        assert_eq!(unsafe { libc::mprotect(self.0.add(page * PAGE).cast(), PAGE, prot) }, 0);
    }
    /// Takes the page away; its place stays ours, lest another test's memory come there.
    fn unmap(&self, page: usize) {
        self.protect(page, libc::PROT_NONE);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is ours; holes are allowed.
        unsafe { libc::munmap(self.0.cast(), self.1 * PAGE) };
    }
}

fn guarded(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    install();
    // SAFETY: the tests copy between mappings and buffers of their own.
    unsafe { copy(dst, src, len) }
}

#[test]
fn every_length_and_alignment_is_copied_exactly() {
    let src: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for len in (0..300).chain([511, 512, 1023, 1024, 1025, 1087, 1088, 1100, 2047, 4096, 4097]) {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (15, 63), (64, 17)] {
            let mut dst = vec![0xaa; len + 200];
            guarded(dst[to..].as_mut_ptr(), src[from..].as_ptr(), len).unwrap();
            assert_eq!(&dst[to..to + len], &src[from..from + len], "length {len}, {from} to {to}");
            assert!(
                dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0xaa),
                "length {len}, {from} to {to}"
            );
        }
    }
}

/// The CRC-32 register after `bytes`, from zero.
fn register(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!0);
    hasher.update(bytes);
    !hasher.finalize()
}

#[test]
fn what_is_folded_on_its_way_has_the_crc_of_all() {
    install();
    let src: Vec<u8> = (0..9000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for way in fold::ways() {
        for len in [256, 512, 768, 1024, 2048, 4096, 8192] {
            for (from, to) in [(0, 0), (1, 0), (3, 5), (15, 63), (64, 12)] {
                let mut dst = vec![0xaa; len + 200];
                let mut folded = Folded([0; 64]);
                let (end, start) = (dst[to..].as_mut_ptr(), src[from..].as_ptr());
                // SAFETY: between buffers of this test, by what this CPU has.
                unsafe { fold::copy(way, end, start, len, &mut folded) }.unwrap();
                assert_eq!(register(&folded.0), register(&src[from..from + len]), "{way:?} {len}");
                assert!(dst[to..to + len] == src[from..from + len]);
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0xaa));
            }
        }
    }
    // SAFETY: nothing is copied.
    assert!(unsafe { copy_folding(ptr::null_mut(), ptr::null(), 100, &mut Folded([0; 64])) }.is_none());
}

#[test]
fn a_fault_in_what_is_folded_is_an_error() {
    install();
    let pages = Pages::new(3);
    let mut buffer = vec![0; 2 * PAGE];
    pages.unmap(1);
    for way in fold::ways() {
        for len in [256, 1024, 4096] {
            let inside = pages.0.wrapping_add(PAGE - 100);
            let mut folded = Folded([0; 64]);
            // SAFETY: a mapping and a buffer of this test, by what this CPU has.
            unsafe {
                assert_eq!(fold::copy(way, buffer.as_mut_ptr(), inside, len, &mut folded), Err(Fault));
                assert_eq!(fold::copy(way, inside, buffer.as_ptr(), len, &mut folded), Err(Fault));
            }
        }
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_at_every_length() {
    let pages = Pages::new(3);
    pages.unmap(1);
    let mut local = vec![1u8; 3 * PAGE];
    for len in [1, 2, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 128, 1000, 1024, PAGE] {
        let hole = pages.0.wrapping_add(PAGE);
        assert_eq!(guarded(hole, local.as_ptr(), len), Err(Fault), "to a hole, {len}");
        assert_eq!(guarded(local.as_mut_ptr(), hole, len), Err(Fault), "from a hole, {len}");
        // The last byte reaches into the hole.
        assert_eq!(guarded(hole.wrapping_sub(len - 1), local.as_ptr(), len), Err(Fault), "across, {len}");
        guarded(hole.wrapping_sub(len), local.as_ptr(), len).unwrap();
        guarded(pages.0.wrapping_add(2 * PAGE), local.as_ptr(), len).unwrap();
    }
    // Neither in user space nor in the kernel's: a general protection fault.
    assert_eq!(guarded(0x8000_0000_0000_0000usize as *mut u8, local.as_ptr(), 64), Err(Fault));
    // Never mapped.
    assert_eq!(guarded(ptr::null_mut(), local.as_ptr(), 8), Err(Fault));
    assert_eq!(guarded(local.as_mut_ptr(), 64 as *mut u8, 64), Err(Fault));
}

#[test]
fn protection_is_an_error() {
    let pages = Pages::new(1);
    let mut local = [1u8; 64];
    pages.protect(0, libc::PROT_READ);
    guarded(local.as_mut_ptr(), pages.0, 64).unwrap();
    assert_eq!(local, [0; 64]);
    assert_eq!(guarded(pages.0, local.as_ptr(), 64), Err(Fault));
    pages.protect(0, libc::PROT_NONE);
    assert_eq!(guarded(local.as_mut_ptr(), pages.0, 64), Err(Fault));
}

#[test]
fn truncated_file_is_an_error() {
    // SAFETY: a new memfd, closed below.
    let fd = unsafe { libc::memfd_create(c"guard".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor is ours.
    assert_eq!(unsafe { libc::ftruncate(fd, 2 * PAGE as i64) }, 0);
    let pages = Pages::map(2, fd, libc::MAP_SHARED);
    let local = [1u8; 2 * PAGE];
    guarded(pages.0, local.as_ptr(), 2 * PAGE).unwrap();
    // SAFETY: the descriptor is ours.
    assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) + libc::close(fd) }, 0);
    assert_eq!(guarded(pages.0, local.as_ptr(), 2 * PAGE), Err(Fault));
    guarded(pages.0, local.as_ptr(), PAGE).unwrap();
}

#[test]
fn atomics_work_and_fault() {
    install();
    let pages = Pages::new(2);
    let word = pages.0.cast::<u64>();
    // SAFETY: the words lie in our mapping or in none.
    unsafe {
        assert_eq!(fetch_add(word, 5), Ok(0));
        assert_eq!(fetch_add(word, u64::MAX), Ok(5));
        assert_eq!(compare_swap(word, 4, 9), Ok(4));
        assert_eq!(compare_swap(word, 4, 1), Ok(9));
        assert_eq!(word.read_volatile(), 9);
        assert_eq!(fetch_add(word.byte_add(4), 1), Err(Fault), "misaligned");
        pages.protect(1, libc::PROT_READ);
        assert_eq!(fetch_add(word.byte_add(PAGE), 1), Err(Fault));
        assert_eq!(compare_swap(word.byte_add(PAGE), 0, 1), Err(Fault));
        pages.unmap(1);
        assert_eq!(compare_swap(word.byte_add(PAGE), 0, 1), Err(Fault));
    }
}

#[test]
fn kernel_copies_report_the_same_errors() {
    let pages = Pages::new(3);
    pages.unmap(2);
    let mut local = vec![7u8; 2 * PAGE];
    kernel_copy(pages.0, local.as_ptr(), 2 * PAGE).unwrap();
    // SAFETY: within our mapping.
    assert_eq!(unsafe { pages.0.add(2 * PAGE - 1).read() }, 7);
    assert_eq!(kernel_copy(pages.0.wrapping_add(PAGE), local.as_ptr(), 2 * PAGE), Err(Fault));
    assert_eq!(kernel_copy(local.as_mut_ptr(), pages.0.wrapping_add(2 * PAGE - 1), 2), Err(Fault));
    pages.protect(0, libc::PROT_READ);
    assert_eq!(kernel_copy(pages.0, local.as_ptr(), 1), Err(Fault));
}

/// Runs `body` in a child with `old` as the action that ours replaces; returns the child's wait status.
fn in_child(old: usize, flags: i32, body: fn()) -> i32 {
    // SAFETY: the child only installs handlers, runs `body` and leaves by _exit or by a signal.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = old;
            action.sa_flags = flags;
            libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
            if !signal::install() || !signal::in_place() {
                libc::_exit(100);
            }
            body();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}

fn foreign_fault() {
    // SAFETY: not safe at all: the fault is what the test is about.
    unsafe { (16 as *mut u32).write_volatile(1) };
}

fn guarded_then_foreign() {
    let local = [0u8; 8];
    // SAFETY: the destination is not mapped.
    if unsafe { copy(16 as *mut u8, local.as_ptr(), 8) } != Err(Fault) {
        // SAFETY: leaves the child.
        unsafe { libc::_exit(101) };
    }
    foreign_fault();
}

extern "C" fn plain(sig: i32) {
    // SAFETY: leaves the child.
    unsafe { libc::_exit(40 + sig) }
}

extern "C" fn full(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: leaves the child; `info` is the kernel's.
    unsafe { libc::_exit(if (*info).si_addr() as usize == 16 && !context.is_null() { 60 } else { 61 }) }
}

#[test]
fn faults_elsewhere_go_to_the_handler_that_was_there() {
    let exited = |status| libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let killed = |status| libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    assert_eq!(
        exited(in_child(plain as *const () as usize, 0, guarded_then_foreign)),
        Some(40 + libc::SIGSEGV)
    );
    assert_eq!(
        exited(in_child(full as *const () as usize, libc::SA_SIGINFO, guarded_then_foreign)),
        Some(60)
    );
    assert_eq!(killed(in_child(libc::SIG_DFL, 0, guarded_then_foreign)), Some(libc::SIGSEGV));
    assert_eq!(killed(in_child(libc::SIG_IGN, 0, guarded_then_foreign)), Some(libc::SIGSEGV));
}

#[test]
fn sent_signals_keep_their_meaning() {
    fn send() {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
    let status = in_child(libc::SIG_DFL, 0, send);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:x}");
    assert_eq!(in_child(libc::SIG_IGN, 0, send), 0);
    assert_eq!(libc::WEXITSTATUS(in_child(plain as *const () as usize, 0, send)), 40 + libc::SIGSEGV);
}

#[test]
fn a_handler_installed_later_is_left_alone() {
    fn replace() {
        // SAFETY: the child's own handlers.
        unsafe {
            let mode = install();
            libc::signal(libc::SIGSEGV, plain as *const () as usize);
            libc::_exit(if mode == Mode::Handler && install() == Mode::Kernel { 7 } else { 8 });
        }
    }
    if std::env::var_os("ANYVERBS_SIGSEGV").is_none() {
        assert_eq!(libc::WEXITSTATUS(in_child(libc::SIG_DFL, 0, replace)), 7);
    }
}

#[test]
fn concurrent_adds_sum_up() {
    install();
    let pages = Pages::new(1);
    let word = pages.0 as usize;
    let threads = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                threads.fetch_add(1, Relaxed);
                for _ in 0..10_000 {
                    // SAFETY: a word of our mapping.
                    unsafe { fetch_add(word as *mut u64, 1) }.unwrap();
                }
            });
        }
    });
    // SAFETY: a word of our mapping; the threads are gone.
    assert_eq!(unsafe { (word as *const u64).read() }, 10_000 * u64::from(threads.load(Relaxed)));
}
