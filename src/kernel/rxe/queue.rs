//! A queue that we share with the kernel (`struct rxe_queue_buf`): a ring of entries of one size, with the producer's and
//! the consumer's index in cache lines of their own. Indices are stored masked; one entry always stays free.
use crate::sys::errno::Errno;
use crate::sys::map::DeviceMapping;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the kernel lets a queue be mapped (`struct mminfo`).
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct MmapInfo {
    pub offset: u64,
    pub size: u32,
    pub pad: u32,
}

const LOG2_ELEM_SIZE: usize = 0;
const INDEX_MASK: usize = 4;
const PRODUCER: usize = 128;
const CONSUMER: usize = 256;
const DATA: usize = 384;

/// A mapped queue. The side that we are not may change its index at any time.
#[derive(Debug)]
pub struct Queue {
    map: DeviceMapping,
    mask: u32,
    log2_elem: u32,
}

impl Queue {
    /// Maps a queue through the context's descriptor.
    ///
    /// # Errors
    /// mmap(2)'s; EPROTO where the header does not fit the size.
    pub fn map(cmd_fd: RawFd, info: MmapInfo) -> Result<Self, Errno> {
        let map = DeviceMapping::new(cmd_fd, info.offset, info.size as usize)?;
        let mut queue = Self { map, mask: 0, log2_elem: 0 };
        if (info.size as usize) < DATA {
            return Err(Errno::EPROTO);
        }
        let (log2_elem, mask) = (
            queue.word(LOG2_ELEM_SIZE).load(Ordering::Relaxed),
            queue.word(INDEX_MASK).load(Ordering::Relaxed),
        );
        let entries = u64::from(mask) + 1;
        let fits = log2_elem < 32
            && entries.is_power_of_two()
            && entries << log2_elem <= u64::from(info.size) - DATA as u64;
        if !fits {
            return Err(Errno::EPROTO);
        }
        (queue.mask, queue.log2_elem) = (mask, log2_elem);
        Ok(queue)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the header lies within the mapping, which is aligned to pages; both sides use the words as atomics.
        unsafe { &*self.map.base().add(offset).cast::<AtomicU32>() }
    }

    /// Bytes of an entry.
    #[inline]
    pub fn entry_size(&self) -> usize {
        1 << self.log2_elem
    }

    /// The entry at an index.
    #[inline]
    pub fn entry(&self, index: u32) -> *mut u8 {
        let at = ((index & self.mask) as usize) << self.log2_elem;
        self.map.base().wrapping_add(DATA + at)
    }

    /// The index behind this one.
    #[inline]
    pub fn after(&self, index: u32) -> u32 {
        index.wrapping_add(1) & self.mask
    }

    /// Our own index where we produce.
    #[inline]
    pub fn producer(&self) -> u32 {
        self.word(PRODUCER).load(Ordering::Relaxed) & self.mask
    }

    /// Whether an entry is free where we produce at `producer`.
    #[inline]
    pub fn has_room(&self, producer: u32) -> bool {
        self.after(producer) != self.word(CONSUMER).load(Ordering::Acquire) & self.mask
    }

    /// Hands all entries before `producer` to the kernel.
    #[inline]
    pub fn publish(&self, producer: u32) {
        self.word(PRODUCER).store(producer & self.mask, Ordering::Release);
    }

    /// Our own index where we consume.
    #[inline]
    pub fn consumer(&self) -> u32 {
        self.word(CONSUMER).load(Ordering::Relaxed) & self.mask
    }

    /// Whether the kernel has put anything where we consume at `consumer`.
    #[inline]
    pub fn has_entry(&self, consumer: u32) -> bool {
        consumer != self.word(PRODUCER).load(Ordering::Acquire) & self.mask
    }

