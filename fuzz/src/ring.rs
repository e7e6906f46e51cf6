//! A ring whose other end may write anything at any time: what the consumer takes lies in the ring, and the producer never
//! writes where the consumer has not been. Without such writes, what is sent arrives, in order.
use crate::input::Input;
use ibverbs::soft::link::shm::Corrupt;
use ibverbs::soft::link::shm::ring::{
    Consumer, Ext, Header, LINE, MAX_PAYLOAD, Peeked, Producer, RING_LIMITS, Ring, USER_FLAGS,
};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = *RING_LIMITS.start();
const LINES: u32 = (BYTES / LINE) as u32;
/// Words of the page before the entries.
const CONTROL: u32 = 512;
const STEPS: usize = 400;

/// A ring, and where its entries are.
struct Place {
    ring: Arc<Ring>,
    entries: NonNull<u8>,
}

thread_local! {
    /// Made once; each input begins with zeroes.
    static PLACE: Place = {
        let (ring, _) = Ring::create(BYTES).expect("a ring of the least size");
        let mut producer = Producer::new(ring.clone());
        let payload = producer.try_reserve(&Ext::None, 0).expect("an empty ring takes every entry").payload();
        // SAFETY: the payload of an entry follows its header of half a line.
        let entries = NonNull::new(unsafe { payload.sub(LINE / 2) }).expect("it is mapped");
        Place { ring, entries }
    };
}

impl Place {
    /// A word of the ring, counted from that of its first entry; the control page lies before.
    fn word(&self, index: i64) -> &AtomicU64 {
        assert!((-i64::from(CONTROL)..i64::from(LINES) * 8).contains(&index));
        // SAFETY: within the mapping, which lives as long as `ring`; aligned; every access is atomic.
        unsafe { self.entries.cast::<AtomicU64>().offset(index as isize).as_ref() }
    }

    fn clear(&self) {
        let control = CONTROL as usize * 8;
        // SAFETY: the whole mapping, control page and entries; neither end exists just now.
        unsafe { self.entries.sub(control).write_bytes(0, control + BYTES) };
    }
}

/// Plays one input.
pub fn run(data: &[u8]) {
    PLACE.with(|place| {
        place.clear();
        play(place, &mut Input::new(data));
    });
}

