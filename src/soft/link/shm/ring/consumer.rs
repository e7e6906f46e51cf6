//! The reading end of a ring. Everything it reads was written by somebody it does not trust.
use super::{
    EXT_ATOMIC, EXT_RDMA, Entry, Ext, HEADER, Header, LINE_PAYLOAD, MAX_PAYLOAD, Ring, STARVED, USER_FLAGS,
    WRAP, lines_of, next_stamp,
};
use crate::soft::link::shm::Corrupt;
use crate::sys::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::ptr::NonNull;
use std::sync::Arc;

/// The reading end. Detached until the peer's ring is known: it then looks like an empty one.
#[derive(Debug)]
pub struct Consumer {
    pub(super) ring: Option<Arc<Ring>>,
    /// The first word of the next entry, for [`Consumer::watch`].
    next: Arc<Watch>,
    pub(super) pos: u32,
    pub(super) stamp: u32,
    /// Lines of the entry that was looked at last; 0 when there is none.
    current: u32,
    /// Lines consumed since the beginning, and how many of them the producer was told of.
    consumed: u64,
    published: u64,
    /// The last look found nothing.
    idle: bool,
    starved: bool,
}

/// What `Consumer::peek_plain` sees.
#[derive(Debug)]
pub enum Peeked {
    /// Nothing has arrived.
    Nothing,
    /// An entry without extension.
    Plain(PlainEntry),
    /// Something that `peek` must look at.
    Other,
}

/// An entry without extension as it lay in the ring; taken apart where it is needed.
#[derive(Clone, Copy, Debug)]
pub struct PlainEntry {
    first: u64,
    one: u64,
    two: u64,
    three: u64,
    payload: NonNull<u8>,
}

impl PlainEntry {
    #[inline(always)]
    fn all_flags(&self) -> u8 {
        (self.first >> 40) as u8
    }

