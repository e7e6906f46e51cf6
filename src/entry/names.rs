//! Texts for enum values. All are static; a value outside its enum is "unknown".
use std::ffi::{CStr, c_char, c_int};

export!(ibv_node_type_str => "ibv_node_type_str" @@ "IBVERBS_1.1");
export!(ibv_port_state_str => "ibv_port_state_str" @@ "IBVERBS_1.1");
export!(ibv_event_type_str => "ibv_event_type_str" @@ "IBVERBS_1.1");
export!(ibv_wc_status_str => "ibv_wc_status_str" @@ "IBVERBS_1.1");
export_private!(34: ibv_wr_opcode_str => "ibv_wr_opcode_str");

const NODE_TYPES: [&CStr; 8] = [
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENTS: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// The numbers 12 and 13 are not taken.
const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    UNKNOWN,
    UNKNOWN,
    c"flush",
    c"atomic-write",
];

const UNKNOWN: &CStr = c"unknown";

/// Text of an `enum ibv_node_type`.
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    text(&NODE_TYPES, node_type)
}

/// Text of an `enum ibv_port_state`.
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    text(&PORT_STATES, state)
}

/// Text of an `enum ibv_event_type`.
extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    text(&EVENTS, event)
}

/// Text of an `enum ibv_wc_status`.
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    text(&WC_STATUSES, status)
}

/// Text of an `enum ibv_wr_opcode`. Public in verbs.h, but exported by rdma-core from the private node only.
extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    text(&WR_OPCODES, opcode)
}

fn text(table: &[&'static CStr], value: c_int) -> *const c_char {
    usize::try_from(value).ok().and_then(|i| table.get(i)).unwrap_or(&UNKNOWN).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(p: *const c_char) -> &'static str {
        // SAFETY: every text is a static C string.
        unsafe { CStr::from_ptr(p) }.to_str().unwrap()
    }

    #[test]
    fn values_outside_their_enum_are_unknown() {
        for f in
            [ibv_node_type_str, ibv_port_state_str, ibv_event_type_str, ibv_wc_status_str, ibv_wr_opcode_str]
        {
            for value in [-1, 24, i32::MAX, i32::MIN] {
                assert_eq!(read(f(value)), "unknown");
            }
        }
        assert_eq!(read(ibv_wr_opcode_str(12)), "unknown");
    }

    #[test]
    fn last_values_have_their_own_text() {
        assert_eq!(read(ibv_node_type_str(7)), "unspecified");
        assert_eq!(read(ibv_port_state_str(5)), "active defer");
        assert_eq!(read(ibv_event_type_str(20)), "Device link speed change");
        assert_eq!(read(ibv_wc_status_str(23)), "TM software rendezvous");
        assert_eq!(read(ibv_wr_opcode_str(15)), "atomic-write");
    }
}
