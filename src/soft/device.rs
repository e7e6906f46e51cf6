//! The embedded devices: which are listed, under which names, and what they say of themselves.
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::gid::GidTable;
use super::lid::Lids;
use super::types::{MAX_MESSAGE, Mtu};
use crate::abi::*;
use crate::sys::settings;

/// What one device offers, and what the queues and tables enforce.
pub mod limits {
    /// Queue pairs.
    pub const MAX_QP: u32 = 65536;
    /// Outstanding work requests of a send or receive queue.
    pub const MAX_QP_WR: u32 = 16384;
    /// Scatter/gather elements of a work request.
    pub const MAX_SGE: u32 = 32;
    /// Bytes of inline data.
    pub const MAX_INLINE: u32 = 1024;
    /// Completion queues.
    pub const MAX_CQ: u32 = 65536;
    /// Entries of a completion queue.
    pub const MAX_CQE: u32 = (1 << 22) - 1;
    /// Memory regions; the table has one entry more.
    pub const MAX_MR: u32 = 65535;
    /// Memory windows, where there are no regions: both share the table.
    pub const MAX_MW: u32 = MAX_MR;
    /// Protection domains.
    pub const MAX_PD: u32 = 32768;
    /// Outstanding RDMA READs and atomics of a queue pair, in either direction.
    pub const MAX_RD_ATOMIC: u32 = 128;
    /// Address handles.
    pub const MAX_AH: u32 = 1 << 17;
    /// Shared receive queues.
    pub const MAX_SRQ: u32 = 65536;
    /// Outstanding work requests of a shared receive queue.
    pub const MAX_SRQ_WR: u32 = 16384;
    /// Scatter/gather elements of a receive in a shared receive queue.
    pub const MAX_SRQ_SGE: u32 = 32;
    /// Multicast groups that QPs of a process may be attached to.
    pub const MAX_MCAST_GRP: u32 = 8192;
    /// QPs of a process in one multicast group.
    pub const MAX_MCAST_QP_ATTACH: u32 = 256;
    /// QPs of a process in groups, each counted once for each group.
    pub const MAX_TOTAL_MCAST_QP_ATTACH: u32 = 65536;
    /// Bytes of device memory.
    pub const MAX_DM_SIZE: u64 = 16 << 20;
    /// Completion counters.
    pub const MAX_COMP_CNTR: u32 = 65536;
    /// Partition keys: the default one.
    pub const MAX_PKEYS: u16 = 1;
}

/// Embedded devices that `ANYVERBS_DEVICES` can ask for.
pub const MAX_DEVICES: usize = 64;
/// The only partition key, host byte order: full membership of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Of our own: a locally administered OUI, "av".
pub const VENDOR_ID: u32 = 0x02_6176;
/// The first of our parts.
pub const VENDOR_PART_ID: u32 = 1;
/// The clock of completion timestamps counts nanoseconds, in kHz.
pub const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// What the embedded device can beyond the minimum.
const CAP_FLAGS: u32 = IBV_DEVICE_UD_AV_PORT_ENFORCE
    | IBV_DEVICE_CURR_QP_STATE_MOD
    | IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_SRQ_RESIZE
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_XRC
    | IBV_DEVICE_MEM_MGT_EXTENSIONS
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B;

/// The same beyond the first 32 flags.
const CAP_FLAGS_EX: u64 = IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_FLUSH_PERSISTENT | IBV_DEVICE_ATOMIC_WRITE;

/// An embedded device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// 0 for `urxe0`.
    pub index: u32,
    /// The name that programs see.
    pub name: String,
    /// The name of its node under /dev/infiniband, as the view library shows it; nothing is there otherwise.
    pub node: String,
    /// EUI-64, network byte order.
    pub guid: [u8; 8],
}

/// The devices to list. `ANYVERBS_SOFT=1` lists them always, `0` never; otherwise they are listed where the kernel has none.
/// `ANYVERBS_DEVICES` says how many, `ANYVERBS_DEVICE_NAME` what they are called. None of this is obeyed in a setuid program.
pub fn listed(kernel_has_devices: bool) -> Vec<Device> {
    let var = |name| if crate::sys::is_setuid() { None } else { std::env::var(name).ok() };
    let wanted = settings::choose("ANYVERBS_SOFT");
    if !wanted.map_or(!kernel_has_devices, |word| word == 1) {
        return Vec::new();
    }
    let base = var("ANYVERBS_DEVICE_NAME");
    let name = base.as_deref().filter(|n| is_name(n)).unwrap_or_else(|| {
        if let Some(bad) = &base {
            let reason = format_args!("ANYVERBS_DEVICE_NAME={bad:?} is not a device name; urxe0 is used");
            settings::refuse("ANYVERBS_DEVICE_NAME", reason);
        }
        "urxe0"
    });
    let host = host_hash();
    // Beyond any number that the kernel gives.
    let first_node = if kernel_has_devices { 1000 } else { 0 };
    (0..count(var("ANYVERBS_DEVICES").as_deref()))
        .map(|index| Device {
            index,
            name: nth_name(name, index),
            node: format!("uverbs{}", first_node + index),
            guid: guid(host, index + 1),
        })
        .collect()
}

