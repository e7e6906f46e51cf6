//! What is counted of each QP and each port, where other processes of this user can read it (`anyverbs stats`).
//!
//! Each half of a QP adds to words of its own under its own lock, by plain loads and stores. The words lie in memory files,
//! 512 QPs in each; the port's counters are the sum over all QPs and what those that are gone have left. Which counters the words
//! make is the business of the package `anyverbs-counters`.
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use anyverbs_counters::raw::{Direct, Event};
pub use anyverbs_counters::{Counter, Values};

use anyverbs_counters::file::{self, description as d};
use anyverbs_counters::raw::{
    self, DIRECT, EVENTS, EVENTS_AT, HALF, MORE, OPS, PAYLOAD, READ_LONG, READ_MORE, RECEIVER, RECORD,
    SENDER, TALLY, WIRE,
};

use super::types::{Gid, QpState, QpType, Qpn, WcStatus, WrOpcode};
use crate::sys::lock::Lock;
use crate::sys::map::Mapping;
use crate::sys::{fork, memfd};

type Words = &'static [AtomicU64];

/// Where those count that got no record: nobody reads it.
static NOWHERE: [AtomicU64; RECORD] = [const { AtomicU64::new(0) }; RECORD];

/// Adds to a word whose only writer this thread is just now.
#[inline]
fn bump(word: &AtomicU64, n: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, n: u64) {
    word.store(n, Ordering::Relaxed);
}

/// The counters of a process.
#[derive(Debug)]
pub struct Stats {
    nonce: u64,
    sheets: Lock<Vec<Sheet>>,
    names: Lock<Vec<(usize, String)>>,
    /// The header of the first file.
    first: OnceLock<Words>,
}

/// A memory file.
struct Sheet {
    words: Words,
    /// Records that were in use and are not, and how many ever were.
    free: Vec<usize>,
    used: usize,
    /// Open for whoever looks; none where there are no descriptors left.
    _fd: Option<OwnedFd>,
}

impl fmt::Debug for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sheet").field("used", &self.used).field("free", &self.free.len()).finish()
    }
}

impl Sheet {
    fn new(nonce: u64, names: &[(usize, String)]) -> Option<Self> {
        let (words, fd) = published().or_else(|| {
            let private = Mapping::anonymous(file::WORDS * 8).ok()?;
            Some((private.into_words(), None))
        })?;
        set(&words[file::AT_VERSION], file::VERSION);
        set(&words[file::AT_NONCE], nonce);
        set(&words[file::AT_PID], std::process::id().into());
        set(&words[file::AT_DIRECT], super::link::shm::layout::DIRECT_OFFSET as u64);
        let sheet = Self { words, free: Vec::new(), used: 0, _fd: fd };
        names.iter().for_each(|(device, name)| sheet.name(*device, name));
        words[file::AT_MAGIC].store(file::MAGIC, Ordering::Release);
        Some(sheet)
    }

    fn name(&self, device: usize, name: &str) {
        let mut bytes = [0; file::NAME_WORDS * 8];
        // The last byte stays 0.
        let n = name.len().min(bytes.len() - 1);
        bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
        let words = &self.words[file::AT_NAMES + device * file::NAME_WORDS..][..file::NAME_WORDS];
        for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
            set(word, u64::from_ne_bytes(bytes.try_into().unwrap_or_default()));
        }
    }

    fn record(&self, index: usize) -> Words {
        &self.words[file::AT_RECORDS + index * RECORD..][..RECORD]
    }
}

/// A file that processes of this user can open and read, and nobody but us can write.
fn published() -> Option<(Words, Option<OwnedFd>)> {
    let fd = memfd::create(c"anyverbs-counters", file::WORDS * 8).ok()?;
    let map = Mapping::shared(fd.as_fd(), file::WORDS * 8, true).ok()?;
    memfd::seal(fd.as_fd(), true).or_else(|_| memfd::seal(fd.as_fd(), false)).ok()?;
    Some((map.into_words(), Some(fd)))
}

