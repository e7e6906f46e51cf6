//! What stands in the view: for each device the files that the kernel shows of one, in the kernel's formats.
use std::{collections::BTreeMap, fs};

use anyverbs_counters::{Group, Values};

use crate::verbs::{Device, GidRow};

/// Where the devices themselves lie; the classes link there.
pub const DEVICES: &str = "/sys/devices/virtual/anyverbs";
/// Where programs look for a device.
pub const CLASS: &str = "/sys/class/infiniband";
/// Where they look for its character device.
pub const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";
/// Where the character devices lie.
pub const NODES: &str = "/dev/infiniband";

/// A file or a symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    File(String),
    Link(String),
}

/// The folder of a device's port.
pub fn port_folder(device: &str) -> String {
    format!("{DEVICES}/{device}/infiniband/{device}/ports/1")
}

/// The files of a port's counters.
pub fn counters(device: &str, values: &Values) -> Vec<(String, Entry)> {
    let folder = port_folder(device);
    let files = [Group::Port, Group::Hw].into_iter().flat_map(|group| {
        let name = move |name: &str| format!("{}/{name}", group.folder());
        values.of(group).map(move |(file, n)| (name(file), format!("{n}\n")))
    });
    // How old the numbers may be, milliseconds: each look is a new one.
    let lifespan = ("hw_counters/lifespan".to_string(), "0\n".to_string());
    files.chain([lifespan]).map(|(file, text)| (format!("{folder}/{file}"), Entry::File(text))).collect()
}

/// All entries by the path under which the program sees them; folders follow from them. Kernel devices that lie in the real folders
/// are linked to.
pub fn entries(devices: &[Device]) -> BTreeMap<String, Entry> {
    let mut all = BTreeMap::new();
    for folder in [CLASS, VERBS_CLASS, NODES] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            all.insert(path.clone(), Entry::Link(path));
        }
    }
    all.insert(format!("{VERBS_CLASS}/abi_version"), Entry::File("6\n".into()));
    for device in devices {
        one(&mut all, device);
    }
    all
}

fn one(all: &mut BTreeMap<String, Entry>, device: &Device) {
    let (name, node) = (&device.name, &device.node);
    let parent = format!("{DEVICES}/{name}");
    let ib = format!("{parent}/infiniband/{name}");
    let verbs = format!("{parent}/infiniband_verbs/{node}");
    let mut put = |path: String, entry| drop(all.insert(path, entry));
    let file = |text: String| Entry::File(text + "\n");
    let link = |to: &str| Entry::Link(to.to_string());

    put(format!("{CLASS}/{name}"), link(&format!("../../devices/virtual/anyverbs/{name}/infiniband/{name}")));
    let to = format!("../../devices/virtual/anyverbs/{name}/infiniband_verbs/{node}");
    put(format!("{VERBS_CLASS}/{node}"), link(&to));
    put(format!("{NODES}/{node}"), link("/dev/null"));

    let vendor = format!("0x{:04x}", device.vendor_id);
    for (name, text) in [
        ("vendor", vendor.clone()),
        ("device", format!("0x{:04x}", device.part_id)),
        ("subsystem_vendor", vendor),
        ("subsystem_device", format!("0x{:04x}", device.part_id)),
        ("class", "0x020700".into()),
        ("numa_node", "-1".into()),
        ("local_cpus", cpu_mask()),
        ("local_cpulist", read_line("/sys/devices/system/cpu/online").unwrap_or_else(|| "0".into())),
    ] {
        put(format!("{parent}/{name}"), file(text));
    }
    for (_, row) in device.gids.iter().filter(|(_, row)| !row.interface.is_empty()) {
        let interface = &row.interface;
        put(format!("{parent}/net/{interface}"), link(&format!("/sys/class/net/{interface}")));
    }

    for (file_name, text) in [
        ("node_type", "1: CA".into()),
        ("node_guid", colons(&device.node_guid)),
        ("sys_image_guid", colons(&device.sys_image_guid)),
        ("node_desc", name.clone()),
        ("fw_ver", device.fw_ver.clone()),
        ("hw_rev", format!("{:x}", device.hw_ver)),
        ("hca_type", "urxe".into()),
        ("uevent", format!("NAME={name}")),
    ] {
        put(format!("{ib}/{file_name}"), file(text));
    }
    put(format!("{ib}/device"), link("../.."));
    put(format!("{ib}/subsystem"), link("../../../../../../class/infiniband"));
    port(&mut put, &port_folder(name), device);

    // The node is /dev/null, so that `dev` agrees with what stat says of it.
    for (file_name, text) in [
        ("ibdev", name.clone()),
        ("abi_version", "1".into()),
        ("dev", "1:3".into()),
        ("uevent", format!("MAJOR=1\nMINOR=3\nDEVNAME=infiniband/{node}")),
    ] {
        put(format!("{verbs}/{file_name}"), file(text));
    }
    put(format!("{verbs}/device"), link("../.."));
    put(format!("{verbs}/subsystem"), link("../../../../../../class/infiniband_verbs"));
}