fn play(place: &Place, input: &mut Input<'_>) {
    let is_hostile = input.below(2) == 1;
    let mut producer = Producer::new(place.ring.clone());
    let mut consumer = Consumer::detached();
    consumer.attach(place.ring.clone());
    let mut model = VecDeque::new();
    // Where the consumer looks next, and the stamp that it wants, as far as an attacker would know.
    let (mut line, mut stamp, mut sent) = (0u32, 1u32, 0u32);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(if is_hostile { 12 } else { 7 }) {
            0..=2 => {
                let message = message(sent, input);
                let mut went = send(&mut producer, &message);
                if !went && !is_hostile && model.is_empty() {
                    // A reservation that was given up may have sent the consumer to the first line.
                    assert!(matches!(look(place, &mut consumer), Ok(None)));
                    consumer.publish();
                    went = send(&mut producer, &message);
                    assert!(went, "an empty ring takes every entry");
                }
                if went {
                    sent += 1;
                    model.push_back(message);
                }
            }
            3 | 4 => match look(place, &mut consumer) {
                Err(Corrupt) => {
                    assert!(is_hostile, "what our producer writes is taken for corrupt");
                    return;
                }
                Ok(None) => assert!(is_hostile || model.is_empty(), "an entry is not seen"),
                Ok(Some((got, at))) => {
                    consumer.release();
                    let expected = model.pop_front();
                    assert!(is_hostile || expected.as_ref() == Some(&got), "{expected:?}, not {got:?}");
                    let end = at + got.1.len() as u32;
                    (line, stamp) = (end.div_ceil(LINE as u32) % LINES, stamp.wrapping_add(1));
                }
            },
            5 => drop(producer.try_reserve(&Ext::None, input.word() as usize % (MAX_PAYLOAD + 2))),
            6 => {
                consumer.publish();
                consumer.take_starved();
                let free = producer.free_space();
                assert!(free <= LINES as usize && (is_hostile || !producer.is_corrupt()));
                producer.has_unconsumed();
            }
            7 => {
                // The next entry, forged.
                let kind = input.pick(&[0u8, 1, 0xff, 2]);
                let flags = input.pick(&[0, 0x40, 0x80, 0xc0]) | input.byte() & USER_FLAGS;
                let length = match input.below(4) {
                    0 => input.byte().into(),
                    1 => MAX_PAYLOAD as u32 + input.below(2),
                    2 => (LINES.saturating_sub(line) * LINE as u32).wrapping_sub(input.below(100)),
                    _ => input.word(),
                };
                let first = u64::from(stamp) | u64::from(kind) << 32 | u64::from(flags) << 40;
                place.word(i64::from(line) * 8 + 1).store(length.into(), Ordering::Relaxed);
                place.word(i64::from(line) * 8).store(first, Ordering::Relaxed);
            }
            8 => (line, stamp) = (input.word() % LINES, stamp.wrapping_add(input.below(3)).wrapping_sub(1)),
            9 => {
                let index = i64::from(line) * 8 + i64::from(input.below(8));
                place.word(index).store(input.long(), Ordering::Relaxed);
            }
            10 => {
                let index = i64::from(input.word() % (CONTROL + LINES * 8)) - i64::from(CONTROL);
                place.word(index).store(input.long(), Ordering::Relaxed);
            }
            _ => {
                // What the consumer says that it has consumed.
                let value = match input.below(3) {
                    0 => input.byte().into(),
                    1 => input.word().into(),
                    _ => input.long(),
                };
                place.word(8 - i64::from(CONTROL)).store(value, Ordering::Relaxed);
                place.ring.start_ringing();
                place.ring.stop_ringing();
            }
        }
    }
    if !is_hostile {
        while let Some(expected) = model.pop_front() {
            let got = look(place, &mut consumer).expect("nothing is corrupt").expect("it has been sent").0;
            consumer.release();
            assert_eq!(got, expected);
        }
        assert!(matches!(look(place, &mut consumer), Ok(None)), "nothing follows");
    }
}

type Message = (Header, Vec<u8>);

fn message(n: u32, input: &mut Input<'_>) -> Message {
    let (addr, rkey, aux) = (u64::from(n) * 7, n, !n);
    let ext = match input.below(3) {
        0 => Ext::None,
        1 => Ext::Rdma { addr, rkey, aux },
        _ => Ext::Atomic { addr, rkey, aux, swap_add: 3, compare: u64::from(n) },
    };
    let flags = n as u8 & USER_FLAGS;
    let header =
        Header { kind: 3, flags, spare: n as u16, dst_qpn: n, src_qpn: !n, seq: n, total: n, imm: n, ext };
    let length = match input.below(4) {
        0 => 0,
        1 => input.byte().into(),
        2 => MAX_PAYLOAD,
        _ => input.word() as usize % (MAX_PAYLOAD + 1),
    };
    (header, vec![n as u8; length])
}

fn send(producer: &mut Producer, (header, bytes): &Message) -> bool {
    let Some(slot) = producer.try_reserve(&header.ext, bytes.len()) else { return false };
    // SAFETY: the slot has room for `bytes.len()` bytes.
    unsafe { slot.payload().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    slot.commit(header, bytes.len());
    true
}

/// The next entry, and at which byte its payload begins.
fn look(place: &Place, consumer: &mut Consumer) -> Result<Option<(Message, u32)>, Corrupt> {
    let entry = match consumer.peek_plain() {
        Peeked::Nothing => return Ok(None),
        Peeked::Plain(plain) => plain.entry(),
        Peeked::Other => match consumer.peek()? {
            Some(entry) => entry,
            None => return Ok(None),
        },
    };
    let at = (entry.payload.as_ptr() as usize).wrapping_sub(place.entries.as_ptr() as usize);
    assert!(
        entry.len <= MAX_PAYLOAD && at <= BYTES && at + entry.len <= BYTES,
        "{entry:?} is not in the ring"
    );
    let mut bytes = vec![0; entry.len];
    // SAFETY: within the mapping, as has just been asserted; nobody writes meanwhile.
    unsafe { entry.payload.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), entry.len) };
    Ok(Some(((entry.header, bytes), at as u32)))
}
