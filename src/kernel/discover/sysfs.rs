//! Devices by sysfs: `class/infiniband_verbs`.
use super::{Places, Uverbs};
use crate::sys::{errno::Errno, folder, log};

/// Versions of the kernel's interface that we speak.
const ABI: std::ops::RangeInclusive<u32> = 3..=6;

/// All devices, in the order of the folder.
///
/// # Errors
/// ENOSYS where there is no such folder, or another version of the interface.
pub fn devices(places: &Places) -> Result<Vec<Uverbs>, Errno> {
    let class = places.of_node("");
    let names = folder::entries(&class).map_err(|_| Errno::ENOSYS)?;
    let found: Vec<Uverbs> = names.iter().filter_map(|node| device(places, node)).collect();
    let version = folder::text(&class.join("abi_version")).and_then(|text| text.trim().parse().ok());
    if !found.is_empty() && version.is_none_or(|version| !ABI.contains(&version)) {
        log::explain(format_args!(
            "ibv_get_device_list: uverbs ABI version {version:?} in {}: expected {} to {}",
            class.display(),
            ABI.start(),
            ABI.end()
        ));
        return Err(Errno::ENOSYS);
    }
    Ok(found)
}

/// The device behind a node.
pub fn device(places: &Places, node: &str) -> Option<Uverbs> {
    let of_node = places.of_node(node);
    let name = folder::text(&of_node.join("ibdev"))?;
    let path = places.of_device(&name);
    let (major, minor) = folder::text(&of_node.join("dev"))
        .and_then(|text| text.split_once(':').map(|(a, b)| (a.trim().to_owned(), b.trim().to_owned())))?;
    let text = |file: &str| folder::text(&path.join(file));
    Some(Uverbs {
        node: node.to_owned(),
        number: libc::makedev(major.parse().ok()?, minor.parse().ok()?),
        guid: text("node_guid").and_then(|text| guid(&text)).unwrap_or(0),
        driver: 0,
        // "1: CA"
        node_type: text("node_type").and_then(|t| t.split(':').next()?.trim().parse().ok()).unwrap_or(-1),
        index: -1,
        ports: folder::entries(&path.join("ports")).map_or(0, |ports| ports.len() as u32),
        abi: folder::text(&of_node.join("abi_version")).and_then(|t| t.trim().parse().ok()).unwrap_or(0),
        created: created(&path),
        path,
        name,
    })
}

/// `0002:c903:0000:1234` in network byte order.
fn guid(text: &str) -> Option<u64> {
    let mut guid = 0u64;
    let mut parts = 0;
    for part in text.trim().split(':') {
        guid = guid << 16 | u64::from(u16::from_str_radix(part, 16).ok()?);
        parts += 1;
    }
    (parts == 4).then(|| guid.to_be())
}

fn created(path: &std::path::Path) -> (i64, i64) {
    let Ok(folder) = folder::open(path, libc::O_PATH | libc::O_CLOEXEC) else { return (0, 0) };
    crate::sys::fd::status(&folder).map_or((0, 0), |status| (status.st_mtime, status.st_mtime_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A folder that stands for /sys and /dev, gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("anyverbs-test-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            Self(root)
        }
        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fn add(&self, node: &str, name: &str, dev: &str, guid: &str) {
            for (file, text) in [("ibdev", name), ("dev", dev), ("abi_version", "2")] {
                self.write(&format!("sys/class/infiniband_verbs/{node}/{file}"), &format!("{text}\n"));
            }
            self.write(&format!("sys/class/infiniband/{name}/node_guid"), &format!("{guid}\n"));
            self.write(&format!("sys/class/infiniband/{name}/node_type"), "1: CA\n");
            self.write(&format!("sys/class/infiniband/{name}/ports/1/state"), "4: ACTIVE\n");
            self.write(&format!("dev/infiniband/{node}"), "");
        }
        fn places(&self) -> Places {
            Places { sysfs: self.0.join("sys"), dev: self.0.join("dev") }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn devices_are_read_from_their_files() {
        let tree = Tree::new("sysfs");
        tree.add("uverbs1", "mlx5_0", "231:193", "0002:c903:0000:12af");
        tree.write("sys/class/infiniband_verbs/abi_version", "6\n");
        let found = devices(&tree.places()).unwrap();
        let [d] = &found[..] else { panic!("{found:?}") };
        assert_eq!((d.name.as_str(), d.node.as_str(), d.abi, d.ports), ("mlx5_0", "uverbs1", 2, 1));
        assert_eq!((d.node_type, d.index, d.driver, d.number), (1, -1, 0, libc::makedev(231, 193)));
        assert_eq!(d.guid.to_ne_bytes(), [0, 2, 0xc9, 3, 0, 0, 0x12, 0xaf]);
        assert!(d.created.0 > 0);
    }

    #[test]
    fn another_interface_version_is_refused_where_there_is_a_device() {
        let tree = Tree::new("version");
        tree.write("sys/class/infiniband_verbs/abi_version", "7\n");
        assert_eq!(devices(&tree.places()), Ok(vec![]));
        tree.add("uverbs0", "x0", "231:192", "0:0:0:1");
        assert_eq!(devices(&tree.places()), Err(Errno::ENOSYS));
        assert_eq!(devices(&Places { sysfs: tree.0.join("no"), dev: tree.0.join("no") }), Err(Errno::ENOSYS));
    }

    #[test]
    fn a_device_without_its_node_is_left_out() {
        let tree = Tree::new("nodes");
        tree.add("uverbs0", "test_a", "231:192", "0:0:0:1");
        tree.add("uverbs1", "test_b", "231:193", "0:0:0:2");
        tree.write("sys/class/infiniband_verbs/abi_version", "6\n");
        fs::remove_file(tree.0.join("dev/infiniband/uverbs0")).unwrap();
        let mut found = devices(&tree.places()).unwrap();
        found.retain(|d| folder::open(&tree.places().node(&d.node), libc::O_PATH).is_ok());
        assert_eq!(found.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["test_b"]);
    }

    #[test]
    fn guids_have_four_parts() {
        assert_eq!(guid("0:0:0:ff").map(u64::from_be), Some(0xff));
        for text in ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "12345:0:0:0"] {
            assert_eq!(guid(text), None, "{text}");
        }
    }

    #[test]
    fn a_device_that_came_again_is_another_one() {
        let old = Uverbs { node: "uverbs0".into(), name: "a".into(), index: 1, ..Uverbs::default() };
        assert!(old.is(&Uverbs { guid: 5, ..old.clone() }));
        assert!(!old.is(&Uverbs { index: 2, ..old.clone() }));
        assert!(!old.is(&Uverbs { created: (1, 0), ..old.clone() }));
    }
}
