//! Memory files that are passed to other processes, sealed so that a peer cannot pull the pages away.
use super::{errno::Errno, fd};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The seals every memory file of ours carries and every received one must carry.
pub const FIXED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

const MFD_NOEXEC_SEAL: u32 = 8;
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A new sparse file of `len` zero bytes, close-on-exec, to be sealed by [`seal`].
pub fn create(name: &CStr, len: usize) -> Result<OwnedFd, Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let open = |flags| {
        // SAFETY: `name` is a C string that outlives the call.
        fd::adopt(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    };
    // Kernels before 6.3 do not know the no-exec flag.
    let fd = match open(flags | MFD_NOEXEC_SEAL) {
        Err(Errno::EINVAL) => open(flags),
        other => other,
    }?;
    let len = libc::off_t::try_from(len).map_err(|_| Errno::EINVAL)?;
    // SAFETY: only the file we just made changes.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len) } < 0 { Err(Errno::last()) } else { Ok(fd) }
}

/// Fixes the size and the seals. With `read_only` nobody can get a writable mapping any more; those made before stay
/// (F_SEAL_FUTURE_WRITE, Linux 5.1).
pub fn seal(fd: BorrowedFd<'_>, read_only: bool) -> Result<(), Errno> {
    let seals = FIXED | if read_only { libc::F_SEAL_FUTURE_WRITE } else { 0 };
    // SAFETY: fcntl(F_ADD_SEALS) takes an int.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(Errno::last());
    }
    Ok(())
}

/// Bytes of a regular file, which memory files are too; nothing for what has no size. Errors are those of fstat(2).
pub fn size_of_regular(fd: BorrowedFd<'_>) -> Result<Option<u64>, Errno> {
    // SAFETY: stat is plain data for which zero is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is ours and lives through the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(Errno::last());
    }
    Ok((stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(stat.st_size as u64))
}

/// Whether the file lies in memory (tmpfs, and memory files) and not in huge pages. Errors are those of fstatfs(2).
pub fn is_in_memory(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: statfs is plain data for which zero is valid.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is ours and lives through the call.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &mut fs) } < 0 {
        return Err(Errno::last());
    }
    Ok(fs.f_type == TMPFS_MAGIC)
}

/// Whether nobody can shorten the file any more.
pub fn cannot_shrink(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl(F_GET_SEALS) only asks; it fails on what has no seals.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Holds a received descriptor to what [`create`] and [`seal`] make: a memory file of exactly `len` bytes, not of huge
/// pages (those can fault for want of a page), that can neither shrink nor grow. EPROTO otherwise.
pub fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
    // SAFETY: fcntl(F_GET_SEALS) only asks; it fails on what is no memory file.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & FIXED != FIXED {
        return Err(Errno::EPROTO);
    }
    // SAFETY: statfs and stat are plain data for which zero is valid.
    let (mut fs, mut stat): (libc::statfs, libc::stat) = unsafe { std::mem::zeroed() };
    // SAFETY: both structs are ours and live through the calls.
    let ok =
        unsafe { libc::fstatfs(fd.as_raw_fd(), &mut fs) == 0 && libc::fstat(fd.as_raw_fd(), &mut stat) == 0 };
    let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    if ok && fs.f_type == TMPFS_MAGIC && is_file && stat.st_size as u64 == len as u64 {
        Ok(())
    } else {
        Err(Errno::EPROTO)
    }
}

/// [`create`] and [`seal`] in one, for files that both sides write.
pub fn sealed(name: &CStr, len: usize) -> Result<OwnedFd, Errno> {
    let fd = create(name, len)?;
    seal(fd.as_fd(), false)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::map::Mapping;

    #[test]
    fn a_sealed_file_passes_and_keeps_its_size() {
        let fd = sealed(c"test", 8192).unwrap();
        assert_eq!(check(fd.as_fd(), 8192), Ok(()));
        assert_eq!(check(fd.as_fd(), 4096), Err(Errno::EPROTO));
        // SAFETY: only this test's file is concerned.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
        assert_eq!(Errno::last(), Errno::EPERM);
    }

    #[test]
    fn an_unsealed_file_or_another_kind_of_descriptor_is_refused() {
        assert_eq!(check(create(c"test", 4096).unwrap().as_fd(), 4096), Err(Errno::EPROTO));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(check(null.as_fd(), 0), Err(Errno::EPROTO));
    }

    #[test]
    fn a_published_file_is_written_by_its_owner_and_read_by_others() {
        let fd = create(c"test", 4096).unwrap();
        let owner = Mapping::shared(fd.as_fd(), 4096, true).unwrap();
        seal(fd.as_fd(), true).unwrap();
        assert_eq!(check(fd.as_fd(), 4096), Ok(()));
        assert_eq!(Mapping::shared(fd.as_fd(), 4096, true).unwrap_err(), Errno::EPERM);
        let reader = Mapping::shared(fd.as_fd(), 4096, false).unwrap();
        // SAFETY: both mappings are 4096 bytes of the same file.
        unsafe {
            owner.base().write_volatile(7);
            assert_eq!(reader.base().read_volatile(), 7);
        }
    }
}
