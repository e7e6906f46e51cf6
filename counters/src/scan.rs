//! The processes of this host that use urxe, as far as /proc lets this one look: those of its own user, or all for root.
//!
//! Their counters lie in memory files, which are opened below /proc/PID/fd and read. Nothing of the processes is asked, so that
//! stopped and busy ones are seen as well, and those that are not looked at have no cost.
use crate::file::{self, description as d};
use crate::raw::{self, DIRECT, Direct, EVENTS, RECORD};
use crate::table::{COUNT, Values};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Looks at a file that its owner is just changing, before it is taken as it is.
const LOOKS: usize = 1000;
/// O_NONBLOCK and O_NOCTTY: whatever a name leads to, opening it neither waits nor changes anything.
const HARMLESS: i32 = 0o4000 | 0o400;

/// A process with QPs, or one that had some.
#[derive(Clone, Debug)]
pub struct Process {
    #[allow(missing_docs)]
    pub pid: u32,
    /// As /proc/PID/comm has it.
    pub name: String,
    #[allow(missing_docs)]
    pub uid: u32,
    /// The network namespace that it is in, by inode; 0 where that is not told.
    pub netns: u64,
    /// What it has done by device; QPs that are gone count too.
    pub ports: Vec<Port>,
    #[allow(missing_docs)]
    pub qps: Vec<Qp>,
}

/// The one port of a device.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// 0 for the first of the embedded devices.
    pub index: usize,
    /// The device's name.
    pub device: String,
    #[allow(missing_docs)]
    pub values: Values,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    #[allow(missing_docs)]
    pub qpn: u32,
    #[allow(missing_docs)]
    pub device: String,
    /// By the names of verbs.h, without their prefix.
    pub kind: &'static str,
    #[allow(missing_docs)]
    pub state: &'static str,
    /// One of [`file::PATHS`].
    pub path: &'static str,
    /// Bytes; 0 where it is not connected.
    pub mtu: u32,
    /// The QP that it is connected to.
    pub peer: Option<Peer>,
    #[allow(missing_docs)]
    pub values: Values,
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    #[allow(missing_docs)]
    pub qpn: u32,
    /// The address that the connection was made to; none of a port without addresses.
    pub address: Option<IpAddr>,
    /// The process, where it is one of this host's.
    pub pid: Option<u32>,
}

/// All processes that can be seen, by process id.
pub fn processes() -> Vec<Process> {
    let found: Vec<Found> = pids().into_iter().filter_map(Found::open).collect();
    let by_nonce: BTreeMap<u64, &Found> = found.iter().map(|f| (f.nonce, f)).collect();
    found.iter().map(|f| f.read(&by_nonce)).collect()
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// A process whose files are open.
struct Found {
    pid: u32,
    uid: u32,
    nonce: u64,
    files: Vec<File>,
    publication: Option<File>,
}

/// A record as it was read.
struct Record {
    device: usize,
    direct: Direct,
    words: Vec<u64>,
}

impl Found {
    /// The process's own files; none of a process without, or of one that only inherited its parent's.
    fn open(pid: u32) -> Option<Found> {
        let folder = Path::new("/proc").join(pid.to_string()).join("fd");
        let mut found = Found { pid, uid: 0, nonce: 0, files: Vec::new(), publication: None };
        let mut inner = None;
        // One may hold a file more than once, and a child those of its parent.
        let mut seen = Vec::new();
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Some(name) = target.to_str().and_then(memory_file) else { continue };
            let Ok(file) = open(&entry.path()) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            if !metadata.file_type().is_file() || seen.contains(&metadata.ino()) {
                continue;
            }
            seen.push(metadata.ino());
            if name == file::PUBLICATION {
                found.publication = Some(file);
                continue;
            }
            let Ok(header) = words(&file, 0, file::AT_DIRECT + 1) else { continue };
            let is_ours = header[file::AT_MAGIC] == file::MAGIC && header[file::AT_VERSION] == file::VERSION;
            let inner = *inner.get_or_insert_with(|| innermost_pid(pid));
            if is_ours && u64::from(inner) == header[file::AT_PID] {
                (found.nonce, found.uid) = (header[file::AT_NONCE], metadata.uid());
                found.files.push(file);
            }
        }
        (!found.files.is_empty()).then_some(found)
    }

    fn read(&self, others: &BTreeMap<u64, &Found>) -> Process {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let mut ports: BTreeMap<usize, Port> = BTreeMap::new();
        let mut qps = Vec::new();
        for file in &self.files {
            let (header, records) = steadily(file, others).unwrap_or_default();
            if header.is_empty() {
                continue;
            }
            for device in 0..file::DEVICES {
                let Some(name) = device_name(&header, device) else { continue };
                let port = ports.entry(device).or_default();
                (port.index, port.device) = (device, name);
                let sum = &mut port.values;
                let at = file::AT_LEFT + device * file::VALUES;
                let mut left = Values::default();
                left.0.copy_from_slice(&header[at..at + COUNT]);
                *sum += &left;
                if device == 0 {
                    raw::add_events(sum, &header[file::AT_PORT..][..EVENTS]);
                }
            }
            for record in records {
                let values = raw::values(record.words[d::KIND], &record.words, &record.direct);
                let port = ports.entry(record.device).or_default();
                port.values += &values;
                qps.extend(describe(&record, &port.device, values, others));
            }
        }
        qps.sort_by_key(|qp| qp.qpn);
        let name = comm.trim_end().to_string();
        let (pid, uid, netns) = (self.pid, self.uid, network(self.pid));
        Process { pid, name, uid, netns, ports: ports.into_values().collect(), qps }
    }

    /// What a QP of this process has done to its peer's memory without its help.
    fn direct(&self, qpn: u32) -> Option<Direct> {
        let header = words(self.files.first()?, 0, file::AT_SLOTS + file::SLOTS).ok()?;
        let slot = u64::from(qpn >> 12);
        let ordinal = header[file::AT_SLOTS..].iter().position(|&s| slot != 0 && s == slot)?;
        let offset = header[file::AT_DIRECT] + file::direct_offset(ordinal, qpn as usize & 0xfff) as u64;
        let read = words(self.publication.as_ref()?, offset, DIRECT).ok()?;
        read.try_into().ok()
    }
}

