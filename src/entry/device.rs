//! `ibv_device`: the list, names and numbers, opening and closing.
use crate::abi::{ibv_context, ibv_device};
use crate::core::convention::{code, given, nothing, pointer, refuse};
use crate::core::{self, context, device};
use crate::sys::errno::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

export!(ibv_get_device_list => "ibv_get_device_list" @@ "IBVERBS_1.1");
export!(ibv_free_device_list => "ibv_free_device_list" @@ "IBVERBS_1.1");
export!(ibv_get_device_name => "ibv_get_device_name" @@ "IBVERBS_1.1");
export!(ibv_get_device_guid => "ibv_get_device_guid" @@ "IBVERBS_1.1");
export!(ibv_get_device_index => "ibv_get_device_index" @@ "IBVERBS_1.9");
export!(ibv_open_device => "ibv_open_device" @@ "IBVERBS_1.1");
export!(ibv_close_device => "ibv_close_device" @@ "IBVERBS_1.1");
export!(ibv_import_device => "ibv_import_device" @@ "IBVERBS_1.10");

/// A NULL-terminated array of the devices present now; empty, not NULL, where there is none.
pub(super) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        if !num_devices.is_null() {
            // SAFETY: the application gives a place for the number, or NULL.
            unsafe { *num_devices = 0 };
        }
        super::fork::read_environment();
        let devices = device::list(core::providers());
        // SAFETY: calloc has no preconditions.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        if list.is_null() {
            devices.into_iter().for_each(device::release);
            return Err(Errno::ENOMEM);
        }
        let list = list.cast::<*mut ibv_device>();
        // SAFETY: the array has one place more than there are devices, already zero; the number's place as above.
        unsafe {
            ptr::copy_nonoverlapping(devices.as_ptr(), list, devices.len());
            if !num_devices.is_null() {
                *num_devices = devices.len() as c_int;
            }
        }
        Ok(list)
    })
}

/// Frees the array; devices that are open stay usable.
pub(super) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    nothing(|| {
        if list.is_null() {
            return;
        }
        let mut at = list;
        // SAFETY: the list came from ibv_get_device_list: it ends in NULL and malloc made it.
        unsafe {
            while !(*at).is_null() {
                device::release(*at);
                at = at.add(1);
            }
            libc::free(list.cast());
        }
    });
}

/// The name, which lives as long as the device.
pub(super) unsafe extern "C" fn ibv_get_device_name(dev: *mut ibv_device) -> *const c_char {
    if dev.is_null() { ptr::null() } else { dev.wrapping_byte_add(offset_of!(ibv_device, name)).cast() }
}

/// The GUID in network byte order; 0 where the device has none.
pub(super) unsafe extern "C" fn ibv_get_device_guid(dev: *mut ibv_device) -> u64 {
    if dev.is_null() { 0 } else { device::guid(dev) }
}

/// The kernel's index of the device, or -1.
pub(super) unsafe extern "C" fn ibv_get_device_index(dev: *mut ibv_device) -> c_int {
    if dev.is_null() { -1 } else { device::index(dev) }
}

/// Opens a device of a list; the list may be freed afterwards.
pub(super) unsafe extern "C" fn ibv_open_device(dev: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the application's device goes on unchanged.
    unsafe { verbs_open_device(dev, ptr::null_mut()) }
}

/// `verbs_open_device` of the private node; `private_data` is for compiled providers.
pub(super) unsafe extern "C" fn verbs_open_device(
    dev: *mut ibv_device,
    private_data: *mut c_void,
) -> *mut ibv_context {
    pointer(|| {
        given(dev, "ibv_open_device", "device")?;
        let dev = device::known(dev).map_err(|_| {
            refuse!(EINVAL, "ibv_open_device device={dev:p}: expected an entry of a device list")
        })?;
        // SAFETY: a device of the list.
        let vctx = unsafe { context::open(dev, private_data) }?;
        // SAFETY: the context is the extension's last field.
        Ok(unsafe { &raw mut (*vctx).context })
    })
}

/// Always 0, as with rdma-core.
pub(super) unsafe extern "C" fn ibv_close_device(ctx: *mut ibv_context) -> c_int {
    code(|| {
        given(ctx, "ibv_close_device", "context")?;
        // SAFETY: the application's last use of the context.
        unsafe { context::close(ctx) };
        Ok(0)
    })
}

/// A context over a duplicate of another's `cmd_fd`, which it takes over.
pub(super) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let vctx = context::import(cmd_fd)?;
        // SAFETY: the context is the extension's last field.
        Ok(unsafe { &raw mut (*vctx).context })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_in_null_and_its_number_may_be_left_out() {
        // SAFETY: list and number are used as the man page says.
        unsafe {
            let mut n = -1;
            let list = ibv_get_device_list(&mut n);
            assert!(!list.is_null() && n >= 0);
            assert!((*list.add(n as usize)).is_null());
            ibv_free_device_list(list);
            ibv_free_device_list(ibv_get_device_list(ptr::null_mut()));
            ibv_free_device_list(ptr::null_mut());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let stray = ptr::without_provenance_mut(4096);
        // SAFETY: neither pointer is followed.
        unsafe {
            assert!(ibv_open_device(ptr::null_mut()).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
            assert!(ibv_open_device(stray).is_null());
            assert!(ibv_get_device_name(ptr::null_mut()).is_null());
            assert_eq!(ibv_get_device_index(ptr::null_mut()), -1);
            assert!(ibv_import_device(3).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
        }
    }
}