fn port(put: &mut impl FnMut(String, Entry), folder: &str, device: &Device) {
    let p = &device.port;
    let mut file = |name: &str, text: String| put(format!("{folder}/{name}"), Entry::File(text + "\n"));
    for (name, text) in [
        ("state", format!("{}: {}", p.state, port_state(p.state))),
        ("phys_state", format!("{}: {}", p.phys_state, phys_state(p.phys_state))),
        ("link_layer", if p.link_layer == 2 { "Ethernet".into() } else { "InfiniBand".into() }),
        ("lid", format!("0x{:x}", p.lid)),
        ("sm_lid", format!("0x{:x}", p.sm_lid)),
        ("lid_mask_count", p.lmc.to_string()),
        ("sm_sl", p.sm_sl.to_string()),
        ("cap_mask", format!("0x{:08x}", p.cap_flags)),
        ("rate", rate(p.width, p.speed)),
    ] {
        file(name, text);
    }
    for (index, pkey) in device.pkeys.iter().enumerate() {
        file(&format!("pkeys/{index}"), format!("0x{pkey:04x}"));
    }
    for index in 0..p.gid_tbl_len {
        let row = device.gids.iter().find(|(at, _)| *at == index).map(|(_, row)| row);
        file(&format!("gids/{index}"), colons(&row.map_or([0; 16], |row| row.gid)));
        // As in the kernel, only rows in use say of which type and interface they are.
        if let Some(GidRow { kind, interface, .. }) = row {
            let kind = if *kind == 2 { "RoCE v2" } else { "IB/RoCE v1" };
            file(&format!("gid_attrs/types/{index}"), kind.into());
            if !interface.is_empty() {
                file(&format!("gid_attrs/ndevs/{index}"), interface.clone());
            }
        }
    }
}

/// Pairs of bytes with colons, as the kernel prints GUIDs and GIDs.
fn colons(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

fn port_state(state: u32) -> &'static str {
    match state {
        0 => "NOP",
        1 => "DOWN",
        2 => "INIT",
        3 => "ARMED",
        4 => "ACTIVE",
        5 => "ACTIVE_DEFER",
        _ => "UNKNOWN",
    }
}

fn phys_state(state: u8) -> &'static str {
    match state {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        _ => "<unknown>",
    }
}

/// `100 Gb/sec (4X EDR)`: lanes times the speed of one.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // In tenths of Gb/s for one lane.
    let (name, tenths) = match speed {
        2 => (" DDR", 50),
        4 => (" QDR", 100),
        8 => (" FDR10", 100),
        16 => (" FDR", 140),
        32 => (" EDR", 250),
        64 => (" HDR", 500),
        128 => (" NDR", 1000),
        _ => ("", 25),
    };
    let all = lanes * tenths;
    let fraction = if all % 10 == 0 { String::new() } else { format!(".{}", all % 10) };
    format!("{}{fraction} Gb/sec ({lanes}X{name})", all / 10)
}

/// All processors, in groups of 32 bits, the highest first.
fn cpu_mask() -> String {
    // SAFETY: sysconf has no preconditions.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
    let group = |n: u32| if n >= 32 { u32::MAX } else { (1 << n) - 1 };
    let groups = (0..count.div_ceil(32)).rev();
    groups.map(|g| format!("{:08x}", group(count - 32 * g))).collect::<Vec<_>>().join(",")
}

fn read_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_string()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Port;

    fn device() -> Device {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        Device {
            name: "urxe0".into(),
            node: "uverbs0".into(),
            node_guid: [2, 1, 2, 3, 4, 5, 6, 7],
            vendor_id: 0x026176,
            part_id: 1,
            port: Port {
                state: 4,
                phys_state: 5,
                gid_tbl_len: 2,
                width: 2,
                speed: 32,
                link_layer: 2,
                ..Port::default()
            },
            pkeys: vec![0xffff],
            gids: vec![(1, GidRow { gid, kind: 2, interface: "eth0".into() })],
            ..Device::default()
        }
    }

    #[test]
    fn a_device_is_shown_in_the_kernels_formats() {
        let all = entries(&[device()]);
        let ib = "/sys/devices/virtual/anyverbs/urxe0/infiniband/urxe0";
        let text = |name: &str| match &all[&format!("{ib}/{name}")] {
            Entry::File(text) => text.clone(),
            Entry::Link(to) => panic!("{name} links to {to}"),
        };
        assert_eq!(text("node_guid"), "0201:0203:0405:0607\n");
        assert_eq!(text("ports/1/state"), "4: ACTIVE\n");
        assert_eq!(text("ports/1/rate"), "100 Gb/sec (4X EDR)\n");
        assert_eq!(text("ports/1/link_layer"), "Ethernet\n");
        assert_eq!(text("ports/1/pkeys/0"), "0xffff\n");
        assert_eq!(text("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0002\n");
        assert_eq!(text("ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(text("ports/1/gid_attrs/ndevs/1"), "eth0\n");
    }

    #[test]
    fn counters_stand_in_both_folders_of_the_port() {
        let mut values = Values::default();
        values[anyverbs_counters::Counter::SentPkts] = 7;
        let files = counters("urxe0", &values);
        let port = "/sys/devices/virtual/anyverbs/urxe0/infiniband/urxe0/ports/1";
        let text =
            |name: &str| files.iter().find(|(path, _)| *path == format!("{port}/{name}")).map(|f| &f.1);
        assert_eq!(text("hw_counters/sent_pkts"), Some(&Entry::File("7\n".into())));
        assert_eq!(text("counters/port_rcv_data"), Some(&Entry::File("0\n".into())));
        assert!(entries(&[device()]).keys().any(|path| path.starts_with(port)));
    }

    #[test]
    fn a_vacant_row_is_zero_and_has_no_type() {
        let all = entries(&[device()]);
        let ports = "/sys/devices/virtual/anyverbs/urxe0/infiniband/urxe0/ports/1";
        let zero = Entry::File("0000:0000:0000:0000:0000:0000:0000:0000\n".into());
        assert_eq!(all[&format!("{ports}/gids/0")], zero);
        assert!(!all.contains_key(&format!("{ports}/gid_attrs/types/0")));
    }

    #[test]
    fn rates_are_lanes_times_speed() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X)");
        assert_eq!(rate(2, 16), "56 Gb/sec (4X FDR)");
        assert_eq!(rate(8, 64), "600 Gb/sec (12X HDR)");
    }
}
