//! The writing end of a ring.
use super::{
    EXT_ATOMIC, EXT_RDMA, Ext, HEADER, Header, LINE_PAYLOAD, MAX_PAYLOAD, Ring, STARVED, USER_FLAGS, WRAP,
    first_word, lines_of, next_stamp,
};
use crate::sys::atomic::{Ordering, fence};
use std::sync::Arc;

/// The writing end.
#[derive(Debug)]
pub struct Producer {
    pub(super) ring: Arc<Ring>,
    /// Line of the next entry.
    pub(super) pos: u32,
    /// Stamp of the next entry.
    pub(super) stamp: u32,
    /// Lines produced since the beginning, skipped ones included, and how many of them were known to be consumed.
    produced: u64,
    consumed: u64,
    /// Where to look next whether the ring is empty and can begin again at line 0.
    restart_at: u32,
    /// The line behind the next one says already that nothing follows: a small entry is then a single line's store.
    is_next_clear: bool,
    corrupt: bool,
}

/// Room for one entry. Dropped without [`Slot::commit`], nothing is sent; the ring may have begun again at its first line.
#[derive(Debug)]
pub struct Slot<'a> {
    producer: &'a mut Producer,
    ext: usize,
    room: usize,
}

/// Room for an entry of one line. Dropped without [`Line::commit`], nothing is sent.
#[derive(Debug)]
pub struct Line<'a>(&'a mut Producer);

impl Producer {
    /// The writing end of a ring nobody has written yet.
    pub fn new(ring: Arc<Ring>) -> Self {
        let restart_at = ring.lines / 4;
        Self {
            ring,
            pos: 0,
            stamp: 1,
            produced: 0,
            consumed: 0,
            restart_at,
            is_next_clear: false,
            corrupt: false,
        }
    }

    /// Room for an entry with this kind of extension (its values do not matter yet) and up to `len` bytes of payload, at
    /// most [`MAX_PAYLOAD`]. None when the ring is full: the consumer's process will then ring our doorbell.
    #[inline]
    pub fn try_reserve(&mut self, ext: &Ext, len: usize) -> Option<Slot<'_>> {
        let ext = ext.bytes();
        if len > MAX_PAYLOAD || self.corrupt {
            return None;
        }
        let lines = lines_of(ext, len);
        if self.pos >= self.restart_at {
            self.restart(lines);
        }
        let skip = if self.pos + lines > self.ring.lines { self.ring.lines - self.pos } else { 0 };
        if !self.fits(skip + lines) && !self.find_room(skip + lines) {
            return None;
        }
        if skip > 0 {
            self.wrap();
        }
        if lines > 1 {
            self.is_next_clear = false;
        }
        Some(Slot { producer: self, ext, room: len })
    }

    /// Room for an entry of one line without an extension, hence of up to [`LINE_PAYLOAD`] bytes, where that is known without
    /// a look at what the consumer has done; as a rule it is. None: [`Producer::try_reserve`] is to look.
    #[inline(always)]
    pub fn try_line(&mut self) -> Option<Line<'_>> {
        (self.is_next_clear && self.pos < self.restart_at).then_some(Line(self))
    }

    /// Clears the line behind the next one ahead of time, off the way of the entry just made.
    #[inline]
    fn clear_next(&mut self) {
        self.is_next_clear = self.pos + 1 < self.ring.lines && self.fits(1);
        if self.is_next_clear {
            self.ring.word(self.pos + 1, 0).store(0, Ordering::Relaxed);
        }
    }

    /// Whether something lies in the ring that the consumer is not known to have taken.
    pub fn has_unconsumed(&mut self) -> bool {
        self.refresh();
        self.consumed != self.produced
    }

    /// Whether so many lines and the one behind them are free. Where they are not, the consumer's process will ring our doorbell when it has
    /// freed some: a doorbell that came with fewer has used up the wish.
    pub fn has_room_or_asks(&mut self, lines: u32) -> bool {
        self.fits(lines) || self.find_room(lines)
    }

    /// Lines that are known to be free.
    pub fn free_space(&mut self) -> usize {
        self.refresh();
        self.ring.lines as usize - (self.produced - self.consumed) as usize
    }

    /// The consumer has written nonsense: the connection is to be dropped.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Whether `lines` and the line behind them are free.
    #[inline]
    fn fits(&self, lines: u32) -> bool {
        self.produced - self.consumed + u64::from(lines) < u64::from(self.ring.lines)
    }

    #[cold]
    fn find_room(&mut self, lines: u32) -> bool {
        self.refresh();
        if self.fits(lines) {
            return true;
        }
        // Ask to be woken, then look once more: the consumer frees first and looks for the wish afterwards.
        self.ring.word32(STARVED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refresh();
        self.fits(lines)
    }

    fn refresh(&mut self) {
        let consumed = self.ring.consumed().load(Ordering::Acquire);
        if consumed >= self.consumed && consumed <= self.produced {
            self.consumed = consumed;
        } else {
            self.corrupt = true;
            self.is_next_clear = false;
        }
    }

    /// Begins again at line 0 when the ring is empty, so that little traffic keeps to few pages.
    #[cold]
    fn restart(&mut self, lines: u32) {
        self.refresh();
        if self.consumed == self.produced && lines < self.pos {
            self.wrap();
        } else {
            self.restart_at = self.pos + self.ring.lines / 4;
        }
    }

    /// Sends the consumer to line 0, which is free.
    fn wrap(&mut self) {
        let skipped = self.ring.lines - self.pos;
        self.ring.word(0, 0).store(0, Ordering::Relaxed);
        self.ring.word(self.pos, 0).store(first_word(self.stamp, WRAP, 0, 0), Ordering::Release);
        self.stamp = next_stamp(self.stamp);
        self.produced += u64::from(skipped);
        self.pos = 0;
        self.is_next_clear = false;
        self.restart_at = self.ring.lines / 4;
    }
}

