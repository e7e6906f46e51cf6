//! Queues of events with a file descriptor that polls readable: completion channels and a context's asynchronous events.
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI64, Ordering};

use super::engine;
use super::types::EventType;
use crate::sys::epoll::{self, Epoll};
use crate::sys::errno::Errno;
use crate::sys::eventfd::EventFd;
use crate::sys::lock::Lock;

/// A completion channel. Its fd is an epoll fd over its own doorbell and those of all peers, so that the woken thread
/// itself drives the engine and is woken once.
#[derive(Debug)]
pub struct CompChannel {
    fd: Epoll,
    queue: Queue<usize>,
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
    bell: EventFd,
    events: Lock<VecDeque<T>>,
}

impl CompChannel {
    /// A channel without events. Errors are those of epoll_create and eventfd.
    pub fn new() -> Result<Self, Errno> {
        let queue = Queue::new()?;
        let fd = Epoll::new()?;
        fd.add(queue.bell.as_fd(), epoll::IN, 0)?;
        engine::watch(&fd)?;
        Ok(Self { fd, queue })
    }

    /// What the application polls.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Queues an event of the CQ at address `cookie`.
    pub fn push(&self, cookie: usize) {
        self.queue.push(cookie);
    }

    /// Counts CQs that wait for an event; while there are any, peers ring the doorbell for each message.
    pub fn armed(&self, by: i64) {
        ARMED.fetch_add(by, Ordering::SeqCst);
        if by > 0 {
            engine::expect_doorbells();
        }
    }

    /// The oldest event, waiting for one unless the application set O_NONBLOCK on the fd: then EAGAIN.
    /// `taken` is called with it before anybody can destroy the CQ.
    pub fn next_event(&self, taken: impl Fn(&usize)) -> Result<usize, Errno> {
        loop {
            if let Some(cookie) = self.queue.pop(&taken) {
                return Ok(cookie);
            }
            if engine::progress() {
                continue;
            }
            if engine::is_nonblocking(self.fd()) {
                return Err(Errno::EAGAIN);
            }
            engine::wait_for(self.fd(), || !self.queue.is_empty())?;
        }
    }

    /// Drops queued events that `unwanted` names.
    pub fn forget(&self, unwanted: impl Fn(&usize) -> bool) {
        self.queue.forget(unwanted);
    }
}

/// Armed CQs of the process.
static ARMED: AtomicI64 = AtomicI64::new(0);

/// Whether some CQ waits for an event.
pub fn any_armed() -> bool {
    ARMED.load(Ordering::SeqCst) > 0
}

/// In a forked child nothing is armed.
pub fn forget_armed() {
    ARMED.store(0, Ordering::SeqCst);
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

    /// Queues an event about the object or port `element`.
    pub fn push(&self, kind: EventType, element: usize) {
        self.queue.push(AsyncEvent { kind, element });
    }

    /// The oldest event, waiting for one unless the application set O_NONBLOCK on the fd: then EAGAIN.
    /// `taken` is called with it before anybody can destroy the object that it names.
    pub fn next_event(&self, taken: impl Fn(&AsyncEvent)) -> Result<AsyncEvent, Errno> {
        loop {
            if let Some(event) = self.queue.pop(&taken) {
                return Ok(event);
            }
            if engine::is_nonblocking(self.fd()) {
                return Err(Errno::EAGAIN);
            }
            engine::wait_readable(self.fd.as_fd())?;
        }
    }

    /// Drops queued events about `element`; before that object goes.
    pub fn forget(&self, element: usize) {
        self.queue.forget(|e| e.element == element && e.kind.names_an_object());
    }
}

impl<T> Queue<T> {
    fn new() -> Result<Self, Errno> {
        Ok(Self { bell: EventFd::new()?, events: Lock::new(VecDeque::new()) })
    }

    fn push(&self, event: T) {
        let mut events = self.events.lock();
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

    fn forget(&self, unwanted: impl Fn(&T) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|e| !unwanted(e));
        if before > 0 && events.is_empty() {
            self.bell.drain();
        }
    }
}
