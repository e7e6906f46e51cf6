//! Finding and loading compiled providers: `RDMAV_DRIVERS` first, then what the distribution's configuration names.
//!
//! A provider registers itself by an ELF constructor. Those that the kernel's driver ids name are loaded first, and the
//! others only while a device is left that nobody serves.
use crate::sys::lock::Lock;
use crate::sys::{folder, log};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

/// Where distributions keep the configuration.
const CONFIG: &str = "/etc/libibverbs.d";

/// Where distributions keep providers.
const FOLDERS: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/libibverbs",
    #[cfg(target_arch = "riscv64")]
    "/usr/lib/riscv64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs",
    "/usr/lib/libibverbs",
];

/// The private ABIs that we host, as they stand in file names. 59 has several layouts, told apart by release.
const NODES: [u32; 5] = [34, 57, 59, 64, 65];

/// Providers that were loaded or could not be.
static TRIED: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());

/// Loads the providers of these kernel drivers.
pub fn for_drivers(drivers: &[u32]) {
    let names = names();
    let wanted = |name: &String| {
        let file = name.rsplit('/').next().unwrap_or(name);
        drivers.iter().any(|&id| driver_name(id) == Some(file))
    };
    names.iter().filter(|name| wanted(name)).for_each(|name| load(name));
}

/// Loads all providers that are named.
pub fn all() {
    names().iter().for_each(|name| load(name));
}

/// What the provider of a kernel driver is called (`enum rdma_driver_id`).
fn driver_name(id: u32) -> Option<&'static str> {
    Some(match id {
        1 => "mlx5",
        2 => "mlx4",
        4 => "cxgb4",
        5 => "mthca",
        6 => "bnxt_re",
        7 => "ocrdma",
        9 => "irdma",
        10 => "vmw_pvrdma",
        11 => "qedr",
        12 => "hns",
        15 => "hfi1verbs",
        16 => "ipathverbs",
        17 => "efa",
        14 => "rxe",
        18 => "siw",
        19 => "erdma",
        20 => "mana",
        21 => "ionic",
        _ => return None,
    })
}

/// Names from the environment, unless the process has more rights than its caller, then from the configuration.
fn names() -> Vec<String> {
    let asked = std::env::var("RDMAV_DRIVERS").or_else(|_| std::env::var("IBV_DRIVERS"));
    let asked = asked.ok().filter(|_| !crate::sys::is_setuid()).unwrap_or_default();
    let mut names = split(&asked);
    names.extend(configured(Path::new(CONFIG)));
    names
}

fn split(list: &str) -> Vec<String> {
    list.split([':', ';']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The names of a configuration folder: the last file's first.
fn configured(config: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for file in folder::entries(config).unwrap_or_default() {
        let path = config.join(file);
        for line in folder::text(&path).unwrap_or_default().lines() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("driver"), Some(name)) => names.push(name.to_owned()),
                _ => log::explain(format_args!(
                    "ibv_get_device_list: {}: unknown line {line:?}: expected \"driver NAME\"",
                    path.display()
                )),
            }
        }
    }
    names.reverse();
    names
}

/// Loads a provider, once.
fn load(name: &str) {
    if !TRIED.lock().insert(name.to_owned()) {
        return;
    }
    let mut why = String::new();
    for candidate in candidates(name, FOLDERS) {
        let Ok(file) = CString::new(candidate.to_string_lossy().as_bytes()) else { continue };
        // SAFETY: a C string. What a provider's constructor does is its own; it calls back into this library only to
        // register itself.
        if unsafe { !libc::dlopen(file.as_ptr(), libc::RTLD_NOW).is_null() } {
            log::log(log::Level::Info, format_args!("provider {name}: {}", candidate.display()));
            return;
        }
        if why.is_empty() || candidate.is_absolute() {
            // SAFETY: dlerror gives a C string, or null where nothing failed.
            why = unsafe {
                let text = libc::dlerror();
                if text.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(text).to_string_lossy().into_owned()
                }
            };
        }
    }
    if let Some(other) = other_abi(name, FOLDERS) {
        why = format!("{}: its private ABI is not one of {NODES:?}", other.display());
    }
    log::explain(format_args!("ibv_get_device_list: provider {name} cannot be loaded: {why}"));
}