    /// Takes out of what the kernel has produced, where we consume, the entries that `goes` names; the others keep their order.
    pub fn take_out(&self, goes: impl Fn(*const u8) -> bool) {
        let consumer = self.consumer();
        let mut from = self.word(PRODUCER).load(Ordering::Acquire) & self.mask;
        let mut to = from;
        while from != consumer {
            from = from.wrapping_sub(1) & self.mask;
            let entry = self.entry(from);
            if !goes(entry) {
                to = to.wrapping_sub(1) & self.mask;
                // SAFETY: both lie in the mapping; entries from `consumer` to the producer are ours until they are released.
                unsafe { std::ptr::copy(entry, self.entry(to), self.entry_size()) };
            }
        }
        self.release(to);
    }

    /// Gives all entries before `consumer` back to the kernel.
    #[inline]
    pub fn release(&self, consumer: u32) {
        self.word(CONSUMER).store(consumer & self.mask, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::map::Mapping;
    use crate::sys::memfd;
    use std::os::fd::{AsFd, AsRawFd};

    fn queue(log2_elem: u32, mask: u32, size: u32) -> Result<Queue, Errno> {
        let file = memfd::create(c"anyverbs-test", 4096)?;
        let whole = Mapping::shared(file.as_fd(), 4096, true)?;
        for (at, value) in [(LOG2_ELEM_SIZE, log2_elem), (INDEX_MASK, mask)] {
            // SAFETY: within the page.
            unsafe { whole.base().add(at).cast::<u32>().write(value) };
        }
        Queue::map(file.as_raw_fd(), MmapInfo { offset: 0, size, pad: 0 })
    }

    #[test]
    fn one_entry_stays_free_and_indices_wrap() {
        let queue = queue(6, 3, 4096).unwrap();
        let mut at = queue.producer();
        for _ in 0..3 {
            assert!(queue.has_room(at));
            at = queue.after(at);
        }
        assert!(!queue.has_room(at));
        queue.publish(at);
        assert_eq!((queue.producer(), queue.has_entry(queue.consumer())), (3, true));
        queue.release(3);
        assert!(queue.has_room(at) && !queue.has_entry(queue.consumer()));
        assert_eq!(queue.after(3), 0);
        assert_eq!(queue.entry(1).addr() - queue.entry(0).addr(), 64);
        assert_eq!(queue.entry(4), queue.entry(0));
    }

    #[test]
    fn a_forked_child_has_it_too() {
        let queue = queue(6, 3, 4096).unwrap();
        // SAFETY: the child makes no call but those below and _exit.
        match unsafe { libc::fork() } {
            0 => {
                queue.publish(2);
                drop(queue);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(7) }
            }
            child => {
                let mut status = 0;
                // SAFETY: a child of ours and room for its status.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:x}");
                assert_eq!(queue.producer(), 2);
            }
        }
    }

    #[test]
    fn entries_are_taken_out_and_the_others_keep_their_order() {
        let queue = queue(6, 7, 4096).unwrap();
        // Around the end of the ring.
        queue.publish(6);
        queue.release(6);
        let mut at = 6;
        for value in [1u8, 9, 2, 9, 9, 3] {
            // SAFETY: an entry of the queue that nobody else writes.
            unsafe { queue.entry(at).write(value) };
            at = queue.after(at);
        }
        queue.publish(at);
        // SAFETY: entries are readable.
        queue.take_out(|entry| unsafe { entry.read() } == 9);
        let mut left = Vec::new();
        let mut consumer = queue.consumer();
        while queue.has_entry(consumer) {
            // SAFETY: as above.
            left.push(unsafe { queue.entry(consumer).read() });
            consumer = queue.after(consumer);
        }
        assert_eq!(left, [1, 2, 3]);
    }

    #[test]
    fn a_header_that_does_not_fit_is_refused() {
        for (log2_elem, mask, size) in [(6, 255, 4096), (40, 1, 4096), (6, 2, 4096), (6, 3, 4)] {
            assert_eq!(queue(log2_elem, mask, size).unwrap_err(), Errno::EPROTO, "{log2_elem} {mask} {size}");
        }
    }
}
