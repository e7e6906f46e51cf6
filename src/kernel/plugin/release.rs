//! For which release a provider was compiled. Its private node narrows that down; the file names of the shared objects
//! that a release installs, and the links to them, tell it: `libNAME.so.1.MINOR.RELEASE.PATCH`.
use crate::abi::{ibv_device, verbs_device, verbs_device_ops};
use crate::provider::drivers::{self, Driver};
use crate::provider::layout::Layout;
use crate::sys::lock::Lock;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Libraries of a release whose file names have its number, the surest first: our own may stand in place of the last.
const TELLING: [&str; 8] =
    ["libmlx5", "libmlx4", "libefa", "libmana", "libhns", "librdmacm", "libibumad", "libibverbs"];

/// What was found out about providers already.
static KNOWN: Lock<Vec<(usize, Option<Layout>)>> = Lock::new(Vec::new());

/// The layouts that a provider was compiled for; none where its release is not known or not one that is.
pub fn layout(driver: &Driver) -> Option<Layout> {
    let key = driver.ops.addr();
    if let Some((_, known)) = KNOWN.lock().iter().find(|(ops, _)| *ops == key) {
        return *known;
    }
    let layout = find(driver);
    KNOWN.lock().push((key, layout));
    layout
}

fn find(driver: &Driver) -> Option<Layout> {
    let release = match driver.node {
        // One release only.
        64 | 65 => driver.node,
        // Alike in all that matters.
        57 => 58,
        _ => release_of(&file_of(driver.ops)?)?,
    };
    Layout::of(driver.node, release)
}

/// The layouts of the provider that made this device; ours for one that is no compiled provider's.
///
/// # Safety
/// `device` must be null or a live device, the head of a `verbs_device`.
pub unsafe fn layout_of(device: *mut ibv_device) -> Layout {
    // SAFETY: the caller vouches for it.
    let ops = unsafe { device.cast::<verbs_device>().as_ref().map_or(std::ptr::null(), |d| d.ops) };
    let driver = drivers::recorded().into_iter().find(|driver| driver.ops == ops);
    driver.and_then(|driver| layout(&driver)).unwrap_or(Layout::OURS)
}

/// The shared object that holds a provider's table.
fn file_of(ops: *const verbs_device_ops) -> Option<PathBuf> {
    // SAFETY: pointers and integers; zero is a value of each.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` has room for the answer; the name is a C string of the loader's.
    let name = unsafe {
        if libc::dladdr(ops.cast(), &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// From the file's own name, or from the names behind the links of its neighbours in its folder and the one above.
fn release_of(file: &Path) -> Option<u32> {
    if let Some(release) = number(file.file_name()?.to_str()?) {
        return Some(release);
    }
    let own = file.parent()?;
    [own, own.parent()?].into_iter().find_map(|folder| {
        TELLING.iter().find_map(|library| {
            let file = std::fs::read_link(folder.join(library).with_extension("so.1")).ok()?;
            number(file.file_name()?.to_str()?)
        })
    })
}

/// `libmlx5.so.1.24.44.0` gives 44.
fn number(name: &str) -> Option<u32> {
    let (_, version) = name.split_once(".so.")?;
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if let [_, _, release, _] = parts[..] { Some(release) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_tell_the_release() {
        assert_eq!(number("libmlx5.so.1.24.44.0"), Some(44));
        assert_eq!(number("libibverbs.so.1.14.50.0"), Some(50));
        for name in ["libibverbs.so.1", "librxe-rdmav34.so", "libmlx5.so.1.24", "libx.so.1.a.44.0"] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    #[test]
    fn neighbours_tell_it_the_surest_first() {
        let folder = std::env::temp_dir().join(format!("anyverbs-test-release-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let inner = folder.join("lib/libibverbs");
        std::fs::create_dir_all(&inner).unwrap();
        let file = inner.join("librxe-rdmav34.so");
        assert_eq!(release_of(&file), None);
        let link =
            |name: &str, to: &str| std::os::unix::fs::symlink(to, folder.join("lib").join(name)).unwrap();
        link("libibverbs.so.1", "libibverbs.so.1.18.65.0");
        assert_eq!(release_of(&file), Some(65));
        link("libefa.so.1", "libefa.so.1.1.44.0");
        assert_eq!(release_of(&file), Some(44));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
