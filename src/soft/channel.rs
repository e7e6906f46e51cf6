//! Queues of events with a file descriptor that polls readable: completion channels and a context's asynchronous events.
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cq::Cq;
use super::types::EventType;
use super::{engine, node};
use crate::provider::Look;
use crate::sys::epoll::{self, Epoll};
use crate::sys::errno::Errno;
use crate::sys::eventfd::EventFd;
use crate::sys::fork;
use crate::sys::lock::Lock;
use crate::sys::signal;

/// A completion channel. Its fd is not the doorbell itself, whose O_NONBLOCK is not the application's. It is readable while there is an
/// event and at no other time: programs wait for it with poll(2), and then call what may block.
#[derive(Debug)]
pub struct CompChannel {
    fd: Epoll,
    queue: Queue<usize>,
    /// CQs that were armed while they held completions.
    left_over: Lock<Vec<Weak<Cq>>>,
}

/// An asynchronous event as `struct ibv_async_event` carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    #[allow(missing_docs)]
    pub kind: EventType,
    /// The address of the application's object, or the port number.
    pub element: usize,
}

/// A context's asynchronous events. The fd is not the doorbell itself, whose O_NONBLOCK is not the application's.
#[derive(Debug)]
pub struct AsyncQueue {
    fd: Epoll,
    queue: Queue<AsyncEvent>,
}

#[derive(Debug)]
struct Queue<T> {
    /// The process that it belongs to: a forked child shares the descriptors, and must take nothing from them.
    generation: u32,
    bell: EventFd,
    events: Lock<VecDeque<T>>,
}

impl CompChannel {
    /// A channel without events. Errors are those of epoll_create and eventfd.
    pub fn new() -> Result<Self, Errno> {
        // Who waits drives it.
        node::node()?;
        let queue = Queue::new()?;
        let fd = Epoll::new()?;
        fd.add(queue.bell.as_fd(), epoll::IN, 0)?;
        Ok(Self { fd, queue, left_over: Lock::default() })
    }

    /// What the application polls.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Queues an event of the CQ whose address is in `cookie`; none once that is 0.
    pub fn push(&self, cookie: &AtomicUsize) {
        self.queue.push(|| Some(cookie.load(Ordering::Relaxed)).filter(|cookie| *cookie != 0));
    }

    /// The oldest event. None: the thread waits until the fd or `engine::doorbells` is readable and looks again, so that it drives the
    /// engine itself where it is the only one that waits, and a message wakes one thread; EAGAIN if the application set O_NONBLOCK. `taken` is called with it before anybody can destroy the CQ. EIO in a forked child, EINTR as read(2).
    ///
    /// Who would wait finds an event also for completions that an armed CQ held before: what here completes at once takes
    /// its time on a wire, and programs that poll a few, ask and wait (perftest) would wait for ever. Devices that compare
    /// the consumer's index when a CQ is armed behave so too.
    pub fn next_event(&self, look: Look, taken: impl Fn(&usize)) -> Result<Option<usize>, Errno> {
        self.queue.is_ours()?;
        if look != Look::First {
            engine::end_wait();
        }
        loop {
            if let Some(cookie) = self.queue.pop(&taken) {
                return Ok(Some(cookie));
            }
            if look == Look::Interrupted && !signal::all_restart() {
                return Err(Errno::EINTR);
            }
            if engine::sweep() {
                continue;
            }
            if engine::is_nonblocking(self.fd()) {
                return Err(Errno::EAGAIN);
            }
            let left_over = std::mem::take(&mut *self.left_over.lock());
            if left_over.iter().filter_map(Weak::upgrade).filter(|cq| cq.raise_left_over()).count() > 0 {
                continue;
            }
            if engine::begin_wait(|| !self.queue.is_empty())? {
                return Ok(None);
            }
        }
    }

    /// `cq` was armed while it held completions.
    pub fn note_left_over(&self, cq: &Weak<Cq>) {
        let mut noted = self.left_over.lock();
        noted.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, cq));
        noted.push(cq.clone());
    }

    /// Drops queued events of the CQ at `address`, whose cookie is 0 by now.
    pub fn forget(&self, address: usize) {
        self.queue.forget(|| address, |event, gone| *event == gone);
    }
}

impl AsyncQueue {
    /// A queue without events. Errors are those of eventfd.
    pub fn new() -> Result<Self, Errno> {
        let queue = Queue::new()?;
        let fd = Epoll::new()?;
        fd.add(queue.bell.as_fd(), epoll::IN, 0)?;
        Ok(Self { fd, queue })
    }

    /// What the application polls (`ibv_context.async_fd`).
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Queues an event about the object whose address is in `cookie`; none once that is 0.
    pub fn push(&self, kind: EventType, cookie: &AtomicUsize) {
        self.queue.push(|| {
            let element = cookie.load(Ordering::Relaxed);
            (element != 0).then_some(AsyncEvent { kind, element })
        });
    }

    /// The oldest event. None: the thread waits until the fd is readable and looks again; EAGAIN if the application set
    /// O_NONBLOCK. `taken` is called with it before anybody can destroy the object that it names. EIO in a forked child,
    /// EINTR as read(2).
    pub fn next_event(&self, look: Look, taken: impl Fn(&AsyncEvent)) -> Result<Option<AsyncEvent>, Errno> {
        self.queue.is_ours()?;
        if let Some(event) = self.queue.pop(&taken) {
            return Ok(Some(event));
        }
        if look == Look::Interrupted && !signal::all_restart() {
            return Err(Errno::EINTR);
        }
        if engine::is_nonblocking(self.fd()) { Err(Errno::EAGAIN) } else { Ok(None) }
    }

    /// No events of the object from now on, and those queued are dropped; before that object goes.
    pub fn forget(&self, cookie: &AtomicUsize) {
        let names = |event: &AsyncEvent, gone| event.element == gone && event.kind.names_an_object();
        self.queue.forget(|| cookie.swap(0, Ordering::Relaxed), names);
    }
}

impl<T> Queue<T> {
    fn new() -> Result<Self, Errno> {
        Ok(Self { generation: fork::generation(), bell: EventFd::new()?, events: Lock::new(VecDeque::new()) })
    }

    fn is_ours(&self) -> Result<(), Errno> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Queues what `event` gives, which is asked under the lock that `forget` takes.
    fn push(&self, event: impl FnOnce() -> Option<T>) {
        let mut events = self.events.lock();
        let Some(event) = event() else { return };
        events.push_back(event);
        if events.len() == 1 {
            self.bell.signal();
        }
    }

    fn pop(&self, taken: &impl Fn(&T)) -> Option<T> {
        let mut events = self.events.lock();
        let event = events.pop_front();
        if let Some(event) = &event {
            taken(event);
        }
        if event.is_some() && events.is_empty() {
            self.bell.drain();
        }
        event
    }

    fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }

    fn forget(&self, gone: impl FnOnce() -> usize, names: impl Fn(&T, usize) -> bool) {
        let mut events = self.events.lock();
        let gone = gone();
        let before = events.len();
        events.retain(|e| !names(e, gone));
        if before > 0 && events.is_empty() {
            self.bell.drain();
        }
    }
}
