//! What libibverbs in this process says of its embedded devices. It is found by name: whatever the program uses, the view shows.
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// The vendor id of the embedded devices; kernel devices are shown by the kernel.
const VENDOR_ID: u32 = 0x02_6176;
/// Rows of a GID table that are asked for; `sgid_index` has 8 bits.
const MAX_GIDS: usize = 256;

/// An embedded device with its one port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Device {
    pub name: String,
    /// The file below `/dev/infiniband`.
    pub node: String,
    pub fw_ver: String,
    pub node_guid: [u8; 8],
    pub sys_image_guid: [u8; 8],
    pub vendor_id: u32,
    pub part_id: u32,
    pub hw_ver: u32,
    pub port: Port,
    pub pkeys: Vec<u16>,
    /// Rows in use, by index.
    pub gids: Vec<(usize, GidRow)>,
}

/// `ibv_query_port` of port 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Port {
    pub state: u32,
    pub phys_state: u8,
    pub gid_tbl_len: usize,
    pub cap_flags: u32,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub sm_sl: u8,
    pub width: u8,
    pub speed: u8,
    /// 1 InfiniBand, 2 Ethernet.
    pub link_layer: u8,
}

/// A row of the GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidRow {
    pub gid: [u8; 16],
    /// 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub kind: u32,
    /// The interface; empty where there is none.
    pub interface: String,
}

/// The embedded devices, in the library's order; empty where the program has no libibverbs or it lists none.
pub fn devices() -> Vec<Device> {
    let Some(library) = Library::find() else { return Vec::new() };
    let mut count = 0;
    // SAFETY: the functions are libibverbs's own, called by their C interface; the list lives until it is freed below.
    unsafe {
        let list = (library.get_device_list)(&mut count);
        if list.is_null() {
            return Vec::new();
        }
        let found = (0..count as usize).filter_map(|i| library.look(*list.add(i))).collect();
        (library.free_device_list)(list);
        found
    }
}

/// `struct ibv_device`.
#[repr(C)]
struct CDevice {
    ops: [*mut c_void; 2],
    node_type: c_int,
    transport_type: c_int,
    name: [c_char; 64],
    dev_name: [c_char; 64],
}

/// `struct ibv_device_attr` as far as it is read, with room for what any release writes behind.
#[repr(C)]
struct CDeviceAttr {
    fw_ver: [c_char; 64],
    node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    rest: [u32; 128],
}

/// `struct ibv_port_attr`, likewise.
#[repr(C)]
struct CPortAttr {
    state: u32,
    max_mtu: u32,
    active_mtu: u32,
    gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    link_layer: u8,
    flags: u8,
    rest: [u32; 32],
}

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CGidEntry {
    gid: [u64; 2],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

type Context = *mut c_void;

/// The functions that the view asks.
#[derive(Clone, Copy)]
struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut CDevice,
    free_device_list: unsafe extern "C" fn(*mut *mut CDevice),
    open_device: unsafe extern "C" fn(*mut CDevice) -> Context,
    close_device: unsafe extern "C" fn(Context) -> c_int,
    query_device: unsafe extern "C" fn(Context, *mut CDeviceAttr) -> c_int,
    query_port: unsafe extern "C" fn(Context, u8, *mut CPortAttr) -> c_int,
    query_pkey: unsafe extern "C" fn(Context, u8, c_int, *mut u16) -> c_int,
    query_gid_table: unsafe extern "C" fn(Context, *mut CGidEntry, usize, u32, usize) -> isize,
}

impl Library {
    fn find() -> Option<Library> {
        // SAFETY: each symbol is the C function of that name, whose signature the field has.
        unsafe {
            Some(Library {
                get_device_list: function(c"ibv_get_device_list")?,
                free_device_list: function(c"ibv_free_device_list")?,
                open_device: function(c"ibv_open_device")?,
                close_device: function(c"ibv_close_device")?,
                query_device: function(c"ibv_query_device")?,
                query_port: function(c"ibv_query_port")?,
                query_pkey: function(c"ibv_query_pkey")?,
                query_gid_table: function(c"_ibv_query_gid_table")?,
            })
        }
    }

