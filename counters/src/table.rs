//! The counters by name. `docs/COUNTERS.md` is this table for people; a test holds it to it.
use std::ops::{AddAssign, Index, IndexMut};

macro_rules! folder {
    (Port) => {
        "counters"
    };
    (Hw) => {
        "hw_counters"
    };
}

/// The folder of sysfs in which a counter stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// `ports/N/counters`: what the IB specification's PortCounters have.
    Port,
    /// `ports/N/hw_counters`: the device's own.
    Hw,
}

impl Group {
    /// The folder's name.
    pub const fn folder(self) -> &'static str {
        match self {
            Group::Port => folder!(Port),
            Group::Hw => folder!(Hw),
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As the kernel spells it.
    pub name: &'static str,
    /// Folder and name, and a zero byte for C.
    pub path: &'static str,
    #[allow(missing_docs)]
    pub group: Group,
    /// What is counted.
    pub unit: &'static str,
    /// When it grows.
    pub meaning: &'static str,
    /// Who in the kernel has a counter of this name.
    pub source: &'static str,
}

macro_rules! counters {
    ($($variant:ident $name:literal $group:ident, $unit:literal, $meaning:literal, $source:literal;)*) => {
        /// A counter.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $(#[doc = $meaning] $variant),* }

        /// All counters, in the order of [`Counter`].
        pub const COUNTERS: &[Counter] = &[$(Counter::$variant),*];

        const ROWS: &[Row] = &[$(Row {
            name: $name, path: concat!(folder!($group), "/", $name, "\0"), group: Group::$group, unit: $unit, meaning: $meaning, source: $source,
        }),*];
    };
}

counters! {
    PortXmitData "port_xmit_data" Port, "4 bytes", "sent, from BTH to ICRC", "core";
    PortRcvData "port_rcv_data" Port, "4 bytes", "received, from BTH to ICRC", "core";
    PortXmitPackets "port_xmit_packets" Port, "packets", "sent, acknowledgements and retries too", "core";
    PortRcvPackets "port_rcv_packets" Port, "packets", "received for one of our QPs, dropped ones too", "core";
    UnicastXmitPackets "unicast_xmit_packets" Port, "packets", "sent to one QP", "core";
    UnicastRcvPackets "unicast_rcv_packets" Port, "packets", "received for one QP", "core";
    MulticastXmitPackets "multicast_xmit_packets" Port, "packets", "sent to a multicast group", "core";
    MulticastRcvPackets "multicast_rcv_packets" Port, "packets", "received for a multicast group, once for each QP, and those that no QP wanted", "core";
    PortRcvErrors "port_rcv_errors" Port, "packets", "received with a wrong ICRC, header, length or pad", "core";
    PortRcvConstraintErrors "port_rcv_constraint_errors" Port, "packets", "received with a P_Key of another partition", "core";
    PortXmitDiscards "port_xmit_discards" Port, "packets", "0: what the kernel does not take is lost unseen, as on a wire", "core";
    PortXmitWait "port_xmit_wait" Port, "ticks", "0: there are no link credits", "core";
    PortXmitConstraintErrors "port_xmit_constraint_errors" Port, "packets", "0: one partition only", "core";
    PortRcvRemotePhysicalErrors "port_rcv_remote_physical_errors" Port, "packets", "0: no EBP delimiter on Ethernet", "core";
    PortRcvSwitchRelayErrors "port_rcv_switch_relay_errors" Port, "packets", "0: this is no switch", "core";
    SymbolError "symbol_error" Port, "errors", "0: the interface's own business", "core";
    LinkErrorRecovery "link_error_recovery" Port, "times", "0: the interface's own business", "core";
    PortLinkDowned "link_downed" Port, "times", "0: the interface's own business", "core";
    LocalLinkIntegrityErrors "local_link_integrity_errors" Port, "times", "0: the interface's own business", "core";
    ExcessiveBufferOverrunErrors "excessive_buffer_overrun_errors" Port, "times", "0: no link flow control", "core";
    Vl15Dropped "VL15_dropped" Port, "packets", "0: no subnet management on Ethernet", "core";

    SentPkts "sent_pkts" Hw, "packets", "as port_xmit_packets", "rxe";
    RcvdPkts "rcvd_pkts" Hw, "packets", "as port_rcv_packets", "rxe";
    DuplicateRequest "duplicate_request" Hw, "packets", "requests received that had been carried out before", "rxe, mlx5";
    OutOfSeqRequest "out_of_seq_request" Hw, "packets", "requests received ahead of the one expected", "rxe";
    RcvdRnrErr "rcvd_rnr_err" Hw, "packets", "RNR NAKs received", "rxe";
    SendRnrErr "send_rnr_err" Hw, "packets", "RNR NAKs sent", "rxe";
    RcvdSeqErr "rcvd_seq_err" Hw, "packets", "sequence error NAKs received", "rxe";
    AckDeferred "ack_deferred" Hw, "times", "0: soft-RoCE's own way to schedule", "rxe";
    RetryExceededErr "retry_exceeded_err" Hw, "requests", "failed with RETRY_EXC_ERR", "rxe";
    RetryRnrExceededErr "retry_rnr_exceeded_err" Hw, "requests", "failed with RNR_RETRY_EXC_ERR", "rxe";
    CompleterRetryErr "completer_retry_err" Hw, "times", "a requester began to send again", "rxe";
    SendErr "send_err" Hw, "packets", "0: what the kernel does not take is lost unseen, as on a wire", "rxe";
    LinkDowned "link_downed" Hw, "times", "0: the interface's own business", "rxe";
    RdmaSends "rdma_sends" Hw, "requests", "SENDs completed", "rxe";
    RdmaRecvs "rdma_recvs" Hw, "requests", "receives completed", "rxe";

    RetransPkts "retrans_pkts" Hw, "packets", "sent again", "efa";
    LocalAckTimeoutErr "local_ack_timeout_err" Hw, "times", "the local ACK timeout ran out", "mlx5";
    ImpliedNakSeqErr "implied_nak_seq_err" Hw, "times", "an answer showed that an earlier packet was lost", "mlx5";
    PacketSeqErr "packet_seq_err" Hw, "packets", "as rcvd_seq_err", "mlx5";
    RnrNakRetryErr "rnr_nak_retry_err" Hw, "packets", "as rcvd_rnr_err", "mlx5";
    OutOfSequence "out_of_sequence" Hw, "packets", "as out_of_seq_request", "mlx5";
    OutOfBuffer "out_of_buffer" Hw, "packets", "messages that found no receive: RNR NAKs sent, and datagrams dropped", "mlx5";
    RxWriteRequests "rx_write_requests" Hw, "requests", "WRITEs of peers carried out", "mlx5";
    RxReadRequests "rx_read_requests" Hw, "requests", "READs of peers carried out", "mlx5";
    RxAtomicRequests "rx_atomic_requests" Hw, "requests", "atomics of peers carried out", "mlx5";
    ReqCqeError "req_cqe_error" Hw, "requests", "send requests that failed, flushed ones not", "mlx5";
    ReqCqeFlushError "req_cqe_flush_error" Hw, "requests", "send requests flushed", "mlx5";
    ReqRemoteInvalidRequest "req_remote_invalid_request" Hw, "requests", "failed with REM_INV_REQ_ERR", "mlx5";
    ReqRemoteAccessErrors "req_remote_access_errors" Hw, "requests", "failed with REM_ACCESS_ERR", "mlx5";
    RespCqeError "resp_cqe_error" Hw, "requests", "receive requests that failed, flushed ones not", "mlx5";
    RespCqeFlushError "resp_cqe_flush_error" Hw, "requests", "receive requests flushed", "mlx5";
    RespLocalLengthError "resp_local_length_error" Hw, "requests", "receives that failed with LOC_LEN_ERR", "mlx5";
    RespRemoteAccessErrors "resp_remote_access_errors" Hw, "requests", "requests of peers refused for their key or rights", "mlx5";
    RxIcrcEncapsulated "rx_icrc_encapsulated" Hw, "packets", "received with a wrong ICRC", "mlx5";
    NpEcnMarkedRocePackets "np_ecn_marked_roce_packets" Hw, "packets", "received with ECN's CE", "mlx5";
    NpCnpSent "np_cnp_sent" Hw, "packets", "CNPs sent", "mlx5";
    RpCnpHandled "rp_cnp_handled" Hw, "packets", "CNPs received", "mlx5";
    RxDrops "rx_drops" Hw, "packets", "received whole, but wanted by no QP", "efa";
    QkeyViolations "qkey_viol_cntr" Hw, "packets", "datagrams with a wrong Q_Key", "field of ibv_port_attr";
}

impl Counter {
    /// What the table says of it.
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}

/// Counters that there are.
pub const COUNT: usize = COUNTERS.len();

/// A value for each counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values(pub [u64; COUNT]);

impl Default for Values {
    fn default() -> Self {
        Values([0; COUNT])
    }
}

impl Values {
    /// All counters of a group with their names and values.
    pub fn of(&self, group: Group) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.iter().filter(move |c| c.row().group == group).map(|&c| (c.row().name, self[c]))
    }

