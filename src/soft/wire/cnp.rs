//! Congestion Notification Packets (IBA Annex A17): slow down the queue pair that they name.
use super::bth::{self, BthView, DEFAULT_PKEY};
use super::{icrc, put24};
use crate::soft::types::Qpn;

/// The opcode.
pub const OPCODE: u8 = 0x81;
/// Bytes of the UDP payload: BTH, 16 reserved bytes, ICRC.
pub const LEN: usize = bth::LEN + 16 + icrc::LEN;

/// The datagram is one, whole.
pub fn is_cnp(datagram: &[u8]) -> bool {
    datagram.len() == LEN
        && BthView::new_checked(datagram).is_ok_and(|view| view.opcode() == OPCODE && view.version() == 0)
}

/// One for queue pair `to`, without ICRC.
pub fn emit(to: Qpn) -> [u8; LEN] {
    let mut b = [0; LEN];
    b[0] = OPCODE;
    b[1] = 0x40;
    b[2..4].copy_from_slice(&DEFAULT_PKEY.to_be_bytes());
    // BECN.
    b[4] = 0x40;
    put24(&mut b, 5, to.0);
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_recognized_and_nothing_else() {
        let mut cnp = emit(Qpn(0x123456));
        assert!(is_cnp(&cnp));
        let view = BthView::new_checked(&cnp[..]).unwrap();
        assert_eq!((view.dest_qpn(), view.becn(), view.psn().get()), (Qpn(0x123456), true, 0));
        assert!(!is_cnp(&cnp[..LEN - 1]));
        cnp[0] = 0x11;
        assert!(!is_cnp(&cnp));
    }
}
