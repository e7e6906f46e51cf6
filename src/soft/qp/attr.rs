//! The QP state machine: which transitions exist, and which attributes each requires and allows (IBA 11.2.5.2, as the
//! kernel's table has it).
use crate::soft::ah::Address;
use crate::soft::types::{Access, Mtu, Psn, QpState, QpType, Qpn};

bitflags::bitflags! {
    /// `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Mask: u32 {
        #[allow(missing_docs)] const STATE = 1;
        #[allow(missing_docs)] const CUR_STATE = 1 << 1;
        #[allow(missing_docs)] const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        #[allow(missing_docs)] const ACCESS_FLAGS = 1 << 3;
        #[allow(missing_docs)] const PKEY_INDEX = 1 << 4;
        #[allow(missing_docs)] const PORT = 1 << 5;
        #[allow(missing_docs)] const QKEY = 1 << 6;
        #[allow(missing_docs)] const AV = 1 << 7;
        #[allow(missing_docs)] const PATH_MTU = 1 << 8;
        #[allow(missing_docs)] const TIMEOUT = 1 << 9;
        #[allow(missing_docs)] const RETRY_CNT = 1 << 10;
        #[allow(missing_docs)] const RNR_RETRY = 1 << 11;
        #[allow(missing_docs)] const RQ_PSN = 1 << 12;
        #[allow(missing_docs)] const MAX_QP_RD_ATOMIC = 1 << 13;
        #[allow(missing_docs)] const ALT_PATH = 1 << 14;
        #[allow(missing_docs)] const MIN_RNR_TIMER = 1 << 15;
        #[allow(missing_docs)] const SQ_PSN = 1 << 16;
        #[allow(missing_docs)] const MAX_DEST_RD_ATOMIC = 1 << 17;
        #[allow(missing_docs)] const PATH_MIG_STATE = 1 << 18;
        #[allow(missing_docs)] const CAP = 1 << 19;
        #[allow(missing_docs)] const DEST_QPN = 1 << 20;
        #[allow(missing_docs)] const RATE_LIMIT = 1 << 25;
    }
}

/// What the application has set so far. PSNs and QPNs are 24 bits.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    #[allow(missing_docs)]
    pub path_mtu: Mtu,
    #[allow(missing_docs)]
    pub path_mig_state: u32,
    #[allow(missing_docs)]
    pub qkey: u32,
    #[allow(missing_docs)]
    pub rq_psn: Psn,
    #[allow(missing_docs)]
    pub sq_psn: Psn,
    #[allow(missing_docs)]
    pub dest_qpn: Qpn,
    #[allow(missing_docs)]
    pub access: Access,
    #[allow(missing_docs)]
    pub pkey_index: u16,
    #[allow(missing_docs)]
    pub port: u8,
    /// The address vector of a connected QP.
    pub address: Option<Address>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code, 0 to 31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout code, 0 to 31.
    pub timeout: u8,
    #[allow(missing_docs)]
    pub retry_cnt: u8,
    #[allow(missing_docs)]
    pub rnr_retry: u8,
    #[allow(missing_docs)]
    pub en_sqd_async_notify: bool,
    /// Bits per second in kilobits; only stored.
    pub rate_limit: u32,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            path_mtu: Mtu::B256,
            path_mig_state: 0,
            qkey: 0,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn(0),
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            address: None,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            en_sqd_async_notify: false,
            rate_limit: 0,
        }
    }
}

/// What is wrong with a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// There is no such transition.
    Transition,
    /// These attributes are required and missing.
    Lacks(Mask),
    /// These attributes are not allowed here.
    Excess(Mask),
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Complaint::Transition => f.write_str("there is no such transition"),
            Complaint::Lacks(mask) => write!(f, "attr_mask lacks {}", Names(*mask)),
            Complaint::Excess(mask) => write!(f, "attr_mask must not have {}", Names(*mask)),
        }
    }
}

/// The C names of the bits of a mask.
struct Names(Mask);

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, _)) in self.0.iter_names().enumerate() {
            write!(f, "{}IBV_QP_{name}", if i > 0 { " | " } else { "" })?;
        }
        let unknown = self.0.bits() & !Mask::all().bits();
        let gap = if self.0.iter_names().next().is_some() { " | " } else { "" };
        if unknown != 0 { write!(f, "{gap}unknown bits 0x{unknown:x}") } else { Ok(()) }
    }
}

/// Without the attributes of the half that an XRC QP lacks: programs set both, and the kernel takes them out unseen.
pub fn of_its_half(kind: QpType, mask: Mask) -> Mask {
    match kind {
        QpType::XrcSend => mask - (Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER),
        QpType::XrcRecv => mask - (Mask::MAX_QP_RD_ATOMIC | Mask::RETRY_CNT | Mask::RNR_RETRY),
        QpType::Rc | QpType::Uc | QpType::Ud => mask,
    }
}