    /// Payload bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.one as u32 as usize
    }

    /// As in [`Entry`].
    #[inline(always)]
    pub fn payload(&self) -> NonNull<u8> {
        self.payload
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn total(&self) -> u32 {
        self.three as u32
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn imm(&self) -> u32 {
        (self.three >> 32) as u32
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn kind(&self) -> u8 {
        (self.first >> 32) as u8
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.all_flags() & USER_FLAGS
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn dst_qpn(&self) -> u32 {
        (self.one >> 32) as u32
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn src_qpn(&self) -> u32 {
        self.two as u32
    }

    /// As in [`Header`].
    #[inline(always)]
    pub fn seq(&self) -> u32 {
        (self.two >> 32) as u32
    }

    /// All of it.
    #[inline(always)]
    pub fn entry(&self) -> Entry {
        let header = Header {
            kind: self.kind(),
            flags: self.flags(),
            spare: (self.first >> 48) as u16,
            dst_qpn: self.dst_qpn(),
            src_qpn: self.src_qpn(),
            seq: self.seq(),
            total: self.total(),
            imm: self.imm(),
            ext: Ext::None,
        };
        Entry { header, payload: self.payload, len: self.len() }
    }
}

/// Tells without any lock whether the next entry has arrived. Valid as long as the consumer's ring is.
#[derive(Debug)]
pub struct Watch(AtomicPtr<AtomicU64>);

static NOTHING: AtomicU64 = AtomicU64::new(0);

impl Watch {
    /// Whether there is something to look at (which may turn out to be no message yet). Two loads, one of them of the line that the producer will write.
    ///
    /// # Safety
    /// The ring of the consumer it belongs to must still be mapped.
    #[inline]
    pub unsafe fn ready(&self) -> bool {
        // SAFETY: points to NOTHING or into the ring, which the caller keeps mapped.
        unsafe { (*self.0.load(Ordering::Acquire)).load(Ordering::Relaxed) != 0 }
    }

    fn set(&self, word: &AtomicU64) {
        self.0.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
    }
}

impl Default for Consumer {
    fn default() -> Self {
        Self::detached()
    }
}

impl Consumer {
    /// An end without a ring.
    pub fn detached() -> Self {
        let next = Arc::new(Watch(AtomicPtr::new((&raw const NOTHING).cast_mut())));
        Self {
            ring: None,
            next,
            pos: 0,
            stamp: 1,
            current: 0,
            consumed: 0,
            published: 0,
            idle: false,
            starved: false,
        }
    }

    /// Gives it its ring, once.
    pub fn attach(&mut self, ring: Arc<Ring>) {
        self.next.set(ring.word(0, 0));
        self.ring = Some(ring);
    }

    /// The word to look at without holding this end.
    pub fn watch(&self) -> Arc<Watch> {
        self.next.clone()
    }

    /// The next entry where it has no extension, as most have none.
    #[inline(always)]
    pub fn peek_plain(&mut self) -> Peeked {
        let Some(ring) = &self.ring else { return Peeked::Nothing };
        let word = |index| ring.word(self.pos, index);
        let first = word(0).load(Ordering::Acquire);
        if first == 0 {
            self.found_nothing();
            return Peeked::Nothing;
        }
        let [one, two, three] = [1, 2, 3].map(|index| word(index).load(Ordering::Relaxed));
        // SAFETY: a header lies inside the mapping with its whole line, hence what follows it there.
        let payload = unsafe { NonNull::new_unchecked(ring.line(self.pos).add(HEADER)) };
        let plain = PlainEntry { first, one, two, three, payload };
        let has_ext = plain.all_flags() & !USER_FLAGS != 0;
        if first as u32 != self.stamp || plain.kind() == WRAP || has_ext {
            return Peeked::Other;
        }
        let mut lines = 1;
        if plain.len() > LINE_PAYLOAD {
            lines = lines_of(0, plain.len().min(MAX_PAYLOAD));
            if plain.len() > MAX_PAYLOAD || self.pos + lines > ring.lines {
                return Peeked::Other;
            }
        }
        self.current = lines;
        // As in `peek`.
        ring.prefetch(if self.pos + lines == ring.lines { 0 } else { self.pos + lines });
        Peeked::Plain(plain)
    }

    /// The next entry, if it has arrived; the same again until [`Consumer::release`]. `Corrupt` when the producer wrote
    /// what no producer of ours writes: the connection is to be dropped.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Entry>, Corrupt> {
        loop {
            let Some(ring) = &self.ring else { return Ok(None) };
            let first = ring.word(self.pos, 0).load(Ordering::Acquire);
            if first == 0 {
                self.found_nothing();
                return Ok(None);
            }
            if first as u32 != self.stamp {
                return Err(Corrupt);
            }
            let (kind, flags) = ((first >> 32) as u8, (first >> 40) as u8);
            if kind == WRAP {
                if self.pos == 0 {
                    return Err(Corrupt);
                }
                self.current = ring.lines - self.pos;
                self.release();
                continue;
            }
            let pair = |index| {
                let word = ring.word(self.pos, index).load(Ordering::Relaxed);
                (word as u32, (word >> 32) as u32)
            };
            let ((len, dst_qpn), (src_qpn, seq), (total, imm)) = (pair(1), pair(2), pair(3));
            // The first 64 bytes of an entry are always inside the ring, hence every extension.
            let ext = match flags & !USER_FLAGS {
                0 => Ext::None,
                EXT_RDMA => {
                    let (rkey, aux) = pair(5);
                    Ext::Rdma { addr: ring.word(self.pos, 4).load(Ordering::Relaxed), rkey, aux }
                }
                EXT_ATOMIC => {
                    let (rkey, aux) = pair(5);
                    Ext::Atomic {
                        addr: ring.word(self.pos, 4).load(Ordering::Relaxed),
                        rkey,
                        aux,
                        swap_add: ring.word(self.pos, 6).load(Ordering::Relaxed),
                        compare: ring.word(self.pos, 7).load(Ordering::Relaxed),
                    }
                }
                _ => return Err(Corrupt),
            };
            let len = len as usize;
            if len > MAX_PAYLOAD {
                return Err(Corrupt);
            }
            let lines = lines_of(ext.bytes(), len);
            if self.pos + lines > ring.lines {
                return Err(Corrupt);
            }
            // SAFETY: header, extension and payload lie inside the mapping, checked just above.
            let payload = unsafe { NonNull::new_unchecked(ring.line(self.pos).add(HEADER + ext.bytes())) };
            self.current = lines;
            // The producer has just written there to say that nothing follows: fetch it while this entry is worked on.
            ring.prefetch(if self.pos + lines == ring.lines { 0 } else { self.pos + lines });
            let spare = (first >> 48) as u16;
            let flags = flags & USER_FLAGS;
            let header = Header { kind, flags, spare, dst_qpn, src_qpn, seq, total, imm, ext };
            return Ok(Some(Entry { header, payload, len }));
        }
    }

    /// Gives the entry that [`Consumer::peek`] returned back to the producer.
    #[inline]
    pub fn release(&mut self) {
        let Some(ring) = &self.ring else { return };
        if self.current == 0 {
            return;
        }
        self.pos += self.current;
        if self.pos == ring.lines {
            self.pos = 0;
        }
        self.consumed += u64::from(self.current);
        self.current = 0;
        self.stamp = next_stamp(self.stamp);
        self.idle = false;
        self.next.set(ring.word(self.pos, 0));
        if self.consumed - self.published >= u64::from(ring.lines / 4) {
            self.publish();
        }
    }

    /// Whether the producer found its ring full and is to be woken now that there is room. Ask after a round of peeks.
    #[inline]
    pub fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Tells the producer of everything that was released.
    pub fn publish(&mut self) {
        let Some(ring) = &self.ring else { return };
        self.published = self.consumed;
        ring.consumed().store(self.consumed, Ordering::Release);
        fence(Ordering::SeqCst);
        let starved = ring.word32(STARVED);
        if starved.load(Ordering::Relaxed) != 0 {
            starved.store(0, Ordering::Relaxed);
            self.starved = true;
        }
    }

    /// Nothing there: a moment to tell the producer, but not the first one, where somebody waits for our answer.
    #[inline]
    fn found_nothing(&mut self) {
        if self.consumed == self.published {
            return;
        }
        let lines = self.ring.as_ref().map_or(0, |r| r.lines);
        if std::mem::replace(&mut self.idle, true) || self.consumed - self.published >= u64::from(lines / 8) {
            self.publish();
        }
    }
}