impl Stats {
    /// Nothing counted yet, of the process that `nonce` names.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, sheets: Lock::default(), names: Lock::default(), first: OnceLock::new() }
    }

    /// Tells what a device is called.
    pub fn name_device(&self, device: u32, name: &str) {
        let (device, mut names) = (device as usize % file::DEVICES, self.names.lock());
        if !names.iter().any(|known| known.0 == device && known.1 == name) {
            names.retain(|known| known.0 != device);
            names.push((device, name.to_owned()));
            self.sheets.lock().iter().for_each(|sheet| sheet.name(device, name));
        }
    }

    /// A record for a new QP of this type, of the first device; `slots` are the process's.
    pub fn claim(&'static self, kind: QpType, slots: &[u16]) -> Record {
        let names = self.names.lock();
        let mut sheets = self.sheets.lock();
        let has_room = |sheet: &Sheet| sheet.used < file::RECORDS || !sheet.free.is_empty();
        let at = match sheets.iter().position(has_room) {
            Some(at) => at,
            None => {
                let Some(sheet) = Sheet::new(self.nonce, &names) else { return Record::nowhere() };
                self.first.get_or_init(|| sheet.words);
                sheets.push(sheet);
                sheets.len() - 1
            }
        };
        for (ordinal, slot) in slots.iter().enumerate().take(file::SLOTS) {
            set(&sheets[0].words[file::AT_SLOTS + ordinal], (*slot).into());
        }
        let sheet = &mut sheets[at];
        let index = sheet.free.pop().unwrap_or(sheet.used);
        sheet.used = sheet.used.max(index + 1);
        let words = sheet.record(index);
        set(&words[d::KIND], kind.raw().into());
        sheet.words[file::AT_USED].store(sheet.used as u64, Ordering::Release);
        Record { words, place: Some((self, at, index)), generation: fork::generation() }
    }

    /// A QP is gone: the port keeps what it has counted.
    fn release(&self, at: usize, index: usize) {
        let mut sheets = self.sheets.lock();
        let Some(sheet) = sheets.get_mut(at) else { return };
        let (record, generation) = (sheet.record(index), &sheet.words[file::GENERATION]);
        bump(generation, 1);
        fence(Ordering::Release);
        let left = file::AT_LEFT + device_of(record) * file::VALUES;
        for (word, n) in sheet.words[left..].iter().zip(values_of(record).0) {
            bump(word, n);
        }
        record.iter().for_each(|word| set(word, 0));
        generation.store(get(generation).wrapping_add(1), Ordering::Release);
        sheet.free.push(index);
    }

    /// Counts for the port itself what no QP has. One thread at a time: the one that receives packets.
    pub fn port_event(&self, event: Event, n: u64) {
        if let Some(words) = self.first.get() {
            bump(&words[file::AT_PORT + event as usize], n);
        }
    }

    /// Packets with a wrong P_Key, and datagrams with a wrong Q_Key, of a device's port, as `ibv_port_attr` has them.
    pub fn violations(&self, device: u32) -> (u32, u32) {
        let (device, sheets) = (device as usize % file::DEVICES, self.sheets.lock());
        let left = |sheet: &Sheet, counter: Counter| {
            get(&sheet.words[file::AT_LEFT + device * file::VALUES + counter as usize])
        };
        let now = |sheet: &Sheet, event: Event| {
            let records = (0..sheet.used).map(|index| sheet.record(index)).filter(|r| device_of(r) == device);
            records.map(|r| get(&r[RECEIVER + EVENTS_AT + event as usize])).sum::<u64>()
        };
        let sum = |counter: Counter, event: Event| {
            sheets.iter().map(|sheet| left(sheet, counter) + now(sheet, event)).sum::<u64>() as u32
        };
        (sum(Counter::PortRcvConstraintErrors, Event::BadPkey), sum(Counter::QkeyViolations, Event::BadQkey))
    }

    /// The counters of a device's port, as far as this process knows; direct accesses of peers as they were last absorbed.
    pub fn port(&self, device: u32) -> Values {
        let device = device as usize % file::DEVICES;
        let mut sum = Values::default();
        for sheet in self.sheets.lock().iter() {
            let mut left = Values::default();
            for (n, word) in left.0.iter_mut().zip(&sheet.words[file::AT_LEFT + device * file::VALUES..]) {
                *n = get(word);
            }
            sum += &left;
            if device == 0 {
                let events: [u64; EVENTS] = std::array::from_fn(|i| get(&sheet.words[file::AT_PORT + i]));
                raw::add_events(&mut sum, &events);
            }
            let records = (0..sheet.used).map(|index| sheet.record(index));
            for record in records.filter(|r| get(&r[d::KIND]) != 0 && device_of(r) == device) {
                sum += &values_of(record);
            }
        }
        sum
    }
}

fn device_of(record: Words) -> usize {
    get(&record[d::DEVICE]) as usize % file::DEVICES
}

fn values_of(record: Words) -> Values {
    let words: [u64; RECORD] = std::array::from_fn(|i| get(&record[i]));
    let direct: Direct = std::array::from_fn(|i| words[d::ABSORBED + i]);
    raw::values(words[d::KIND], &words, &direct)
}

