//! Devices by netlink: `RDMA_NL_NLDEV`.
use super::{Places, Uverbs};
use crate::sys::errno::Errno;
use crate::sys::folder;
use crate::sys::netlink::{Attributes, Request};

const NETLINK_RDMA: i32 = 20;
const NLDEV: u16 = 5 << 10;
const CMD_GET: u16 = 1;
const CMD_SYS_GET: u16 = 6;
const CMD_GET_CHARDEV: u16 = 15;

const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const NODE_GUID: u16 = 6;
const DEV_NODE_TYPE: u16 = 14;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;
const UVERBS_DRIVER_ID: u16 = 73;
const COPY_ON_FORK: u16 = 93;

/// All devices of this network namespace.
///
/// # Errors
/// What the kernel answers; EPROTO where it leaves out what every device has.
pub fn devices(places: &Places) -> Result<Vec<Uverbs>, Errno> {
    let request = Request::new(NETLINK_RDMA, NLDEV + CMD_GET, (libc::NLM_F_ACK | libc::NLM_F_DUMP) as u16);
    let mut found = Vec::new();
    let mut complete = true;
    request.ask(|body| match device(body, places) {
        Some(device) => found.push(device),
        None => complete = false,
    })?;
    if !complete {
        return Err(Errno::EPROTO);
    }
    found.retain_mut(|device| chardev(device).is_ok() || by_sysfs(device, places).is_some());
    Ok(found)
}

/// Whether pinned pages are copied at a fork; kernels that do not tell do not.
pub fn copies_on_fork() -> bool {
    let mut told = false;
    let asked = Request::new(NETLINK_RDMA, NLDEV + CMD_SYS_GET, libc::NLM_F_ACK as u16).ask(|body| {
        told |= says_copy_on_fork(body);
    });
    asked.is_ok() && told
}

fn says_copy_on_fork(body: &[u8]) -> bool {
    Attributes(body).any(|(kind, value)| kind == COPY_ON_FORK && number(value) == Some(1))
}

/// A device from one message of the dump.
fn device(body: &[u8], places: &Places) -> Option<Uverbs> {
    let (mut name, mut node_type, mut index, mut guid, mut ports) = (None, None, None, None, None);
    for (kind, value) in Attributes(body) {
        match kind {
            DEV_NAME => name = Some(text(value)),
            DEV_NODE_TYPE => node_type = value.first().map(|&n| i32::from(n)),
            DEV_INDEX => index = number(value),
            NODE_GUID => guid = number(value),
            PORT_INDEX => ports = number(value),
            _ => {}
        }
    }
    let name = name?;
    Some(Uverbs {
        path: places.of_device(&name),
        name,
        node_type: node_type?,
        index: index? as i32,
        guid: guid?.to_be(),
        ports: ports? as u32,
        ..Uverbs::default()
    })
}

/// Asks for the node of a device.
fn chardev(device: &mut Uverbs) -> Result<(), Errno> {
    let mut request = Request::new(NETLINK_RDMA, NLDEV + CMD_GET_CHARDEV, libc::NLM_F_ACK as u16);
    request.attribute(DEV_INDEX, &(device.index as u32).to_ne_bytes());
    request.attribute(CHARDEV_TYPE, b"uverbs\0");
    request.ask(|body| answer(device, body))?;
    if device.node.is_empty() { Err(Errno::ENODEV) } else { Ok(()) }
}

fn answer(device: &mut Uverbs, body: &[u8]) {
    for (kind, value) in Attributes(body) {
        match kind {
            CHARDEV_NAME => device.node = text(value),
            CHARDEV => device.number = number(value).map_or(0, decode_number),
            CHARDEV_ABI => device.abi = number(value).unwrap_or(0) as u32,
            UVERBS_DRIVER_ID => device.driver = number(value).unwrap_or(0) as u32,
            _ => {}
        }
    }
}

