use super::*;
use std::fs::File;
use std::os::fd::AsRawFd;

fn handle(file: &impl AsRawFd) -> OwnedFd {
    Inode::of(file).unwrap().handle().unwrap()
}

fn asked() -> Views {
    let views = Views::default();
    assert!(views.find(5, || true).is_none());
    views
}

#[test]
fn a_file_is_asked_for_once_and_mapped_when_it_comes() {
    let views = Views::default();
    let asks = std::cell::Cell::new(0);
    let ask = |does| {
        asks.set(asks.get() + 1);
        does
    };
    assert!(views.find(5, || ask(false)).is_none() && views.find(5, || ask(true)).is_none());
    assert!(views.find(5, || ask(true)).is_none() && asks.get() == 2);
    let file = memfd::sealed(c"anyverbs-test", 8192).unwrap();
    assert!(!views.answer(6, Some(handle(&file))), "nobody has asked for it");
    assert!(views.answer(5, Some(handle(&file))) && !views.answer(5, Some(handle(&file))));
    let view = views.find(5, || unreachable!()).unwrap();
    let owner = Mapping::shared(file.as_fd(), 8192, true).unwrap();
    let at = view.reach(4096, 4096).unwrap();
    // SAFETY: within the mappings.
    unsafe {
        at.write_volatile(7);
        assert_eq!(owner.at(4096).read_volatile(), 7);
    }
    assert!(view.reach(4097, 4096).is_none() && view.reach(u64::MAX, 1).is_none());
}

#[test]
fn a_mapping_ends_when_the_file_is_not_in_use() {
    let views = asked();
    let file = memfd::sealed(c"anyverbs-test", 4096).unwrap();
    assert!(views.answer(5, Some(handle(&file))));
    assert!(!views.sweep(|number| number == 5) && views.find(5, || unreachable!()).is_some());
    assert!(views.sweep(|_| false) && views.find(5, || false).is_none());
}

#[test]
fn what_is_no_file_in_memory_is_never_mapped() {
    let null = File::open("/dev/null").unwrap();
    let empty = memfd::create(c"anyverbs-test", 0).unwrap();
    let disk = File::open(std::env::current_exe().unwrap()).unwrap();
    for given in [Some(handle(&null)), Some(handle(&empty)), Some(handle(&disk)), None] {
        let views = asked();
        assert!(views.answer(5, given) && views.find(5, || unreachable!()).is_none());
    }
}

#[test]
fn a_file_that_shrinks_gives_a_fault_and_no_signal() {
    let views = asked();
    let file = memfd::create(c"anyverbs-test", 8192).unwrap();
    assert!(views.answer(5, Some(handle(&file))));
    let view = views.find(5, || false).unwrap();
    assert!(!view.is_sealed);
    let at = view.reach(4096, 8).unwrap();
    // SAFETY: only this test's file is concerned.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) }, 0);
    // SAFETY: within the mapping, of which the file has lost this part.
    assert_eq!(unsafe { guard::copy(at, b"12345678".as_ptr(), 8) }, Err(guard::Fault));
}

#[test]
fn a_thread_that_a_fault_would_end_touches_only_files_that_cannot_shrink() {
    let views = asked();
    assert!(views.answer(5, Some(handle(&memfd::create(c"anyverbs-test", 4096).unwrap()))));
    let view = views.find(5, || false).unwrap();
    assert!(view.reach(0, 1).is_some());
    let blocked = std::thread::scope(|scope| {
        let reach = || {
            // SAFETY: only this thread's mask is concerned.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
            }
            view.reach(0, 1).is_some()
        };
        scope.spawn(reach).join().unwrap()
    });
    assert!(!blocked);
}
