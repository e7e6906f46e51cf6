//! What the kernel's devices show in sysfs, and which of them are no embedded ones that the view library shows.
use std::{fs, path::Path};

use super::{Kind, Port, Set};

/// All ports of the kernel's devices.
pub fn ports() -> Vec<Port> {
    let mut all = Vec::new();
    for device in names(Path::new("/sys/class/infiniband")) {
        let folder = Path::new("/sys/class/infiniband").join(&device);
        let is_embedded =
            fs::read_to_string(folder.join("hca_type")).is_ok_and(|kind| kind.trim_end() == "urxe");
        if is_embedded {
            continue;
        }
        for port in names(&folder.join("ports")) {
            let Ok(number) = port.parse() else { continue };
            let files = |group| values(&folder.join("ports").join(&port).join(group));
            let set = Set { counters: files("counters"), hw_counters: files("hw_counters") };
            all.push(Port { device: device.clone(), number, kind: Kind::Kernel, set });
        }
    }
    all
}

/// Files of a folder that hold a number. `lifespan` is no counter but how old they may be.
fn values(folder: &Path) -> Vec<(String, u64)> {
    let value = |name: String| {
        let text = fs::read_to_string(folder.join(&name)).ok()?;
        Some((name, text.trim_end().parse().ok()?))
    };
    names(folder).into_iter().filter(|name| name != "lifespan").filter_map(value).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    all.sort();
    all
}