    /// Opens the device for a moment, to ask; `None` for one that is not embedded.
    ///
    /// # Safety
    /// `device` must stand in a device list that has not been freed.
    unsafe fn look(&self, device: *mut CDevice) -> Option<Device> {
        // SAFETY: the caller vouches for the device; the context is closed after its last use.
        unsafe {
            let context = (self.open_device)(device);
            if context.is_null() {
                return None;
            }
            let found = self.ask(&*device, context);
            (self.close_device)(context);
            found
        }
    }

    /// # Safety
    /// `context` must be open.
    unsafe fn ask(&self, device: &CDevice, context: Context) -> Option<Device> {
        // SAFETY: both are plain numbers, for which zero is a value, and larger than what any release writes; the caller vouches
        // for the context.
        let (attr, port) = unsafe {
            let (mut attr, mut port): (CDeviceAttr, CPortAttr) = (std::mem::zeroed(), std::mem::zeroed());
            if (self.query_device)(context, &mut attr) != 0 || attr.vendor_id != VENDOR_ID {
                return None;
            }
            if (self.query_port)(context, 1, &mut port) != 0 {
                return None;
            }
            (attr, port)
        };
        let pkey = |index| {
            let mut pkey = 0;
            // SAFETY: the caller vouches for the context.
            let asked = unsafe { (self.query_pkey)(context, 1, index, &mut pkey) };
            (asked == 0).then_some(u16::from_be(pkey))
        };
        let none = CGidEntry { gid: [0; 2], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut rows = [none; MAX_GIDS];
        // SAFETY: the rows have the length and size that are told.
        let count = unsafe {
            (self.query_gid_table)(context, rows.as_mut_ptr(), MAX_GIDS, 0, size_of::<CGidEntry>())
        };
        let used = rows.iter().take(count.max(0) as usize).filter(|row| row.port_num == 1);
        Some(Device {
            name: text(&device.name),
            node: text(&device.dev_name),
            fw_ver: text(&attr.fw_ver),
            node_guid: attr.node_guid.to_ne_bytes(),
            sys_image_guid: attr.sys_image_guid.to_ne_bytes(),
            vendor_id: attr.vendor_id,
            part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            port: Port {
                state: port.state,
                phys_state: port.phys_state,
                gid_tbl_len: port.gid_tbl_len.max(0) as usize,
                cap_flags: port.port_cap_flags,
                lid: port.lid,
                sm_lid: port.sm_lid,
                lmc: port.lmc,
                sm_sl: port.sm_sl,
                width: port.active_width,
                speed: port.active_speed,
                link_layer: port.link_layer,
            },
            pkeys: (0..i32::from(port.pkey_tbl_len)).map_while(pkey).collect(),
            gids: used.map(|row| (row.gid_index as usize, gid_row(row))).collect(),
        })
    }
}

fn gid_row(row: &CGidEntry) -> GidRow {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&row.gid[0].to_ne_bytes());
    gid[8..].copy_from_slice(&row.gid[1].to_ne_bytes());
    let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call asks for.
    let known = unsafe { !libc::if_indextoname(row.ndev_ifindex, name.as_mut_ptr()).is_null() };
    GidRow { gid, kind: row.gid_type, interface: if known { text(&name) } else { String::new() } }
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A function of libibverbs.
///
/// # Safety
/// `F` must be a function pointer of the named function's signature.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller vouches for the type, and the address is that of a function.
    symbol(name).map(|address| unsafe { std::mem::transmute_copy(&address) })
}

/// The address of a function of libibverbs: the one that the program sees, or that of the library as the loader finds it.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    static LOADED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: both take C strings; a library that was loaded stays.
    unsafe {
        let seen = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if !seen.is_null() {
            return Some(seen);
        }
        let mut library = LOADED.load(Ordering::Acquire);
        if library.is_null() {
            library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            LOADED.store(library, Ordering::Release);
        }
        if library.is_null() {
            return None;
        }
        let seen = libc::dlsym(library, name.as_ptr());
        (!seen.is_null()).then_some(seen)
    }
}
