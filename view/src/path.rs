//! Which paths are the view's. A path counts as it is written: `//`, `.` and `..` are understood, links on the way to `/sys` and
//! `/dev` are not followed.
use std::{
    ffi::{CStr, CString, OsString, c_char, c_int},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use crate::content::{CLASS, DEVICES, NODES, VERBS_CLASS};

/// Whether a path, absolute or not, can lead into the view at all: cheap, and without any call.
pub fn may_match(path: &[u8]) -> bool {
    let holds = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    path.len() >= 10 && (holds(b"infiniband") || holds(b"devices/virtual/anyverbs"))
}

/// The path that a call with `dirfd` means, absolute, with single slashes and without `.`, if it may lead into the view.
///
/// # Safety
/// `path` must be null or a C string.
pub unsafe fn absolute(dirfd: c_int, path: *const c_char) -> Option<Vec<u8>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the string.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !may_match(given) {
        return None;
    }
    if given.starts_with(b"/") {
        return Some(plain(given));
    }
    let base = match dirfd {
        libc::AT_FDCWD => fs::read_link("/proc/self/cwd"),
        fd => fs::read_link(format!("/proc/self/fd/{fd}")),
    };
    let mut whole = base.ok()?.into_os_string().into_vec();
    whole.push(b'/');
    whole.extend_from_slice(given);
    Some(plain(&whole))
}

/// Whether a plain path is one of the view's roots or lies below it.
pub fn is_ours(path: &[u8]) -> bool {
    [CLASS, VERBS_CLASS, DEVICES, NODES].iter().any(|root| {
        let rest = path.strip_prefix(root.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    })
}

/// Where a plain path leads in the tree at `root`; `None` where it does not lead into the view. `..` behind a link goes up from where the
/// link leads, as the kernel does it; out of the view it goes on in the real folders.
pub fn translate(root: &Path, path: &[u8]) -> Option<CString> {
    let mut at: Vec<u8> = Vec::new();
    let mut been_inside = false;
    for part in path.split(|&b| b == b'/').filter(|part| !part.is_empty()) {
        if part != b".." {
            at.push(b'/');
            at.extend_from_slice(part);
            continue;
        }
        if is_ours(&at) {
            been_inside = true;
            let target = fs::canonicalize(below(root, &at)).ok()?;
            at = match target.strip_prefix(root) {
                Ok(inside) => [b"/", inside.as_os_str().as_bytes()].concat(),
                Err(_) => target.into_os_string().into_vec(),
            };
        } else if let Ok(target) = fs::canonicalize(OsString::from_vec(at.clone())) {
            at = target.into_os_string().into_vec();
        }
        at.truncate(at.iter().rposition(|&b| b == b'/').unwrap_or(0));
    }
    if is_ours(&at) {
        return CString::new(below(root, &at).into_encoded_bytes()).ok();
    }
    // It went through the view and out of it again: what is left is a real path.
    if been_inside && !at.is_empty() { CString::new(at).ok() } else { None }
}

/// `/dev/infiniband/NODE` and nothing below it.
pub fn node(path: &[u8]) -> Option<&[u8]> {
    let name = path.strip_prefix(NODES.as_bytes())?.strip_prefix(b"/")?;
    (!name.is_empty() && !name.contains(&b'/') && name != b"..").then_some(name)
}

fn below(root: &Path, path: &[u8]) -> OsString {
    let mut whole = root.as_os_str().to_os_string().into_vec();
    whole.extend_from_slice(path);
    OsString::from_vec(whole)
}

/// Single slashes, no `.`, no slash at the end.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for part in path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".") {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &CStr) -> Option<Vec<u8>> {
        // SAFETY: a C string.
        unsafe { absolute(libc::AT_FDCWD, path.as_ptr()) }
    }

    #[test]
    fn only_the_views_paths_are_ours() {
        for path in ["/sys/class/infiniband", "/sys/class/infiniband/urxe0/ports", "/dev/infiniband/uverbs0"]
        {
            assert!(is_ours(path.as_bytes()), "{path}");
        }
        for path in ["/sys/class/infiniband_mad/x", "/dev/infinibands", "/home/infiniband", "/dev", "/"] {
            assert!(!is_ours(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn slashes_and_dots_do_not_hide_a_path() {
        assert_eq!(seen(c"//sys/./class///infiniband/").unwrap(), b"/sys/class/infiniband");
        assert_eq!(seen(c"/etc/passwd"), None);
        assert_eq!(seen(c""), None);
    }

    #[test]
    fn nodes_are_files_directly_below_the_folder() {
        assert_eq!(node(b"/dev/infiniband/uverbs0"), Some(&b"uverbs0"[..]));
        assert_eq!((node(b"/dev/infiniband"), node(b"/dev/infiniband/a/b")), (None, None));
    }

    #[test]
    fn two_dots_go_up_from_where_a_link_leads() {
        let root = std::env::temp_dir().join(format!("anyverbs-test-path-{}", std::process::id()));
        let device = root.join("sys/devices/virtual/anyverbs/u0/infiniband/u0");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
        let link = root.join("sys/class/infiniband/u0");
        std::os::unix::fs::symlink("../../devices/virtual/anyverbs/u0/infiniband/u0", link).unwrap();
        let root = fs::canonicalize(root).unwrap();
        let to = |path: &str| {
            translate(&root, path.as_bytes()).map(|p| {
                let p = p.into_string().unwrap();
                p.strip_prefix(root.to_str().unwrap()).map(|inside| format!("ROOT{inside}")).unwrap_or(p)
            })
        };
        let up = to("/sys/class/infiniband/u0/../..");
        assert_eq!(up.as_deref(), Some("ROOT/sys/devices/virtual/anyverbs/u0"));
        assert_eq!(to("/sys/class/infiniband/../net").as_deref(), Some("/sys/class/net"));
        assert_eq!(to("/sys/class/infiniband").as_deref(), Some("ROOT/sys/class/infiniband"));
        assert_eq!(to("/sys/class/net"), None);
        fs::remove_dir_all(root).unwrap();
    }
}