/// Header and records while no QP goes away.
fn steadily(file: &File, others: &BTreeMap<u64, &Found>) -> io::Result<(Vec<u64>, Vec<Record>)> {
    let mut last = Default::default();
    for _ in 0..LOOKS {
        let header = words(file, 0, file::AT_RECORDS)?;
        let used = (header[file::AT_USED] as usize).min(file::RECORDS);
        let mut records = Vec::new();
        for index in 0..used {
            records.extend(record(file, index, others)?);
        }
        let generation = words(file, (file::GENERATION * 8) as u64, 1)?[0];
        let is_steady = generation & 1 == 0 && generation == header[file::GENERATION];
        last = (header, records);
        if is_steady {
            break;
        }
        std::thread::yield_now();
    }
    Ok(last)
}

/// A record in use, with a description of one piece.
fn record(file: &File, index: usize, others: &BTreeMap<u64, &Found>) -> io::Result<Option<Record>> {
    let offset = ((file::AT_RECORDS + index * RECORD) * 8) as u64;
    for _ in 0..LOOKS {
        let all = words(file, offset, RECORD)?;
        let again = words(file, offset, 1)?[0];
        if all[d::SEQUENCE] & 1 != 0 || again != all[d::SEQUENCE] {
            std::thread::yield_now();
            continue;
        }
        if all[d::KIND] == 0 {
            return Ok(None);
        }
        let peer = others.get(&all[d::PEER_NONCE]).filter(|_| all[d::PEER_NONCE] != 0);
        let now = peer.and_then(|peer| peer.direct(all[d::PEER_QPN] as u32));
        let direct = std::array::from_fn(|i| {
            let since = now.map_or(0, |now| now[i].wrapping_sub(all[d::BASE + i]));
            all[d::ABSORBED + i].wrapping_add(since)
        });
        let device = (all[d::DEVICE] as usize).min(file::DEVICES - 1);
        return Ok(Some(Record { device, direct, words: all }));
    }
    Ok(None)
}

fn describe(record: &Record, device: &str, values: Values, others: &BTreeMap<u64, &Found>) -> Option<Qp> {
    let w = &record.words;
    let state = state_name(w[d::STATE].checked_sub(1)?);
    let gid: [u8; 16] = std::array::from_fn(|i| w[d::PEER_GID + i / 8].to_ne_bytes()[i % 8]);
    let address = Ipv6Addr::from(gid);
    let pid = match others.get(&w[d::PEER_NONCE]) {
        Some(process) => Some(process.pid),
        None => u32::try_from(w[d::PEER_PID]).ok().filter(|pid| *pid != 0),
    };
    let path = file::PATHS.get(w[d::PATH] as usize).copied().unwrap_or("none");
    let peer = (path != "none").then_some(Peer {
        qpn: w[d::PEER_QPN] as u32,
        address: (gid != [0; 16]).then(|| address.to_ipv4_mapped().map_or(address.into(), IpAddr::V4)),
        pid,
    });
    Some(Qp {
        qpn: w[d::QPN] as u32,
        device: device.to_string(),
        kind: kind_name(w[d::KIND]),
        state,
        path,
        mtu: w[d::MTU] as u32,
        peer,
        values,
    })
}

fn kind_name(kind: u64) -> &'static str {
    match kind {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        _ => "?",
    }
}

fn state_name(state: u64) -> &'static str {
    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"].get(state as usize).copied().unwrap_or("?")
}

fn device_name(header: &[u64], device: usize) -> Option<String> {
    let at = file::AT_NAMES + device * file::NAME_WORDS;
    let bytes: Vec<u8> = header[at..at + file::NAME_WORDS].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let name: String = String::from_utf8_lossy(bytes.split(|&b| b == 0).next()?).into_owned();
    (!name.is_empty()).then_some(name)
}

/// The name of a memory file of ours that a link below /proc/PID/fd shows.
fn memory_file(target: &str) -> Option<&str> {
    let name = target.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    [file::NAME, file::PUBLICATION].into_iter().find(|ours| *ours == name)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(HARMLESS).open(path)
}

/// The process's id in the innermost namespace that it is in; its own word in the file is that.
fn innermost_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.and_then(|ids| ids.split_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

/// The network namespace of a process, by inode; 0 where that is not told.
pub fn network(pid: u32) -> u64 {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
    let inode = link.to_str().and_then(|link| link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
    inode.unwrap_or(0)
}

/// Aligned words, which the kernel copies whole. UnexpectedEof behind the file's end.
fn words(file: &File, offset: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_memory_files_are_opened() {
        assert_eq!(memory_file("/memfd:anyverbs-counters (deleted)"), Some(file::NAME));
        assert_eq!(memory_file("/memfd:anyverbs-publication (deleted)"), Some(file::PUBLICATION));
        for other in
            ["/memfd:anyverbs-counters", "/memfd:other (deleted)", "/tmp/anyverbs-counters", "socket:[1]"]
        {
            assert_eq!(memory_file(other), None, "{other}");
        }
    }

    #[test]
    fn the_id_in_the_innermost_namespace_of_this_process_is_its_own() {
        assert_eq!(innermost_pid(std::process::id()), std::process::id());
    }
}