impl Line<'_> {
    /// Where the payload goes: [`LINE_PAYLOAD`] bytes, nobody else's until the commit.
    #[inline(always)]
    pub fn payload(&self) -> *mut u8 {
        // SAFETY: header and payload of an entry of one line lie in that line.
        unsafe { self.0.ring.line(self.0.pos).add(HEADER) }
    }

    /// Makes the entry visible, with the first `len` bytes of the payload. `header` has no extension.
    #[inline(always)]
    pub fn commit(self, header: &Header, len: usize) {
        debug_assert!(len <= LINE_PAYLOAD && header.ext == Ext::None);
        let Producer { ring, pos, stamp, produced, consumed, is_next_clear, .. } = self.0;
        let [first, second, third, fourth, ..] = ring.words(*pos);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        second.store(pair(len as u32, header.dst_qpn), Ordering::Relaxed);
        third.store(pair(header.src_qpn, header.seq), Ordering::Relaxed);
        fourth.store(pair(header.total, header.imm), Ordering::Relaxed);
        let flags = header.flags & USER_FLAGS;
        first.store(first_word(*stamp, header.kind, flags, header.spare), Ordering::Release);
        // The line behind it is inside the ring, free, and says that nothing follows.
        *pos += 1;
        *stamp = next_stamp(*stamp);
        *produced += 1;
        // As `clear_next`.
        let is_inside = *pos + 1 < ring.lines;
        *is_next_clear = is_inside && *produced - *consumed + 1 < u64::from(ring.lines);
        if *is_next_clear {
            ring.words(*pos + 1)[0].store(0, Ordering::Relaxed);
        }
    }
}

impl Slot<'_> {
    /// Where the payload goes: as many bytes as were asked for, nobody else's until the commit.
    #[inline]
    pub fn payload(&self) -> *mut u8 {
        // SAFETY: header and extension of a reserved entry lie inside the mapping.
        unsafe { self.producer.ring.line(self.producer.pos).add(HEADER + self.ext) }
    }

    /// Makes the entry visible, with the first `len` bytes of the payload.
    ///
    /// # Panics
    /// When the extension is of another kind, or `len` larger, than what was reserved.
    #[inline]
    pub fn commit(self, header: &Header, len: usize) {
        assert!(len <= self.room && header.ext.bytes() == self.ext);
        let Producer { ring, pos, stamp, produced, is_next_clear, .. } = self.producer;
        let put = |index, low: u32, high: u32| {
            ring.word(*pos, index).store(u64::from(low) | u64::from(high) << 32, Ordering::Relaxed);
        };
        put(1, len as u32, header.dst_qpn);
        put(2, header.src_qpn, header.seq);
        put(3, header.total, header.imm);
        let ext = match header.ext {
            Ext::None => 0,
            Ext::Rdma { addr, rkey, aux } => {
                ring.word(*pos, 4).store(addr, Ordering::Relaxed);
                put(5, rkey, aux);
                EXT_RDMA
            }
            Ext::Atomic { addr, rkey, aux, swap_add, compare } => {
                ring.word(*pos, 4).store(addr, Ordering::Relaxed);
                put(5, rkey, aux);
                ring.word(*pos, 6).store(swap_add, Ordering::Relaxed);
                ring.word(*pos, 7).store(compare, Ordering::Relaxed);
                EXT_ATOMIC
            }
        };
        let lines = lines_of(self.ext, len);
        let next = if *pos + lines == ring.lines { 0 } else { *pos + lines };
        if lines > 1 || next == 0 || !*is_next_clear {
            ring.word(next, 0).store(0, Ordering::Relaxed);
        }
        let flags = header.flags & USER_FLAGS | ext;
        let first = first_word(*stamp, header.kind, flags, header.spare);
        ring.word(*pos, 0).store(first, Ordering::Release);
        *pos = next;
        *stamp = next_stamp(*stamp);
        *produced += u64::from(lines);
        if next == 0 {
            self.producer.restart_at = self.producer.ring.lines / 4;
        }
        self.producer.clear_next();
    }
}