impl Device {
    /// `ibv_query_device`.
    pub fn attr(&self) -> ibv_device_attr {
        use limits::*;
        let mut a = ibv_device_attr::zeroed();
        for (to, from) in a.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
            *to = from as _;
        }
        a.node_guid = u64::from_ne_bytes(self.guid);
        a.sys_image_guid = u64::from_ne_bytes(guid(host_hash(), 0));
        a.max_mr_size = u64::MAX;
        a.page_size_cap = 0xffff_f000;
        a.vendor_id = VENDOR_ID;
        a.vendor_part_id = VENDOR_PART_ID;
        a.hw_ver = 1;
        a.max_qp = MAX_QP as _;
        a.max_qp_wr = MAX_QP_WR as _;
        a.device_cap_flags = CAP_FLAGS;
        a.max_sge = MAX_SGE as _;
        a.max_sge_rd = MAX_SGE as _;
        a.max_cq = MAX_CQ as _;
        a.max_cqe = MAX_CQE as _;
        a.max_mr = MAX_MR as _;
        a.max_mw = MAX_MW as _;
        a.max_pd = MAX_PD as _;
        a.max_qp_rd_atom = MAX_RD_ATOMIC as _;
        a.max_res_rd_atom = (MAX_QP * MAX_RD_ATOMIC) as _;
        a.max_qp_init_rd_atom = MAX_RD_ATOMIC as _;
        a.atomic_cap = IBV_ATOMIC_HCA as _;
        a.max_mcast_grp = MAX_MCAST_GRP as _;
        a.max_mcast_qp_attach = MAX_MCAST_QP_ATTACH as _;
        a.max_total_mcast_qp_attach = MAX_TOTAL_MCAST_QP_ATTACH as _;
        a.max_ah = MAX_AH as _;
        a.max_srq = MAX_SRQ as _;
        a.max_srq_wr = MAX_SRQ_WR as _;
        a.max_srq_sge = MAX_SRQ_SGE as _;
        a.max_pkeys = MAX_PKEYS;
        a.local_ca_ack_delay = 15;
        a.phys_port_cnt = 1;
        a
    }

    /// `ibv_query_device_ex`.
    pub fn attr_ex(&self) -> ibv_device_attr_ex {
        const SEND: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
        const UC: u32 = SEND | IBV_ODP_SUPPORT_WRITE;
        const FLUSH: u32 = IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE;
        const RC: u32 = UC | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | FLUSH;
        let mut a = ibv_device_attr_ex::zeroed();
        a.orig_attr = self.attr();
        a.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
        a.odp_caps.per_transport_caps =
            ibv_odp_caps_per_transport_caps { rc_odp_caps: RC, uc_odp_caps: UC, ud_odp_caps: SEND };
        a.xrc_odp_caps = RC;
        a.completion_timestamp_mask = u64::MAX;
        a.hca_core_clock = CORE_CLOCK_KHZ;
        a.device_cap_flags_ex = u64::from(CAP_FLAGS) | CAP_FLAGS_EX;
        a.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
        a.max_dm_size = limits::MAX_DM_SIZE;
        a.phys_port_cnt_ex = 1;
        a
    }
}

/// Width times speed of the port in units of 100 Mbit/s, as `ibv_query_port_speed` gives it: four lanes of 25 Gbit/s.
pub const PORT_SPEED: u64 = 4 * 250;

/// `ibv_query_port` of port 1. It is up unless its main interface went down; this host can be reached in any case.
pub fn port_attr(gids: &GidTable) -> ibv_port_attr {
    /// IBV_PORT_PHYS_STATE LinkUp, width 4X, and the speed of EDR, as ibv_devinfo decodes them.
    const LINK_UP: u8 = 5;
    /// IBV_PORT_PHYS_STATE Disabled.
    const DISABLED: u8 = 3;
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    let mut a = ibv_port_attr::zeroed();
    let is_up = gids.is_up();
    a.state = if is_up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN } as _;
    a.max_mtu = Mtu::B4096.raw();
    a.active_mtu = active_mtu(gids).raw();
    a.gid_tbl_len = gids.len() as _;
    a.port_cap_flags = (IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS) as _;
    a.max_msg_sz = MAX_MESSAGE;
    a.pkey_tbl_len = limits::MAX_PKEYS;
    a.max_vl_num = 1;
    a.active_width = WIDTH_4X;
    a.active_speed = SPEED_EDR;
    a.active_speed_ex = u32::from(SPEED_EDR);
    a.phys_state = if is_up { LINK_UP } else { DISABLED };
    match port_lid() {
        0 => {
            a.link_layer = IBV_LINK_LAYER_ETHERNET as _;
            a.flags = IBV_QPF_GRH_REQUIRED as _;
        }
        lid => {
            a.link_layer = IBV_LINK_LAYER_INFINIBAND as _;
            // The port is its own subnet manager's, as in a subnet of one host.
            (a.lid, a.sm_lid) = (lid, lid);
            a.subnet_timeout = 18;
        }
    }
    a
}