    /// What each counter has grown by since `before`.
    pub fn since(&self, before: &Values) -> Values {
        Values(std::array::from_fn(|i| self.0[i].saturating_sub(before.0[i])))
    }
}

impl Index<Counter> for Values {
    type Output = u64;
    fn index(&self, counter: Counter) -> &u64 {
        &self.0[counter as usize]
    }
}

impl IndexMut<Counter> for Values {
    fn index_mut(&mut self, counter: Counter) -> &mut u64 {
        &mut self.0[counter as usize]
    }
}

impl AddAssign<&Values> for Values {
    fn add_assign(&mut self, other: &Values) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_within_their_folder() {
        for group in [Group::Port, Group::Hw] {
            let mut names: Vec<_> = Values::default().of(group).map(|(name, _)| name).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn the_documentation_has_every_counter_as_the_table_has_it() {
        let mut table = String::from("| name | unit | grows with | name from |\n| --- | --- | --- | --- |\n");
        let mut by_group = [Group::Port, Group::Hw].map(|group| (group, table.clone()));
        for (group, text) in &mut by_group {
            for row in COUNTERS.iter().map(|c| c.row()).filter(|row| row.group == *group) {
                *text += &format!("| `{}` | {} | {} | {} |\n", row.name, row.unit, row.meaning, row.source);
            }
        }
        table.clear();
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COUNTERS.md");
        let page = std::fs::read_to_string(page).expect("docs/COUNTERS.md");
        for (group, text) in &by_group {
            assert!(page.contains(text.as_str()), "{} should be:\n{text}", group.folder());
        }
    }
}