/// The node of a device from sysfs, on kernels that do not tell by netlink.
fn by_sysfs(device: &mut Uverbs, places: &Places) -> Option<()> {
    let node = folder::entries(&device.path.join("device/infiniband_verbs")).ok()?.into_iter().next()?;
    let of_node = super::sysfs::device(places, &node)?;
    (of_node.name == device.name).then(|| {
        device.node = node;
        device.number = of_node.number;
        device.abi = of_node.abi;
    })
}

/// The kernel's `huge_encode_dev` as the C library's `dev_t`.
fn decode_number(encoded: u64) -> u64 {
    let major = (encoded >> 8) & 0xfff;
    let minor = encoded & 0xff | (encoded >> 12) & 0xf_ff00;
    libc::makedev(major as u32, minor as u32)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|&b| b == 0).next().unwrap_or_default()).into_owned()
}

/// A number of one, four or eight bytes.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        1 => Some(value[0].into()),
        4 => Some(u32::from_ne_bytes(value.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut request = Request::new(NETLINK_RDMA, 0, 0);
        let head = request.bytes.len();
        list.iter().for_each(|(kind, value)| request.attribute(*kind, value));
        request.bytes.split_off(head)
    }

    fn places() -> Places {
        Places { sysfs: PathBuf::from("/sys"), dev: PathBuf::from("/dev") }
    }

    #[test]
    fn a_device_is_read_from_a_dump_and_its_node_from_the_answer() {
        let guid = 0x0102_0304_0506_0708_u64;
        let dump = attributes(&[
            (DEV_INDEX, &3u32.to_ne_bytes()),
            (DEV_NAME, b"rxe0\0"),
            (PORT_INDEX, &1u32.to_ne_bytes()),
            (NODE_GUID, &guid.to_ne_bytes()),
            (DEV_NODE_TYPE, &[1]),
            (200, b"whatever"),
        ]);
        let mut d = device(&dump, &places()).unwrap();
        assert_eq!((d.name.as_str(), d.index, d.node_type, d.ports), ("rxe0", 3, 1, 1));
        assert_eq!(
            (d.guid.to_ne_bytes(), d.path.to_str()),
            ([1, 2, 3, 4, 5, 6, 7, 8], Some("/sys/class/infiniband/rxe0"))
        );
        answer(
            &mut d,
            &attributes(&[
                (CHARDEV_NAME, b"uverbs0\0"),
                (CHARDEV, &(231u64 << 8 | 0xc0).to_ne_bytes()),
                (CHARDEV_ABI, &2u64.to_ne_bytes()),
                (UVERBS_DRIVER_ID, &14u32.to_ne_bytes()),
            ]),
        );
        assert_eq!((d.node.as_str(), d.number, d.abi, d.driver), ("uverbs0", libc::makedev(231, 192), 2, 14));
    }

    #[test]
    fn a_device_without_one_of_the_five_attributes_is_refused() {
        let all: [(u16, &[u8]); 5] = [
            (DEV_INDEX, &[3, 0, 0, 0]),
            (DEV_NAME, b"rxe0\0"),
            (PORT_INDEX, &[1, 0, 0, 0]),
            (NODE_GUID, &[0; 8]),
            (DEV_NODE_TYPE, &[1]),
        ];
        assert!(device(&attributes(&all), &places()).is_some());
        for missing in 0..5 {
            let some: Vec<_> =
                all.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, a)| *a).collect();
            assert!(device(&attributes(&some), &places()).is_none(), "{missing}");
        }
    }

    #[test]
    fn a_kernel_that_copies_at_a_fork_says_so() {
        assert!(says_copy_on_fork(&attributes(&[(66, &[1]), (COPY_ON_FORK, &[1])])));
        assert!(!says_copy_on_fork(&attributes(&[(COPY_ON_FORK, &[0])])));
        assert!(!says_copy_on_fork(&attributes(&[(66, &[1])])));
    }

    #[test]
    fn device_numbers_with_large_minors_are_decoded() {
        for (major, minor) in [(231, 192), (1, 3), (511, 0x12345)] {
            let encoded = u64::from(minor & 0xff) | major << 8 | u64::from(minor & !0xff) << 12;
            assert_eq!(decode_number(encoded), libc::makedev(major as u32, minor));
        }
    }
}
