//! The device list: what providers find, kept so that a device has one identity for the life of the process.
//!
//! Entries are never freed and only ever appended, so that the list needs no lock and a forked child finds it whole;
//! there are as many as differently named devices were ever seen. `refcount` counts lists and open contexts all the same,
//! since compiled providers look at it.
use crate::abi::{ibv_device, verbs_device};
use crate::provider::{Found, Provider, object};
use crate::sys::errno::Errno;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A device of the list.
struct Device {
    /// What `ibv_device *` points to: the provider's, or else ours.
    c: *mut verbs_device,
    is_ours: bool,
    provider: &'static dyn Provider,
    found: Found,
    next: *mut Device,
}

/// Only of one that was never published: another thread has been faster.
impl Drop for Device {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: made by `make` from a box, and nobody has seen it.
            drop(unsafe { Box::from_raw(self.c) });
        }
    }
}

static FIRST: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// The devices present now, each with a reference of its own that `release` gives back.
pub fn list(providers: &[&'static dyn Provider]) -> Vec<*mut ibv_device> {
    crate::sys::settings::check();
    let kernel = crate::core::sysfs::kernel_has_devices();
    let mut devices = Vec::new();
    for &provider in providers {
        devices.extend(provider.devices(kernel).into_iter().map(|found| c_device(entry(provider, found))));
    }
    devices.iter().for_each(|&device| retain(device));
    devices
}

/// Counts one more user of a device.
pub fn retain(device: *mut ibv_device) {
    // SAFETY: entries of the list are never freed.
    unsafe { (*device.cast::<verbs_device>()).refcount.fetch_add(1, Ordering::Relaxed) };
}

/// Gives back what `list` or `retain` counted.
pub fn release(device: *mut ibv_device) {
    // SAFETY: as in `retain`.
    unsafe { (*device.cast::<verbs_device>()).refcount.fetch_sub(1, Ordering::Release) };
}

/// The provider of a device and the provider's own name for it.
pub fn origin(device: *mut ibv_device) -> Option<(&'static dyn Provider, usize)> {
    look_up(device).map(|d| (d.provider, d.found.token))
}

/// GUID in network byte order; 0 for a pointer that is no device.
pub fn guid(device: *mut ibv_device) -> u64 {
    look_up(device).map_or(0, |d| d.found.guid)
}

/// The kernel's index of the device, or -1.
pub fn index(device: *mut ibv_device) -> i32 {
    look_up(device).map_or(-1, |d| d.found.index)
}

/// A pointer that stands in the list.
///
/// # Errors
/// EINVAL for any other.
pub fn known(device: *mut ibv_device) -> Result<*mut ibv_device, Errno> {
    look_up(device).map(|_| device).ok_or(Errno::EINVAL)
}

fn look_up(device: *mut ibv_device) -> Option<&'static Device> {
    // SAFETY: entries are complete before they are published, never change and are never freed.
    entries().map(|d| unsafe { &*d }).find(|d| ptr::eq(d.c.cast(), device))
}

fn c_device(entry: *mut Device) -> *mut ibv_device {
    // SAFETY: as in `look_up`.
    unsafe { (*entry).c.cast() }
}

fn entries() -> impl Iterator<Item = *mut Device> {
    let mut at = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        let this = at;
        // SAFETY: entries are complete before they are published and are never freed.
        at = unsafe { this.as_ref()? }.next;
        Some(this)
    })
}

/// The entry of this device; made if the process sees it for the first time.
fn entry(provider: &'static dyn Provider, found: Found) -> *mut Device {
    let same = |d: &*mut Device| {
        // SAFETY: as in `entries`.
        let device = unsafe { &**d };
        device.provider.name() == provider.name() && device.found == found
    };
    let mut fresh: *mut Device = ptr::null_mut();
    loop {
        let first = FIRST.load(Ordering::Acquire);
        if let Some(known) = entries().find(same) {
            if !fresh.is_null() {
                // SAFETY: made below and never published.
                drop(unsafe { Box::from_raw(fresh) });
            }
            return known;
        }
        if fresh.is_null() {
            fresh = Box::into_raw(Box::new(make(provider, found.clone())));
        }
        // SAFETY: not published yet, so ours alone.
        unsafe { (*fresh).next = first };
        if FIRST.compare_exchange(first, fresh, Ordering::Release, Ordering::Relaxed).is_ok() {
            return fresh;
        }
    }
}

fn make(provider: &'static dyn Provider, found: Found) -> Device {
    let theirs = provider.device(found.token);
    let c = theirs.unwrap_or_else(|| {
        // SAFETY: plain data, a null pointer, no function and an atomic counter; zero is a value of each.
        let c: *mut verbs_device = Box::into_raw(Box::new(unsafe { std::mem::zeroed() }));
        // SAFETY: a fresh object of ours.
        unsafe { object::fill_device(c, &found) };
        c
    });
    Device { c, is_ours: theirs.is_none(), provider, found, next: ptr::null_mut() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ibv_device, verbs_context};
    use std::ffi::CStr;

    struct Two;
    impl Provider for Two {
        fn name(&self) -> &'static str {
            "two"
        }
        fn devices(&self, _: bool) -> Vec<Found> {
            let found = |n: usize| Found {
                name: format!("two{n}"),
                dev_name: format!("uverbs{n}"),
                dev_path: String::new(),
                ibdev_path: "x".repeat(300),
                node_type: 1,
                transport_type: 0,
                guid: 0x0102_u64.to_be() + n as u64,
                index: -1,
                token: n,
            };
            vec![found(0), found(1)]
        }
        unsafe fn alloc_context(&self, _: *mut ibv_device, _: usize) -> Result<*mut verbs_context, Errno> {
            Err(Errno::ENODEV)
        }
    }

    #[test]
    fn a_device_keeps_its_identity_from_list_to_list() {
        let first = list(&[&Two]);
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| list(&[&Two]).iter().map(|d| d.addr()).collect::<Vec<_>>()))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), first.iter().map(|d| d.addr()).collect::<Vec<_>>());
        }
        // SAFETY: entries live for ever.
        unsafe {
            assert_eq!(CStr::from_ptr((*first[1]).name.as_ptr()), c"two1");
            assert_eq!(CStr::from_ptr((*first[0]).ibdev_path.as_ptr()).count_bytes(), 255);
        }
        assert_eq!((origin(first[1]).map(|o| o.1), guid(first[0])), (Some(1), 0x0102_u64.to_be()));
        assert_eq!(known(first[0]), Ok(first[0]));
        assert_eq!(known(ptr::without_provenance_mut(64)), Err(Errno::EINVAL));
    }
}
