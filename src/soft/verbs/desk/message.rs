//! What processes of one user say to each other at a desk: requests, their answers, and news of a QP that they share.
use crate::abi::*;

/// "av-desk" as bytes, and the version of what follows.
const MAGIC: u64 = u64::from_ne_bytes(*b"av-desk\x01");

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// One more handle for XRC receiver `number` of domain `value`.
    Open = 1,
    /// The same of a QP whose process is gone; the holder of its slot makes it anew as `attr` says.
    Restore = 2,
    /// `ibv_modify_qp`.
    Modify = 3,
    /// `ibv_query_qp`.
    Query = 4,
    /// The handle ends.
    Close = 5,
    /// The memory of device memory `number`; the answer brings a descriptor, and the length in `value`.
    ImportDm = 6,
    /// The answer to request `id`: `result` is 0 or an errno, `attr` the QP's.
    Answer = 7,
    /// The asynchronous event `number` of the QP.
    Event = 8,
    /// The QP has changed to `attr`.
    Changed = 9,
    /// The QP has gone to ERR.
    Failed = 10,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Open,
        Kind::Restore,
        Kind::Modify,
        Kind::Query,
        Kind::Close,
        Kind::ImportDm,
        Kind::Answer,
        Kind::Event,
        Kind::Changed,
        Kind::Failed,
    ];
}

/// A message. A peer of the same user wrote it; its values are checked like an application's.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    #[allow(missing_docs)]
    pub kind: Kind,
    /// Of the request that an answer answers.
    pub id: u32,
    #[allow(missing_docs)]
    pub result: i32,
    #[allow(missing_docs)]
    pub number: u32,
    /// Of a modify: which attributes.
    pub mask: u32,
    #[allow(missing_docs)]
    pub value: u64,
    #[allow(missing_docs)]
    pub attr: ibv_qp_attr,
}

impl Message {
    /// One of this kind, all else zero.
    pub fn new(kind: Kind) -> Self {
        Self { kind, id: 0, result: 0, number: 0, mask: 0, value: 0, attr: ibv_qp_attr::zeroed() }
    }

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![
            MAGIC as u32,
            (MAGIC >> 32) as u32,
            self.kind as u32,
            self.id,
            self.result as u32,
            self.number,
            self.mask,
            self.value as u32,
            (self.value >> 32) as u32,
        ];
        put(&self.attr, &mut words);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// From what was received; none where that is not exactly what `encode` makes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != BYTES {
            return None;
        }
        let mut words = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let mut next = || words.next().unwrap_or(0);
        let magic = u64::from(next()) | u64::from(next()) << 32;
        let kind = next();
        Some(Self {
            kind: Kind::ALL.into_iter().find(|k| magic == MAGIC && *k as u32 == kind)?,
            id: next(),
            result: next() as i32,
            number: next(),
            mask: next(),
            value: u64::from(next()) | u64::from(next()) << 32,
            attr: get(&mut next),
        })
    }
}

/// Bytes of every message.
pub const BYTES: usize = 4 * (9 + WORDS);

macro_rules! attributes {
    ($($($field:ident).+,)*) => {
        const WORDS: usize = 4 + [$(stringify!($($field).+)),*].len();

        fn put(attr: &ibv_qp_attr, words: &mut Vec<u32>) {
            $(words.push(attr.$($field).+.into());)*
            let gid = &attr.ah_attr.grh.dgid.raw;
            words.extend(gid.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])));
        }

        /// Values that do not fit lose their upper bits.
        fn get(next: &mut impl FnMut() -> u32) -> ibv_qp_attr {
            let mut attr = ibv_qp_attr::zeroed();
            $(attr.$($field).+ = next() as _;)*
            for place in attr.ah_attr.grh.dgid.raw.chunks_exact_mut(4) {
                place.copy_from_slice(&next().to_ne_bytes());
            }
            attr
        }
    };
}
attributes! {
    qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
    ah_attr.grh.flow_label, ah_attr.grh.sgid_index, ah_attr.grh.hop_limit, ah_attr.grh.traffic_class,
    ah_attr.dlid, ah_attr.sl, ah_attr.src_path_bits, ah_attr.static_rate, ah_attr.is_global, ah_attr.port_num,
    pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
    timeout, retry_cnt, rnr_retry, rate_limit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent_and_nothing_else_is_one() {
        let mut message = Message::new(Kind::Modify);
        (message.id, message.result, message.number, message.mask) = (7, -1, 0xabcdef, 0x1f);
        message.value = 0x1234_5678_9abc_def0;
        (message.attr.dest_qp_num, message.attr.timeout, message.attr.rate_limit) = (0x654321, 14, 9);
        message.attr.ah_attr.grh.dgid.raw = std::array::from_fn(|i| i as u8);
        let bytes = message.encode();
        assert_eq!(bytes.len(), BYTES);
        let back = Message::decode(&bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{message:?}"));
        assert!(Message::decode(&bytes[1..]).is_none());
        for at in [0, 7, 8] {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert!(Message::decode(&other).is_none(), "byte {at}");
        }
    }
}
