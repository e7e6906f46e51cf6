//! The mutex and condition that C objects carry in their public structs, and the event counters they guard.
//!
//! `ibv_cq`, `ibv_qp`, `ibv_srq` and `ibv_wq` count the events that the application has acknowledged; destroying one
//! waits until as many are acknowledged as were handed out (ibv_get_cq_event(3), ibv_get_async_event(3)).
use libc::{pthread_cond_t, pthread_mutex_t};

/// Makes the mutex and condition of a new object usable.
///
/// # Safety
/// Both must be valid for writes, and nobody may use them yet.
pub unsafe fn init(mutex: *mut pthread_mutex_t, cond: *mut pthread_cond_t) {
    // SAFETY: the caller vouches for both; default attributes need no memory of their own.
    unsafe {
        libc::pthread_mutex_init(mutex, std::ptr::null());
        libc::pthread_cond_init(cond, std::ptr::null());
    }
}

/// Runs `f` while holding `mutex`.
///
/// # Safety
/// The mutex must be initialised and stay so during the call; `f` must not take it again.
pub unsafe fn with<R>(mutex: *mut pthread_mutex_t, f: impl FnOnce() -> R) -> R {
    struct Unlock(*mut pthread_mutex_t);
    impl Drop for Unlock {
        fn drop(&mut self) {
            // SAFETY: this thread locked it below and the caller keeps it alive.
            unsafe { libc::pthread_mutex_unlock(self.0) };
        }
    }
    // SAFETY: the caller vouches for the mutex.
    unsafe { libc::pthread_mutex_lock(mutex) };
    let _unlock = Unlock(mutex);
    f()
}

/// Adds `n` acknowledged events to `counter` and wakes whoever waits for them.
///
/// # Safety
/// Mutex and condition must be initialised, `counter` valid and guarded by that mutex, all alive during the call.
pub unsafe fn acknowledge(mutex: *mut pthread_mutex_t, cond: *mut pthread_cond_t, counter: *mut u32, n: u32) {
    // SAFETY: the caller vouches for all three; the counter is only touched under the mutex. The signal is given
    // under the mutex as well, so that a waiter cannot free the object before it.
    unsafe {
        with(mutex, || {
            *counter = (*counter).wrapping_add(n);
            libc::pthread_cond_broadcast(cond);
        });
    }
}

/// Waits until each counter has reached the number of events that were handed out. More acknowledgements than events
/// count as enough.
///
/// # Safety
/// Mutex and condition must be initialised, the counters valid and guarded by that mutex, all alive during the call.
pub unsafe fn wait_acknowledged(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    counters: &[(*const u32, u32)],
) {
    // SAFETY: the caller vouches for all; the counters are read under the mutex only.
    unsafe {
        with(mutex, || {
            while counters.iter().any(|&(done, given)| ((*done).wrapping_sub(given) as i32) < 0) {
                libc::pthread_cond_wait(cond, mutex);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Object {
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        acked: u32,
    }

    fn object() -> *mut Object {
        let object = Box::into_raw(Box::new(Object {
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            acked: 0,
        }));
        // SAFETY: fresh and private.
        unsafe { init(&raw mut (*object).mutex, &raw mut (*object).cond) };
        object
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement_and_over_acknowledging_is_harmless() {
        let object = object();
        let address = object as usize;
        let waiter = std::thread::spawn(move || {
            let object = address as *mut Object;
            // SAFETY: the object lives until the test's end.
            unsafe {
                wait_acknowledged(
                    &raw mut (*object).mutex,
                    &raw mut (*object).cond,
                    &[(&raw const (*object).acked, 3)],
                );
                (*object).acked
            }
        });
        for n in [1, 1, 5] {
            // SAFETY: as above.
            unsafe {
                acknowledge(&raw mut (*object).mutex, &raw mut (*object).cond, &raw mut (*object).acked, n);
            }
        }
        assert_eq!(waiter.join().unwrap(), 7);
        // SAFETY: nobody uses it any more.
        drop(unsafe { Box::from_raw(object) });
    }
}