/// The files that may hold a provider, in the order in which they are tried: those that are there by full name, then one
/// for the loader's own search.
fn candidates<'a>(name: &'a str, folders: &'a [&'a str]) -> impl Iterator<Item = PathBuf> + 'a {
    let (places, stem, search) = if name.starts_with('/') {
        (&[""][..], name.to_owned(), None)
    } else {
        (folders, format!("lib{name}"), Some(PathBuf::from(format!("lib{name}-rdmav{}.so", NODES[0]))))
    };
    let files = places.iter().flat_map(move |folder| {
        let stem = stem.clone();
        NODES.iter().map(move |node| Path::new(folder).join(format!("{stem}-rdmav{node}.so")))
    });
    files.filter(|path| is_there(path)).chain(search)
}

/// A provider of this name and another private ABI.
fn other_abi(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let (folder, stem): (Vec<&Path>, String) =
        match Path::new(name).parent().filter(|_| name.starts_with('/')) {
            Some(folder) => (vec![folder], name.rsplit('/').next().unwrap_or(name).to_owned()),
            None => (folders.iter().map(Path::new).collect(), format!("lib{name}")),
        };
    folder.into_iter().find_map(|folder| {
        let names = folder::entries(folder).ok()?;
        let other = names.into_iter().find(|file| {
            let node = file.strip_prefix(stem.as_str()).and_then(|rest| rest.strip_prefix("-rdmav"));
            let node =
                node.and_then(|rest| rest.strip_suffix(".so")).and_then(|node| node.parse::<u32>().ok());
            node.is_some_and(|node| !NODES.contains(&node))
        })?;
        Some(folder.join(other))
    })
}

fn is_there(path: &Path) -> bool {
    folder::open(path, libc::O_PATH | libc::O_CLOEXEC).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("anyverbs-test-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            files.iter().for_each(|(file, text)| fs::write(root.join(file), text).unwrap());
            Self(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn configuration_names_drivers_and_the_last_comes_first() {
        let text = "# comment\n\ndriver mlx5\n  driver rxe extra\nprovider x\n";
        let folder = Folder::new("config", &[("a.driver", text)]);
        assert_eq!(configured(&folder.0), ["rxe", "mlx5"]);
        assert!(configured(&folder.0.join("none")).is_empty());
    }

    #[test]
    fn the_environment_separates_names_by_colons_and_semicolons() {
        assert_eq!(split("mlx5:/opt/libx;rxe::"), ["mlx5", "/opt/libx", "rxe"]);
    }

    #[test]
    fn a_provider_is_looked_for_by_each_abi_that_we_host() {
        let folder = Folder::new("providers", &[("librxe-rdmav34.so", ""), ("librxe-rdmav65.so", "")]);
        let path = folder.0.to_str().unwrap();
        let found: Vec<_> = candidates("rxe", &[path]).collect();
        let file = |name: &str| folder.0.join(name);
        assert_eq!(found, [file("librxe-rdmav34.so"), file("librxe-rdmav65.so"), "librxe-rdmav34.so".into()]);
        assert!(candidates(&format!("{path}/librxe"), &[]).eq(found[..2].iter().cloned()));
        assert_eq!(other_abi("rxe", &[path]), None);
    }

    #[test]
    fn a_provider_of_another_abi_is_told() {
        let folder = Folder::new("other-abi", &[("libmlx5-rdmav25.so", "")]);
        let path = folder.0.to_str().unwrap();
        assert_eq!(other_abi("mlx5", &[path]), Some(folder.0.join("libmlx5-rdmav25.so")));
        assert_eq!(other_abi("mlx", &[path]), None);
        assert_eq!(other_abi(&format!("{path}/libmlx5"), &[]), Some(folder.0.join("libmlx5-rdmav25.so")));
    }
}
