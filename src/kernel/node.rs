//! Opening a device's node. It may come a moment after the device itself, when udev makes it; and its number tells whether
//! it is still that of the device which was found.
use crate::kernel::discover::{Places, Uverbs};
use crate::sys::errno::Errno;
use crate::sys::{fd, folder, uncancelled};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the node may take to appear.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the node of a device.
///
/// # Errors
/// open(2)'s: EACCES for a node that is not ours to open, ENOENT for one that does not come within five seconds; ENODEV
/// where the node belongs to another device.
pub fn open(places: &Places, device: &Uverbs) -> Result<OwnedFd, Errno> {
    open_within(places, device, PATIENCE)
}

fn open_within(places: &Places, device: &Uverbs, patience: Duration) -> Result<OwnedFd, Errno> {
    let first = try_open(places, device);
    if !matches!(first, Err(Errno::ENOENT)) {
        return first;
    }
    let deadline = Instant::now() + patience;
    let watch = Watch::new(&places.dev)?;
    loop {
        // Looked at after the watch was set, so that nothing falls between.
        let again = try_open(places, device);
        let left = deadline.saturating_duration_since(Instant::now());
        if !matches!(again, Err(Errno::ENOENT)) || left.is_zero() {
            return again;
        }
        watch.wait(left);
    }
}

/// By name; where another device has that name, by number.
fn try_open(places: &Places, device: &Uverbs) -> Result<OwnedFd, Errno> {
    let by_name = exactly(&places.dev.join("infiniband").join(&device.node), device.number);
    match by_name {
        Err(Errno::ENOENT | Errno::ENODEV) => {
            let number = format!("{}:{}", libc::major(device.number), libc::minor(device.number));
            match exactly(&places.dev.join("char").join(number), device.number) {
                Err(Errno::ENOENT) => by_name,
                by_number => by_number,
            }
        }
        other => other,
    }
}

fn exactly(path: &Path, number: u64) -> Result<OwnedFd, Errno> {
    let node = folder::open(path, libc::O_RDWR | libc::O_CLOEXEC)?;
    let status = fd::status(&node)?;
    let is_it = status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == number;
    if is_it { Ok(node) } else { Err(Errno::ENODEV) }
}

/// Tells when something appears in `/dev/infiniband`, or that folder itself.
struct Watch(OwnedFd);

impl Watch {
    fn new(dev: &Path) -> Result<Self, Errno> {
        // SAFETY: no pointers.
        let watch = fd::adopt(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
        let watched: [PathBuf; 3] = [dev.to_owned(), dev.join("infiniband"), dev.join("char")];
        for path in watched {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { continue };
            let what = libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_ATTRIB;
            // SAFETY: the path is a C string. A folder that is not there is not watched.
            unsafe { libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr(), what) };
        }
        Ok(Self(watch))
    }

    /// Until something changed, but at most a tenth of a second: a folder that came later is not watched.
    fn wait(&self, left: Duration) {
        let limit = left.min(Duration::from_millis(100)).as_millis() as i32;
        let mut p = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        if uncancelled::poll(&mut p, limit.max(1)) == 1 {
            let mut events = [0u8; 4096];
            // SAFETY: the buffer has the length that is told.
            unsafe { uncancelled::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A folder that stands for /dev, with /dev/null for a node.
    struct Dev(PathBuf);

    impl Dev {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("anyverbs-test-node-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("char")).unwrap();
            Self(root)
        }
        fn places(&self) -> Places {
            Places { sysfs: self.0.clone(), dev: self.0.clone() }
        }
    }

    impl Drop for Dev {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn null(minor: u32) -> Uverbs {
        Uverbs { node: "uverbs0".into(), number: libc::makedev(1, minor), ..Uverbs::default() }
    }

    #[test]
    fn a_node_is_opened_by_name_and_only_with_its_number() {
        let dev = Dev::new("name");
        fs::create_dir(dev.0.join("infiniband")).unwrap();
        symlink("/dev/null", dev.0.join("infiniband/uverbs0")).unwrap();
        assert!(open(&dev.places(), &null(3)).is_ok());
        assert_eq!(open(&dev.places(), &null(5)).unwrap_err(), Errno::ENODEV);
        symlink("/dev/zero", dev.0.join("char/1:5")).unwrap();
        assert!(open(&dev.places(), &null(5)).is_ok());
    }

    #[test]
    fn a_node_may_come_later() {
        let dev = Dev::new("later");
        let root = dev.0.clone();
        let udev = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            fs::create_dir(root.join("infiniband")).unwrap();
            symlink("/dev/null", root.join("infiniband/uverbs0")).unwrap();
        });
        assert!(open(&dev.places(), &null(3)).is_ok());
        udev.join().unwrap();
    }

    #[test]
    fn a_node_that_never_comes_is_enoent() {
        let dev = Dev::new("never");
        let refused = open_within(&dev.places(), &null(3), Duration::from_millis(20));
        assert_eq!(refused.unwrap_err(), Errno::ENOENT);
    }
}
