//! Files by device and inode number: to find again what is mapped somewhere in this process, for others to map it too.
use super::errno::Errno;
use super::fd;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// A file, as stat(2) and the maps of a process name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Inode {
    #[allow(missing_docs)]
    pub device: u64,
    #[allow(missing_docs)]
    pub number: u64,
}

impl Inode {
    /// What a descriptor is open on. Errors are those of fstat(2).
    pub fn of(fd: &impl AsRawFd) -> Result<Self, Errno> {
        fd::status(fd).map(|stat| Self { device: stat.st_dev, number: stat.st_ino })
    }

    /// A handle of the file (O_PATH), by a descriptor that this process has open on it, or by its name as mapped. To close
    /// it ends no lock that the application holds on the file by fcntl(2).
    pub fn handle(self) -> Option<OwnedFd> {
        self.among_descriptors().or_else(|| self.by_name())
    }

    fn among_descriptors(self) -> Option<OwnedFd> {
        let numbers = fs::read_dir("/proc/self/fd").ok()?.flatten();
        let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
        numbers.find_map(|number| {
            let open = Inode::of(&number) == Ok(self);
            open.then(|| self.open(&format!("/proc/self/fd/{number}"))).flatten()
        })
    }

    fn by_name(self) -> Option<OwnedFd> {
        let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
        let inode = format!(" {} ", self.number);
        maps.lines().map_while(Result::ok).filter(|line| line.contains(&inode)).find_map(|line| {
            let name = line.get(line.find(" /")? + 1..)?;
            self.open(name)
        })
    }

    /// Nothing where another file is there meanwhile.
    fn open(self, name: &str) -> Option<OwnedFd> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(name).ok()?;
        let fd = fd::lift(file.into()).ok()?;
        (Inode::of(&fd) == Ok(self)).then_some(fd)
    }
}

/// Opens what a handle names for reading and writing. Errors are those of open(2).
pub fn reopen(handle: &impl AsRawFd) -> Result<OwnedFd, Errno> {
    let name = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(name);
    fd::lift(file.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{map::Mapping, memfd};
    use std::os::fd::AsFd;

    #[test]
    fn a_memory_file_is_found_while_a_descriptor_is_open() {
        let file = memfd::sealed(c"anyverbs-test", 4096).unwrap();
        let inode = Inode::of(&file).unwrap();
        let again = reopen(&inode.handle().unwrap()).unwrap();
        assert_eq!(Inode::of(&again), Ok(inode));
        let map = Mapping::shared(again.as_fd(), 4096, true).unwrap();
        drop((file, again));
        assert!(inode.handle().is_none(), "a memory file has no name");
        drop(map);
    }

    #[test]
    fn a_file_with_a_name_is_found_while_it_is_mapped() {
        let path = std::env::temp_dir().join(format!("anyverbs-inode-{}", super::super::random::u64()));
        fs::write(&path, [0; 4096]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (inode, map) = (Inode::of(&file).unwrap(), Mapping::shared(file.as_fd(), 4096, true).unwrap());
        drop(file);
        let found = inode.handle().and_then(|handle| Inode::of(&handle).ok());
        fs::remove_file(&path).unwrap();
        let gone = inode.handle();
        drop(map);
        assert_eq!(found, Some(inode));
        assert!(gone.is_none());
    }
}
