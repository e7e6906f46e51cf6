//! Several SENDs in one entry: requests of a list that follow each other, are of one length and ask for the same. They cost one look at a
//! header, one lock of the receive half, and fewer lines that move between two cores.
use super::message::SENDS;
use crate::soft::link::shm::ring::{Entry, Header, LINE, LINE_PAYLOAD, PlainEntry};
use crate::soft::types::WrOpcode;

/// Bytes of several SENDs in one entry at most: that of four lines. The receiver begins when the entry is whole.
pub const RUN_PAYLOAD: usize = 4 * LINE - (LINE - LINE_PAYLOAD);

/// Whether the payload of an entry is that of whole SENDs: of one, or of several if its kind says so.
#[inline(always)]
pub fn is_whole(plain: &PlainEntry) -> bool {
    let (total, len) = (plain.total() as usize, plain.len());
    total == len || plain.kind() == SENDS && total > 0 && len.is_multiple_of(total)
}

/// The SENDs that lie in an entry, as entries of their own: itself where it is one, none where no sender of ours would have made it.
pub fn each(entry: &Entry) -> impl Iterator<Item = Entry> + use<> {
    let &Entry { header, payload, len } = entry;
    let total = header.total as usize;
    let (kind, count) = match header.kind {
        SENDS if total > 0 && len.is_multiple_of(total) => (WrOpcode::Send.raw() as u8, len / total),
        SENDS => (SENDS, 0),
        kind => (kind, 1),
    };
    let each = if count == 1 { len } else { total };
    (0..count).map(move |i| Entry {
        header: Header { kind, seq: header.seq.wrapping_add(i as u32) & 0xff_ffff, ..header },
        // SAFETY: `i * total` is below `len`, and the payload has `len` bytes.
        payload: unsafe { payload.add(i * each) },
        len: each,
    })
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    #[test]
    fn an_entry_of_one_message_is_itself() {
        let payload = NonNull::dangling();
        let header =
            Header { kind: WrOpcode::SendImm.raw() as u8, total: 100, seq: 3, imm: 9, ..Header::default() };
        let all: Vec<Entry> = each(&Entry { header, payload, len: 20 }).collect();
        assert_eq!(all.iter().map(|e| (e.header, e.len)).collect::<Vec<_>>(), [(header, 20)]);
    }

    fn sends_of(total: u32, len: usize, seq: u32) -> Vec<(u8, u32, usize, usize)> {
        let bytes = [0u8; 32];
        let payload = NonNull::from(&bytes).cast::<u8>();
        let header = Header { kind: SENDS, total, seq, ..Header::default() };
        let at = |e: &Entry| e.payload.addr().get() - payload.addr().get();
        let sends = each(&Entry { header, payload, len });
        sends.map(|e| (e.header.kind, e.header.seq, at(&e), e.len)).collect()
    }

    #[test]
    fn an_entry_is_taken_apart_into_sends_of_consecutive_psns() {
        let send = WrOpcode::Send.raw() as u8;
        assert_eq!(sends_of(8, 24, 0xff_ffff), [(send, 0xff_ffff, 0, 8), (send, 0, 8, 8), (send, 1, 16, 8)]);
        assert_eq!(sends_of(32, 32, 5), [(send, 5, 0, 32)]);
    }

    #[test]
    fn an_entry_that_no_sender_makes_holds_nothing() {
        assert_eq!(sends_of(0, 0, 1), []);
        assert_eq!(sends_of(0, 8, 1), []);
        assert_eq!(sends_of(5, 8, 1), []);
        assert_eq!(sends_of(u32::MAX, 8, 1), []);
    }
}