/// The port's MTU: what the main interface carries. Unless `ANYVERBS_LIDS` says otherwise, the LIDs of an InfiniBand-looking
/// port lead to this host only, where memory carries all that a message may have.
pub fn active_mtu(gids: &GidTable) -> Mtu {
    if port_lid() == 0 || !Lids::given().is_empty() { gids.active_mtu() } else { Mtu::B4096 }
}

/// The port's LID: 0 on Ethernet; with `ANYVERBS_LINK_LAYER=infiniband` what `ANYVERBS_LIDS` gives this host, else a unicast
/// LID that all processes of this host and network namespace derive alike from the host's identity. Only LIDs of that
/// table lead to other hosts, in RoCE v2 packets. By GID they are reached as on Ethernet.
pub fn port_lid() -> u16 {
    const UNKNOWN: u32 = u32::MAX;
    static LID: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = LID.load(Relaxed);
    if known != UNKNOWN {
        return known as u16;
    }
    let wanted = if crate::sys::is_setuid() { None } else { std::env::var("ANYVERBS_LINK_LAYER").ok() };
    let given = || Lids::given().own().map(|(lid, _)| lid);
    let lid =
        if is_infiniband(wanted.as_deref()) { given().unwrap_or_else(|| lid_of(host_hash())) } else { 0 };
    LID.store(u32::from(lid), Relaxed);
    lid
}

/// A unicast LID, 1 to 0xbfff (IBA 4.1.3).
fn lid_of(host: u64) -> u16 {
    (1 + (host ^ host >> 32) % 0xbfff) as u16
}

/// What `ANYVERBS_LINK_LAYER` asks for.
pub fn is_infiniband(value: Option<&str>) -> bool {
    match value.map(|v| v.trim().to_ascii_lowercase()).as_deref() {
        Some("infiniband" | "ib") => true,
        None | Some("" | "ethernet" | "roce") => false,
        Some(other) => {
            let reason = format_args!(
                "ANYVERBS_LINK_LAYER={other:?}: expected ethernet or infiniband; ethernet is used"
            );
            settings::refuse("ANYVERBS_LINK_LAYER", reason);
            false
        }
    }
}

/// `num_comp_vectors`: the CPUs that this process may use.
pub fn comp_vectors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// How many devices `ANYVERBS_DEVICES` asks for.
pub fn count(value: Option<&str>) -> u32 {
    let Some(value) = value else { return 1 };
    match value.trim().parse() {
        Ok(n @ 1..=64) => n,
        _ => {
            let reason = format_args!("ANYVERBS_DEVICES={value:?} is not a number from 1 to 64; 1 is used");
            settings::refuse("ANYVERBS_DEVICES", reason);
            1
        }
    }
}

/// Whether this can be the first device's name: what fits in 63 characters with any index, and is no path or list.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    (1..=59).contains(&name.len()) && name.bytes().all(plain)
}

/// The name of the device `n` places after `first`: a number at its end counts on, and is added where there is none.
pub fn nth_name(first: &str, n: u32) -> String {
    // Of a long number its end counts; zeros before it stay, so that the first name is what was asked for.
    let digits = first.bytes().rev().take(9).take_while(u8::is_ascii_digit).count();
    let number = &first[first.len() - digits..];
    let number = match number.trim_start_matches('0') {
        "" if digits > 0 => "0",
        number => number,
    };
    let stem = &first[..first.len() - number.len()];
    format!("{stem}{}", number.parse().unwrap_or(0) + u64::from(n))
}

/// Tells hosts and network namespaces apart. The machine id outlives a reboot; the boot id is the stopgap where it is missing.
fn host_hash() -> u64 {
    // Not a Once, which a forked child could find half done.
    static HASH: AtomicU64 = AtomicU64::new(0);
    let known = HASH.load(Relaxed);
    if known != 0 {
        return known;
    }
    let ids = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"];
    let read = |path: &&str| std::fs::read_to_string(path).ok().filter(|id| id.trim().len() >= 32);
    let host = ids.iter().find_map(read).unwrap_or_default();
    let netns = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
    let bytes = host.trim().bytes().chain(netns.to_le_bytes());
    // FNV-1a.
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    HASH.store(hash, Relaxed);
    hash
}