/// What others may know of a QP beside its counters.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// None: there is no such QP any more.
    pub state: Option<QpState>,
    #[allow(missing_docs)]
    pub num: Qpn,
    /// As `PATHS` of the package counts them.
    pub path: u64,
    #[allow(missing_docs)]
    pub peer_qpn: Qpn,
    /// The process of the peer, where it is one of this host's; else 0.
    pub peer_nonce: u64,
    #[allow(missing_docs)]
    pub peer_pid: u32,
    #[allow(missing_docs)]
    pub peer_gid: Gid,
    /// Bytes; 0 where it is not connected.
    pub mtu: u32,
}

/// The words of a QP; its counts go over to the port when it is dropped.
pub struct Record {
    words: Words,
    place: Option<(&'static Stats, usize, usize)>,
    generation: u32,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("index", &self.place.map(|p| p.2)).finish()
    }
}

impl Record {
    /// One that nobody reads.
    fn nowhere() -> Self {
        Self { words: &NOWHERE, place: None, generation: fork::generation() }
    }

    /// The words of the send half, which count under its lock.
    pub fn sender(&self) -> Half {
        Half::at(&self.words[SENDER..])
    }

    /// The words of the receive half, which count under its lock.
    pub fn receiver(&self) -> Half {
        Half::at(&self.words[RECEIVER..])
    }

    /// The device that the QP belongs to.
    pub fn set_device(&self, device: u32) {
        set(&self.words[d::DEVICE], device.into());
    }

    /// Says what others may know. `direct`: what the peer has by now done to our memory without our help, over all its QP's life.
    /// One thread at a time.
    pub fn describe(&self, new: &Description, direct: Option<Direct>) {
        let w = self.words;
        let peer = (new.peer_nonce, u64::from(new.peer_qpn.0));
        let is_new_peer = peer != (get(&w[d::PEER_NONCE]), get(&w[d::PEER_QPN]));
        self.change(|| {
            set(&w[d::STATE], new.state.map_or(0, |s| u64::from(s.raw()) + 1));
            set(&w[d::QPN], new.num.0.into());
            set(&w[d::PATH], new.path);
            set(&w[d::PEER_NONCE], peer.0);
            set(&w[d::PEER_QPN], peer.1);
            set(&w[d::PEER_PID], new.peer_pid.into());
            for (word, bytes) in w[d::PEER_GID..].iter().zip(new.peer_gid.0.chunks_exact(8)) {
                set(word, u64::from_ne_bytes(bytes.try_into().unwrap_or_default()));
            }
            set(&w[d::MTU], new.mtu.into());
            if is_new_peer {
                w[d::BASE..].iter().zip(direct.unwrap_or_default()).for_each(|(word, n)| set(word, n));
            }
        });
    }

    /// Takes over what the peer of the description has done to our memory since the last time. Not together with `describe`.
    pub fn absorb(&self, peer_nonce: u64, peer_qpn: Qpn, direct: &Direct) {
        let w = self.words;
        // Of a peer that is not described yet, the part that counts is not known.
        let is_peer = (peer_nonce, u64::from(peer_qpn.0)) == (get(&w[d::PEER_NONCE]), get(&w[d::PEER_QPN]));
        if is_peer && (0..DIRECT).any(|i| get(&w[d::BASE + i]) != direct[i]) {
            self.change(|| {
                for (i, &now) in direct.iter().enumerate() {
                    bump(&w[d::ABSORBED + i], now.wrapping_sub(get(&w[d::BASE + i])));
                    set(&w[d::BASE + i], now);
                }
            });
        }
    }

    /// Everything counted so far.
    pub fn values(&self) -> Values {
        values_of(self.words)
    }

    fn change(&self, work: impl FnOnce()) {
        let sequence = &self.words[d::SEQUENCE];
        bump(sequence, 1);
        fence(Ordering::Release);
        work();
        sequence.store(get(sequence).wrapping_add(1), Ordering::Release);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A forked child has the handle and not the memory.
        if let Some((stats, at, index)) = self.place.filter(|_| self.generation == fork::generation()) {
            stats.release(at, index);
        }
    }
}

/// Where one half of a QP counts.
#[derive(Clone, Copy)]
pub struct Half {
    words: &'static [AtomicU64; HALF],
    /// The one of its two tallies that counts at present.
    tally: &'static [AtomicU64; TALLY],
    /// Payload of a packet, bytes.
    mtu: u32,
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Half").field("mtu", &self.mtu).finish_non_exhaustive()
    }
}

impl Default for Half {
    fn default() -> Self {
        Half::at(&NOWHERE)
    }
}