/// May a QP of this type go from one state to another with these attributes?
pub fn check(kind: QpType, from: QpState, to: QpState, mask: Mask) -> Result<(), Complaint> {
    let (required, optional) = transition(kind, from, to).ok_or(Complaint::Transition)?;
    let lacks = required.difference(mask);
    if !lacks.is_empty() {
        return Err(Complaint::Lacks(lacks));
    }
    let excess = mask.difference(required | optional | Mask::STATE);
    if !excess.is_empty() {
        return Err(Complaint::Excess(excess));
    }
    Ok(())
}

/// Required and optional attributes of a transition; none where it does not exist.
fn transition(kind: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
    let none = Mask::empty();
    let ud = kind == Ud;
    let acks = matches!(kind, Rc | XrcSend | XrcRecv);
    let responds = matches!(kind, Rc | XrcRecv);
    let key = if ud { Mask::QKEY } else { Mask::ACCESS_FLAGS };
    let base = Mask::PKEY_INDEX | Mask::PORT | key;
    let moving = Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PATH_MIG_STATE;
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Init) => (base, none),
        (Init, Init) => (none, base),
        (Init, Rtr) if ud => (none, Mask::PKEY_INDEX | Mask::QKEY),
        (Init, Rtr) => {
            let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
            let rd = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
            let optional = Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX;
            (if responds { path | rd } else { path }, optional)
        }
        (Rtr, Rts) => {
            let required = match kind {
                Rc | XrcSend => {
                    Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC
                }
                XrcRecv => Mask::TIMEOUT | Mask::SQ_PSN,
                Uc | Ud => Mask::SQ_PSN,
            };
            (required, Mask::CUR_STATE | running(kind, moving))
        }
        (Rts, Rts) | (Sqd, Rts) => (none, Mask::CUR_STATE | running(kind, moving)),
        (Rts, Sqd) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) if ud => (none, Mask::PKEY_INDEX | Mask::QKEY),
        (Sqd, Sqd) => {
            let mut optional = Mask::AV | Mask::PKEY_INDEX | moving;
            if acks {
                optional |= Mask::PORT | Mask::TIMEOUT;
            }
            if matches!(kind, Rc | XrcSend) {
                optional |= Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
            }
            if responds {
                optional |= Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
            }
            (none, optional)
        }
        (Sqe, Rts) if ud => (none, Mask::CUR_STATE | Mask::QKEY),
        (Sqe, Rts) if kind == Uc => (none, Mask::CUR_STATE | Mask::ACCESS_FLAGS),
        (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (none, none),
        _ => return None,
    })
}

/// What may change while the QP runs.
fn running(kind: QpType, moving: Mask) -> Mask {
    match kind {
        QpType::Ud => Mask::QKEY,
        QpType::Rc | QpType::XrcRecv => moving | Mask::MIN_RNR_TIMER,
        QpType::Uc | QpType::XrcSend => moving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    #[test]
    fn dropping_a_required_attribute_is_named() {
        let full = Mask::STATE
            | Mask::AV
            | Mask::PATH_MTU
            | Mask::DEST_QPN
            | Mask::RQ_PSN
            | Mask::MAX_DEST_RD_ATOMIC
            | Mask::MIN_RNR_TIMER;
        assert_eq!(check(QpType::Rc, QpState::Init, QpState::Rtr, full), Ok(()));
        let complaint = check(QpType::Rc, QpState::Init, QpState::Rtr, full - Mask::DEST_QPN).unwrap_err();
        assert_eq!(complaint.to_string(), "attr_mask lacks IBV_QP_DEST_QPN");
    }

    #[test]
    fn attributes_of_the_half_that_an_xrc_qp_lacks_are_passed_over() {
        let both = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        let path = Mask::STATE | Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        let to_rtr = |kind| check(kind, QpState::Init, QpState::Rtr, of_its_half(kind, path | both));
        assert_eq!([to_rtr(QpType::XrcSend), to_rtr(QpType::XrcRecv)], [Ok(()), Ok(())]);
        assert_eq!(to_rtr(QpType::Uc), Err(Complaint::Excess(both)));
        let full = Mask::STATE
            | Mask::SQ_PSN
            | Mask::TIMEOUT
            | Mask::RETRY_CNT
            | Mask::RNR_RETRY
            | Mask::MAX_QP_RD_ATOMIC;
        let to_rts = |kind| check(kind, QpState::Rtr, QpState::Rts, of_its_half(kind, full));
        assert_eq!([to_rts(QpType::XrcSend), to_rts(QpType::XrcRecv)], [Ok(()), Ok(())]);
    }

    #[test]
    fn reset_to_err_does_not_exist() {
        assert_eq!(check(QpType::Rc, QpState::Reset, QpState::Err, Mask::STATE), Err(Complaint::Transition));
        assert_eq!(check(QpType::Uc, QpState::Rtr, QpState::Rtr, Mask::STATE), Err(Complaint::Transition));
    }

    #[test]
    fn reset_is_reached_from_everywhere() {
        for from in STATES {
            assert_eq!(check(QpType::Rc, from, QpState::Reset, Mask::STATE), Ok(()));
        }
    }

    #[test]
    fn cap_is_never_in_the_table() {
        for from in STATES {
            for to in STATES {
                assert!(check(QpType::Rc, from, to, Mask::all()).is_err());
            }
        }
    }
}
