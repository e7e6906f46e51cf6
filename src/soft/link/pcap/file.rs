//! A pcapng file that several processes may append to: each write is whole blocks, and every process's section describes
//! the same interfaces in the same order, so that any mixture of blocks reads well (IETF draft-ietf-opsawg-pcapng).
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::{append, fd};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;

/// The way that a frame took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// RoCEv2 on UDP, to or from another host.
    Udp,
    /// The rings between two processes of a host.
    Shm,
    /// Another process's memory, by cross-memory attach.
    Direct,
    /// Within the process.
    Local,
}

/// Name and description of each interface; a [`Via`] is its number.
const INTERFACES: [(&str, &str); 4] = [
    ("udp", "RoCEv2 on UDP port 4791"),
    ("shm", "rings between processes of this host, as the packets that they stand for"),
    ("direct", "cross-memory attach between processes of this host, as the packets that it stands for"),
    ("local", "messages within a process, as the packets that they stand for"),
];

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const ETHERNET: u16 = 1;

/// Appends one block: body and options, padded, between its type and its length twice.
fn block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend(kind.to_ne_bytes());
    to.extend([0; 4]);
    body(to);
    pad(to, start);
    let len = (to.len() - start + 4) as u32;
    to.extend(len.to_ne_bytes());
    to[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let start = to.len();
    to.extend(code.to_ne_bytes());
    to.extend((value.len() as u16).to_ne_bytes());
    to.extend(value);
    pad(to, start);
}

fn pad(to: &mut Vec<u8>, start: usize) {
    to.resize(start + (to.len() - start).next_multiple_of(4), 0);
}

/// The head of a process's section.
fn head() -> Vec<u8> {
    let mut out = Vec::new();
    block(&mut out, SECTION, |b| {
        b.extend(0x1a2b_3c4d_u32.to_ne_bytes());
        b.extend([1u16, 0].map(u16::to_ne_bytes).concat());
        // How long the section becomes is not known.
        b.extend([0xff; 8]);
        let who = format!("anyverbs {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
        option(b, 4, who.as_bytes());
        option(b, 0, &[]);
    });
    for (name, description) in INTERFACES {
        block(&mut out, INTERFACE, |b| {
            b.extend([ETHERNET, 0].map(u16::to_ne_bytes).concat());
            b.extend([0; 4]);
            option(b, 2, name.as_bytes());
            option(b, 3, description.as_bytes());
            // Times are nanoseconds.
            option(b, 9, &[9]);
            option(b, 0, &[]);
        });
    }
    out
}

/// Appends a frame seen at `time` (nanoseconds since 1970).
pub fn packet(to: &mut Vec<u8>, via: Via, inbound: bool, time: u64, frame: &[u8]) {
    block(to, PACKET, |b| {
        b.extend((via as u32).to_ne_bytes());
        b.extend(((time >> 32) as u32).to_ne_bytes());
        b.extend((time as u32).to_ne_bytes());
        b.extend([frame.len() as u32; 2].map(u32::to_ne_bytes).concat());
        let start = b.len();
        b.extend(frame);
        pad(b, start);
        option(b, 2, &if inbound { 1u32 } else { 2 }.to_ne_bytes());
        option(b, 0, &[]);
    });
}

/// `%p` in a name is the process's number, `%%` a percent sign.
fn expand(name: &OsStr) -> OsString {
    let mut out = Vec::new();
    let mut bytes = name.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.clone().next()) {
            (b'%', Some(b'p')) => out.extend(std::process::id().to_string().bytes()),
            (b'%', Some(b'%')) => out.push(b'%'),
            _ => {
                out.push(byte);
                continue;
            }
        }
        bytes.next();
    }
    OsString::from_vec(out)
}

/// A file that blocks are appended to.
#[derive(Debug)]
pub struct File {
    fd: ParentFd,
    /// Bytes that the process may make a file long.
    limit: Option<u64>,
}

impl File {
    /// Opens the file, for its owner alone where it is new, and begins a section.
    ///
    /// # Errors
    /// EEXIST where there is something else than a pcapng file, and what the kernel says.
    pub fn open(name: &OsStr) -> Result<Self, Errno> {
        let name = expand(name);
        // Never wait for whoever reads a pipe.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        if let Ok(mut there) = OpenOptions::new().read(true).custom_flags(flags).open(&name)
            && there.metadata()?.is_file()
        {
            let mut magic = [0; 4];
            let read = there.read(&mut magic)?;
            if read > 0 && (read < 4 || u32::from_ne_bytes(magic) != SECTION) {
                return Err(Errno::EEXIST);
            }
        }
        let file =
            OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&name)?;
        let mut file = Self { fd: ParentFd::new(fd::lift(file.into())?), limit: append::longest() };
        file.append(&head())?;
        Ok(file)
    }

    /// Appends whole blocks, in one call: those of other processes come before or behind.
    ///
    /// # Errors
    /// Those of `append::whole`; EFBIG at the process's limit.
    pub fn append(&mut self, blocks: &[u8]) -> Result<(), Errno> {
        if let Some(limit) = self.limit
            && fd::status(&self.fd)?.st_size as u64 + blocks.len() as u64 > limit
        {
            return Err(Errno::EFBIG);
        }
        append::whole(&self.fd, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Types of the blocks of a file; panics where lengths do not agree.
    fn blocks(bytes: &[u8]) -> Vec<u32> {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert!(len >= 12 && len.is_multiple_of(4) && word(at + len - 4) as usize == len, "at {at}");
            kinds.push(word(at));
            at += len;
        }
        kinds
    }

    /// A place of this process in the folder of temporary files, free when the value goes.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("anyverbs-pcap-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn sections_of_several_writers_follow_each_other_in_whole_blocks() {
        let own = Place::new("several");
        let place = own.0.clone();
        let writers: Vec<_> = (0..4)
            .map(|n| {
                let place = place.clone();
                std::thread::spawn(move || {
                    let mut file = File::open(place.as_os_str()).unwrap();
                    for i in 0..200 {
                        let mut out = Vec::new();
                        packet(&mut out, Via::Shm, n % 2 == 0, i, &vec![n; 60 + i as usize]);
                        file.append(&out).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        let kinds = blocks(&fs::read(&place).unwrap());
        let count = |kind| kinds.iter().filter(|k| **k == kind).count();
        assert_eq!((count(SECTION), count(INTERFACE), count(PACKET)), (4, 16, 800));
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_another_kind_is_left_alone() {
        let own = Place::new("other");
        let place = own.0.clone();
        for content in ["dear diary", "x"] {
            fs::write(&place, content).unwrap();
            assert_eq!(File::open(place.as_os_str()).err(), Some(Errno::EEXIST));
            assert_eq!(fs::read_to_string(&place).unwrap(), content);
        }
        fs::write(&place, "").unwrap();
        assert!(File::open(place.as_os_str()).is_ok(), "an empty one will do");
        assert_eq!(File::open(OsStr::new("/nowhere/x")).err(), Some(Errno::ENOENT));
        assert_eq!(File::open(OsStr::new("/dev/full")).err(), Some(Errno::ENOSPC));
    }

    #[test]
    fn names_tell_processes_apart() {
        let pid = std::process::id().to_string();
        for (name, expected) in [
            ("a%p.pcapng", format!("a{pid}.pcapng")),
            ("%%p%", "%p%".to_string()),
            ("%x%p%p", format!("%x{pid}{pid}")),
        ] {
            assert_eq!(expand(OsStr::new(name)), OsString::from(expected));
        }
    }
}
