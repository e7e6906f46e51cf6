//! Which provider serves a device: by the kernel's driver id, by the device's name, by what it says of itself on its bus.
use super::{Served, describe, release};
use crate::abi::*;
use crate::kernel::discover::Uverbs;
use crate::provider::drivers::{self, Driver};
use crate::provider::{Found, object};
use crate::sys::lock::Lock;
use crate::sys::log;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::ptr;

const END: u8 = 0;
const PCI: u8 = 1;
const MODALIAS: u8 = 2;
const DRIVER_ID: u8 = 3;

/// Patterns that begin so are about the device's name.
const NAME: &CStr = c"rdma_device:";

/// The first registered provider that takes the device, and its object for it, filled as the list shows it.
pub fn serve(device: &Uverbs, found: &Found) -> Option<Served> {
    let all = drivers::recorded();
    let dev = describe(device);
    // Those that the kernel's driver id names come first.
    // SAFETY: drivers are live tables; the description is ours and lives for ever.
    let named: Vec<Driver> =
        all.iter().copied().filter(|d| unsafe { !by_driver_id(d.ops, device.driver).is_null() }).collect();
    let others = all.iter().filter(|driver| !named.iter().any(|n| ptr::eq(n.ops, driver.ops)));
    let served = named.iter().chain(others).find_map(|&driver| {
        // SAFETY: as above.
        let taken = unsafe { takes(driver, dev) };
        // SAFETY: as above; the provider has just said that it takes the device.
        taken.then(|| unsafe { make(driver, dev, found) })?
    });
    if served.is_none() {
        // SAFETY: made by `describe`, and no provider keeps it.
        drop(unsafe { Box::from_raw(dev) });
    }
    served
}

/// # Safety
/// `driver` live; `dev` lives for ever.
unsafe fn make(driver: Driver, dev: *mut verbs_sysfs_dev, found: &Found) -> Option<Served> {
    // SAFETY: the caller vouches for both; the provider gives a zeroed device of its own.
    unsafe {
        let device = (*driver.ops).alloc_device.map_or(ptr::null_mut(), |alloc| alloc(dev));
        if device.is_null() {
            return None;
        }
        (*device).ops = driver.ops;
        (*device).sysfs = dev;
        object::fill_device(device, found);
        Some(Served { driver, device })
    }
}

/// Whether a provider takes a device; leaves in it which entry of the provider's table did.
///
/// # Safety
/// `driver` and `dev` live.
unsafe fn takes(driver: Driver, dev: *mut verbs_sysfs_dev) -> bool {
    // SAFETY: the caller vouches for both.
    unsafe {
        let ops = &*driver.ops;
        (*dev).r#match = entry(ops, &*dev);
        let taken = match ops.match_device {
            Some(decide) => decide(dev),
            None => !(*dev).r#match.is_null(),
        };
        if !taken {
            return false;
        }
        let name = text(ops.name);
        let device = text((*dev).ibdev_name.as_ptr());
        let abi = (*dev).abi_ver;
        let range = ops.match_min_abi_version..=ops.match_max_abi_version;
        if !range.contains(&abi) {
            let (from, to) = (range.start(), range.end());
            if refuse(format!("provider {name} takes kernel ABI {from} to {to}, and {device} has {abi}")) {
                log::warn(format_args!(
                    "Driver {name} does not support the kernel ABI of {abi} (supports {from} to {to}) for device {}",
                    text((*dev).ibdev_path.as_ptr())
                ));
            }
            return false;
        }
        if release::layout(&driver).is_none() {
            refuse(format!(
                "provider {name} (private ABI {}) is of a release that is not known: {device} is left out",
                driver.node
            ));
            return false;
        }
        true
    }
}

/// Says why a provider does not get a device: once, though a device that nobody serves is offered again and again. True
/// where it was not yet said.
fn refuse(why: String) -> bool {
    static TOLD: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());
    let new = TOLD.lock().insert(why.clone());
    if new {
        log::explain(format_args!("ibv_get_device_list: {why}"));
    }
    new
}

/// The entry of a provider's table that fits: by driver id, else by name, else by modalias.
///
/// # Safety
/// The table must be live.
unsafe fn entry(ops: &verbs_device_ops, dev: &verbs_sysfs_dev) -> *const verbs_match_ent {
    let mut own_name = NAME.to_bytes().to_vec();
    own_name.push(b'N');
    // SAFETY: the description's texts end in NUL.
    own_name.extend(unsafe { CStr::from_ptr(dev.ibdev_name.as_ptr()) }.to_bytes());
    let own_name = CString::new(own_name).unwrap_or_default();
    // SAFETY: the caller vouches for the table; patterns and texts are C strings.
    unsafe {
        let by_id = by_driver_id(ops, dev.driver_id);
        if !by_id.is_null() {
            return by_id;
        }
        let by_name = find(ops, |e| e.kind == MODALIAS && fits(e.u, &own_name));
        if !by_name.is_null() {
            return by_name;
        }
        let modalias = CStr::from_ptr(dev.modalias.as_ptr());
        if modalias.is_empty() {
            return ptr::null();
        }
        find(ops, |e| match e.kind {
            MODALIAS => fits(e.u, modalias),
            PCI => {
                let pattern = format!("pci:v{:08X}d{:08X}sv*", e.vendor, e.device);
                CString::new(pattern).is_ok_and(|pattern| fits(pattern.as_ptr(), modalias))
            }
            _ => false,
        })
    }
}