impl Half {
    fn at(words: Words) -> Self {
        let Some(words) = words.first_chunk::<HALF>() else { return Half::at(&NOWHERE) };
        Self { words, tally: words.first_chunk().unwrap_or(&NOTHING), mtu: u32::MAX }
    }

    /// From now on requests go this way, cut into packets of `mtu` bytes.
    pub fn set_way(&mut self, wire: bool, mtu: u32) {
        let from = if wire { WIRE } else { 0 };
        self.tally = self.words[from..].first_chunk().unwrap_or(&NOTHING);
        self.mtu = mtu.max(1);
    }

    /// Payload of a packet, bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Counts a request of `length` bytes that was carried out.
    #[inline]
    pub fn done(&self, op: WrOpcode, length: u32) {
        let op = op.raw() as usize % OPS;
        bump(&self.tally[op], 1);
        bump(&self.tally[PAYLOAD + op], (u64::from(length) + 3) >> 2);
        if length > self.mtu {
            self.long(op, length);
        }
    }

    #[cold]
    fn long(&self, op: usize, length: u32) {
        let more = u64::from(length.div_ceil(self.mtu)) - 1;
        if op == WrOpcode::Read.raw() as usize {
            bump(&self.tally[READ_MORE], more);
            bump(&self.tally[READ_LONG], 1);
        } else {
            bump(&self.tally[MORE], more);
        }
    }

    /// Counts something that happened.
    pub fn event(&self, event: Event, n: u64) {
        bump(&self.words[EVENTS_AT + event as usize], n);
    }

    /// Counts packets that were sent, of so many bytes from BTH to ICRC in all.
    #[inline]
    pub fn sent(&self, packets: usize, bytes: usize) {
        self.event(Event::XmitPackets, packets as u64);
        self.event(Event::XmitWords, bytes as u64 / 4);
    }

    /// Counts packets that were received.
    #[inline]
    pub fn received(&self, packets: usize, bytes: usize) {
        self.event(Event::RcvPackets, packets as u64);
        self.event(Event::RcvWords, bytes as u64 / 4);
    }

    /// Counts the packets of a request over memory that was sent and not accepted; gives how many.
    pub fn sent_in_vain(&self, kind: QpType, op: WrOpcode, length: u32) -> u64 {
        let (asked, _) =
            raw::traffic_of(kind.raw().into(), op.raw() as usize, length.into(), self.mtu.into());
        self.event(Event::XmitPackets, asked.packets);
        self.event(Event::XmitWords, asked.words);
        asked.packets
    }

    /// Counts the packets of a request over memory that came and was not accepted.
    pub fn received_in_vain(&self, kind: QpType, op: WrOpcode, length: u32) {
        // A datagram is one packet, also one that came to a connected QP.
        let mtu = if kind == QpType::Ud { u32::MAX } else { self.mtu };
        let (asked, _) = raw::traffic_of(kind.raw().into(), op.raw() as usize, length.into(), mtu.into());
        self.event(Event::RcvPackets, asked.packets);
        self.event(Event::RcvWords, asked.words);
    }

    /// Counts a refusal over memory, on its way out.
    pub fn refused(&self) {
        self.event(Event::XmitPackets, 1);
        self.event(Event::XmitWords, raw::ACK_WORDS);
    }

    /// Counts a refusal over memory that came in.
    pub fn was_refused(&self) {
        self.event(Event::RcvPackets, 1);
        self.event(Event::RcvWords, raw::ACK_WORDS);
    }

    /// Counts how a send request failed.
    #[cold]
    pub fn failed(&self, status: WcStatus) {
        if status == WcStatus::WrFlushErr {
            return self.event(Event::SendFlushed, 1);
        }
        self.event(Event::SendFailed, 1);
        let which = match status {
            WcStatus::RetryExcErr => Event::RetryExceeded,
            WcStatus::RnrRetryExcErr => Event::RnrRetryExceeded,
            WcStatus::RemInvReqErr => Event::RemoteInvalid,
            WcStatus::RemAccessErr => Event::RemoteAccess,
            _ => return,
        };
        self.event(which, 1);
    }

    /// Counts how a receive request failed.
    #[cold]
    pub fn receive_failed(&self, status: u32) {
        match WcStatus::from_raw(status) {
            Some(WcStatus::Success) => {}
            Some(WcStatus::WrFlushErr) => self.event(Event::ReceiveFlushed, 1),
            other => {
                self.event(Event::ReceiveFailed, 1);
                if other == Some(WcStatus::LocLenErr) {
                    self.event(Event::ReceiveTooShort, 1);
                }
            }
        }
    }
}