/// A locally administered EUI-64, which is never zero; `which` 0 is the host's, the devices follow.
fn guid(host: u64, which: u32) -> [u8; 8] {
    let mut mixed = host ^ u64::from(which).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 29;
    let mut bytes = mixed.to_be_bytes();
    // Locally administered, not multicast.
    bytes[0] = bytes[0] & 0xfc | 2;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> Device {
        Device { index: 0, name: "urxe0".into(), node: "uverbs0".into(), guid: guid(host_hash(), 1) }
    }

    #[test]
    fn names_count_on() {
        assert_eq!(nth_name("urxe0", 0), "urxe0");
        assert_eq!(nth_name("mlx5_0", 3), "mlx5_3");
        assert_eq!(nth_name("mlx5_9", 1), "mlx5_10");
        assert_eq!((nth_name("roce", 0), nth_name("roce", 1)), ("roce0".into(), "roce1".into()));
        assert_eq!(nth_name("7", 1), "8");
        assert_eq!((nth_name("x00", 0), nth_name("x09", 1)), ("x00".into(), "x010".into()));
        let long = "d18446744073709551615";
        assert_eq!((nth_name(long, 0).as_str(), nth_name(long, 1).as_str()), (long, "d18446744073709551616"));
        for bad in ["", "a/b", "a:1", "a b", "ü0", &"x".repeat(60)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(is_name("rocep1s0f0") && is_name("mlx5_0"));
    }

    #[test]
    fn the_link_layer_is_a_choice() {
        let all = [None, Some("InfiniBand"), Some("ib"), Some("Ethernet"), Some(""), Some("iwarp")];
        assert_eq!(all.map(is_infiniband), [false, true, true, false, false, false]);
        for host in [0, 1, u64::MAX, 0x1234_5678_9abc_def0, host_hash()] {
            assert!((1..=0xbfff).contains(&lid_of(host)));
        }
    }

    #[test]
    fn the_number_of_devices_is_checked() {
        assert_eq!([None, Some("3"), Some("0"), Some("x"), Some("65")].map(count), [1, 3, 1, 1, 1]);
    }

    #[test]
    fn guids_are_stable_distinct_and_local() {
        let all: Vec<_> = (0..65).map(|i| guid(host_hash(), i)).collect();
        assert_eq!(all[1], first().guid);
        for (i, g) in all.iter().enumerate() {
            assert_eq!(g[0] & 3, 2);
            assert!(!all[..i].contains(g));
        }
        assert_ne!(guid(0, 0), [0; 8]);
    }

    #[test]
    fn attributes_are_what_programs_insist_on() {
        let a = first().attr_ex();
        let o = &a.orig_attr;
        assert!(o.vendor_id != 0 && o.vendor_id != 0x02c9 && o.node_guid != 0 && o.sys_image_guid != 0);
        assert!(
            o.max_sge >= 30 && o.max_srq_sge >= 16 && o.max_qp_rd_atom >= 16 && limits::MAX_INLINE >= 220
        );
        assert!(o.max_qp_wr >= 8192 && o.max_srq_wr >= 1024 && o.max_cqe >= 1 << 20 && o.phys_port_cnt == 1);
        assert_eq!(o.atomic_cap, IBV_ATOMIC_HCA);
        assert_eq!(a.device_cap_flags_ex as u32, o.device_cap_flags);
        assert!(o.fw_ver[0] != 0 && *o.fw_ver.last().unwrap() == 0);
        assert!(a.max_dm_size >= 1 << 20);
    }

    #[test]
    fn the_port_is_active_ethernet_with_gids() {
        let gids = GidTable::new();
        let p = port_attr(&gids);
        assert_eq!((p.state, p.phys_state, p.link_layer), (4, 5, 2));
        assert!(p.gid_tbl_len > 0 && p.pkey_tbl_len == 1 && p.max_msg_sz == 1 << 31 && p.max_mtu == 5);
        assert_eq!((p.active_width, p.active_speed, PORT_SPEED), (2, 32, 1000));
        assert!((1..=5).contains(&p.active_mtu));
    }

    #[test]
    fn listing_obeys_the_environment() {
        // Only what the environment of the tests leaves open.
        if std::env::var_os("ANYVERBS_SOFT").is_none() {
            assert!(listed(true).is_empty());
            let devices = listed(false);
            assert!(!devices.is_empty() && devices[0].guid == first().guid);
        }
    }
}