/// # Safety
/// The table must be live.
unsafe fn by_driver_id(ops: *const verbs_device_ops, id: u32) -> *const verbs_match_ent {
    if id == 0 {
        return ptr::null();
    }
    // SAFETY: the caller vouches for it; the id is the low half of the union.
    unsafe { find(&*ops, |e| e.kind == DRIVER_ID && (&raw const e.u).cast::<u32>().read() == id) }
}

/// # Safety
/// The table must be live and end in an entry of kind 0.
unsafe fn find(ops: &verbs_device_ops, fits: impl Fn(&verbs_match_ent) -> bool) -> *const verbs_match_ent {
    let mut at = ops.match_table;
    // SAFETY: the caller vouches for the table.
    unsafe {
        while !at.is_null() && (*at).kind != END {
            if fits(&*at) {
                return at;
            }
            at = at.add(1);
        }
    }
    ptr::null()
}

/// # Safety
/// `pattern` must be null or a C string.
unsafe fn fits(pattern: *const c_char, text: &CStr) -> bool {
    // SAFETY: the caller vouches for it.
    !pattern.is_null() && unsafe { libc::fnmatch(pattern, text.as_ptr(), 0) } == 0
}

/// # Safety
/// `text` must be null or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::object::write_text;

    fn device(name: &str, modalias: &str, driver_id: u32) -> verbs_sysfs_dev {
        let mut dev = verbs_sysfs_dev::zeroed();
        write_text(&mut dev.ibdev_name, name);
        write_text(&mut dev.modalias, modalias);
        dev.driver_id = driver_id;
        dev
    }

    fn table(entries: &[(u8, *const c_char, u16, u16)]) -> Vec<verbs_match_ent> {
        let end = [(END, ptr::null(), 0, 0)];
        entries
            .iter()
            .chain(&end)
            .map(|&(kind, u, vendor, device)| verbs_match_ent {
                driver_data: ptr::null_mut(),
                u,
                vendor,
                device,
                kind,
            })
            .collect()
    }

    fn ops(table: &[verbs_match_ent]) -> verbs_device_ops {
        // SAFETY: pointers, numbers and optional functions; zero is a value of each.
        let mut ops: verbs_device_ops = unsafe { std::mem::zeroed() };
        ops.match_table = table.as_ptr();
        ops
    }

    /// Which entry of the table fits.
    fn place(table: &[verbs_match_ent], dev: &verbs_sysfs_dev) -> Option<usize> {
        // SAFETY: the table ends in kind 0.
        let found = unsafe { entry(&ops(table), dev) };
        table.iter().position(|e| ptr::eq(e, found))
    }

    #[test]
    fn driver_id_goes_before_name_before_modalias() {
        let id = ptr::without_provenance(14);
        let all = table(&[
            (MODALIAS, c"rdma_device:*Nrxe*".as_ptr(), 0, 0),
            (PCI, ptr::null(), 0x15b3, 0x1017),
            (DRIVER_ID, id, 0, 0),
        ]);
        let pci = "pci:v000015B3d00001017sv000015B3sd00000008bc02sc07i00";
        assert_eq!(place(&all, &device("rxe0", pci, 14)), Some(2));
        assert_eq!(place(&all, &device("rxe0", pci, 0)), Some(0));
        assert_eq!(place(&all, &device("mlx5_0", pci, 1)), Some(1));
        assert_eq!(place(&all, &device("mlx5_0", "", 1)), None);
        assert_eq!(place(&all, &device("mlx5_0", "pci:v000015B3d00001018sv1", 1)), None);
        assert_eq!(place(&all, &device("myrxe", "", 0)), None);
    }

    #[test]
    fn a_modalias_pattern_is_matched_whole() {
        let all = table(&[(MODALIAS, c"acpi*:HISI00D1:*".as_ptr(), 0, 0)]);
        assert_eq!(place(&all, &device("hns_0", "acpi:HISI00D1:", 0)), Some(0));
        assert_eq!(place(&all, &device("hns_0", "acpi:HISI00D2:", 0)), None);
    }

    #[test]
    fn a_provider_without_a_table_matches_nothing() {
        let mut none = ops(&[]);
        none.match_table = ptr::null();
        // SAFETY: there is no table to follow.
        assert!(unsafe { entry(&none, &device("x", "y", 3)) }.is_null());
    }
}