static NOTHING: [AtomicU64; TALLY] = [const { AtomicU64::new(0) }; TALLY];

/// Adds a WRITE or READ that was carried out without the peer's help to the words that the peer reads.
#[inline]
pub fn add_direct(to: &[AtomicU64; DIRECT], op: WrOpcode, length: u32, mtu: u32) {
    let first = if op == WrOpcode::Read { 3 } else { 0 };
    bump(&to[first], 1);
    bump(&to[first + 1], (u64::from(length) + 3) >> 2);
    if length > mtu {
        add_more(to, first, length, mtu);
    }
}

/// The packets beside the first.
#[cold]
fn add_more(to: &[AtomicU64; DIRECT], first: usize, length: u32, mtu: u32) {
    let more = u64::from(length.div_ceil(mtu.max(1))) - 1;
    bump(&to[first + 2], more);
    if first == 3 && more > 0 {
        bump(&to[6], 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> &'static Stats {
        Box::leak(Box::new(Stats::new(1 << 63 | 0x57a7)))
    }

    #[test]
    fn the_port_keeps_what_a_qp_has_counted_when_it_goes() {
        let stats = stats();
        let (a, b) = (stats.claim(QpType::Rc, &[7]), stats.claim(QpType::Rc, &[7]));
        b.set_device(1);
        for record in [&a, &b] {
            let mut half = record.sender();
            half.set_way(false, 1024);
            half.done(WrOpcode::Send, 8);
            half.done(WrOpcode::Write, 3000);
        }
        let values = a.values();
        assert_eq!(values[Counter::PortXmitPackets], 4);
        assert_eq!(values[Counter::PortRcvPackets], 2);
        assert_eq!(values[Counter::PortXmitData] * 4, 24 + 3 * 16 + 16 + 3000);
        assert_eq!(stats.port(0), values);
        drop(a);
        assert_eq!(stats.port(0), values);
        let next = stats.claim(QpType::Rc, &[7]);
        assert_eq!(next.values(), Values::default());
        next.receiver().event(Event::Duplicate, 3);
        assert_eq!(stats.port(0)[Counter::DuplicateRequest], 3);
        assert_eq!(stats.port(1), values);
    }

    #[test]
    fn more_qps_than_a_file_holds_count_in_another() {
        let stats = stats();
        let all: Vec<_> = (0..file::RECORDS + 3).map(|_| stats.claim(QpType::Ud, &[7])).collect();
        all.iter().for_each(|record| record.sender().done(WrOpcode::Send, 4));
        assert_eq!(stats.port(0)[Counter::PortXmitPackets], all.len() as u64);
        assert_eq!(stats.sheets.lock().len(), 2);
        drop(all);
        assert_eq!(stats.port(0)[Counter::PortXmitPackets], file::RECORDS as u64 + 3);
    }

    #[test]
    fn packets_on_a_wire_are_not_counted_twice() {
        let record = stats().claim(QpType::Rc, &[7]);
        let mut half = record.sender();
        half.set_way(true, 1024);
        half.done(WrOpcode::Send, 8);
        half.sent(1, 24);
        let values = record.values();
        assert_eq!((values[Counter::RdmaSends], values[Counter::PortXmitPackets]), (1, 1));
    }

    #[test]
    fn direct_accesses_count_from_when_the_peer_was_connected() {
        let record = stats().claim(QpType::Rc, &[7]);
        let direct = [const { AtomicU64::new(0) }; DIRECT];
        let now = || std::array::from_fn(|i| get(&direct[i]));
        add_direct(&direct, WrOpcode::Write, 5000, 1024);
        let mut about = Description {
            state: Some(QpState::Rtr),
            num: Qpn(0x7001),
            path: 2,
            peer_qpn: Qpn(0x8001),
            peer_nonce: 5,
            peer_pid: 6,
            peer_gid: Gid::default(),
            mtu: 1024,
        };
        record.describe(&about, Some(now()));
        add_direct(&direct, WrOpcode::Write, 100, 1024);
        add_direct(&direct, WrOpcode::Read, 1025, 1024);
        about.state = Some(QpState::Rts);
        record.describe(&about, Some(now()));
        record.absorb(4, Qpn(0x8001), &now());
        record.absorb(5, Qpn(0x8001), &now());
        record.absorb(5, Qpn(0x8001), &now());
        let values = record.values();
        assert_eq!((values[Counter::RxWriteRequests], values[Counter::RxReadRequests]), (1, 1));
        // WRITE and READ request in; acknowledgement and two responses out.
        assert_eq!((values[Counter::PortRcvPackets], values[Counter::PortXmitPackets]), (2, 3));
    }
}
