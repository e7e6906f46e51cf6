//! The two variadic functions of the private nodes. Stable Rust cannot define one, so a few instructions build the
//! `va_list` of each architecture's C ABI and pass its address on.
use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use super::sysfs;
use crate::{
    abi::{verbs_context, verbs_sysfs_dev},
    sys::{
        errno::Errno,
        log::{self, Level},
    },
};

export_private!(34: verbs_log => "__verbs_log");
export_private!(34: read_ibdev_sysfs_file => "ibv_read_ibdev_sysfs_file");

/// Longest text that is formatted; more is cut.
const TEXT: usize = 4096;

unsafe extern "C" {
    fn vsnprintf(buf: *mut c_char, size: usize, fmt: *const c_char, ap: *mut c_void) -> c_int;
}

/// Register save area of 176 bytes, then a `va_list` of 24 (System V ABI 3.5.7).
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    (3 $f:path) => { variadic!(@ $f, "24", "rcx") };
    (4 $f:path) => { variadic!(@ $f, "32", "r8") };
    (@ $f:path, $named:literal, $list:literal) => {
        std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 208",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 48], xmm0",
            "movaps [rsp + 64], xmm1",
            "movaps [rsp + 80], xmm2",
            "movaps [rsp + 96], xmm3",
            "movaps [rsp + 112], xmm4",
            "movaps [rsp + 128], xmm5",
            "movaps [rsp + 144], xmm6",
            "movaps [rsp + 160], xmm7",
            "2:",
            concat!("mov dword ptr [rsp + 176], ", $named),
            "mov dword ptr [rsp + 180], 48",
            "lea rax, [rbp + 16]",
            "mov [rsp + 184], rax",
            "mov [rsp + 192], rsp",
            concat!("lea ", $list, ", [rsp + 176]"),
            "call {f}",
            "leave",
            "ret",
            f = sym $f,
        )
    };
}

/// General registers at 16, vector registers at 80, a `va_list` of 32 bytes at 208 (AAPCS64 B.4).
#[cfg(target_arch = "aarch64")]
macro_rules! variadic {
    (3 $f:path) => { variadic!(@ $f, "-40", "x3") };
    (4 $f:path) => { variadic!(@ $f, "-32", "x4") };
    (@ $f:path, $left:literal, $list:literal) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-240]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "add x9, sp, #240",
            "str x9, [sp, #208]",
            "add x9, sp, #80",
            "str x9, [sp, #216]",
            "add x9, sp, #208",
            "str x9, [sp, #224]",
            concat!("mov w9, #", $left),
            "str w9, [sp, #232]",
            "mov w9, #-128",
            "str w9, [sp, #236]",
            concat!("add ", $list, ", sp, #208"),
            "bl {f}",
            "ldp x29, x30, [sp], #240",
            "ret",
            f = sym $f,
        )
    };
}

/// A `va_list` is the address of the first argument; registers are stored below the caller's stack arguments.
#[cfg(target_arch = "riscv64")]
macro_rules! variadic {
    (3 $f:path) => { variadic!(@ $f, "24", "a3") };
    (4 $f:path) => { variadic!(@ $f, "32", "a4") };
    (@ $f:path, $first:literal, $list:literal) => {
        std::arch::naked_asm!(
            "addi sp, sp, -80",
            "sd ra, 0(sp)",
            "sd a3, 40(sp)",
            "sd a4, 48(sp)",
            "sd a5, 56(sp)",
            "sd a6, 64(sp)",
            "sd a7, 72(sp)",
            concat!("addi ", $list, ", sp, 16 + ", $first),
            "call {f}",
            "ld ra, 0(sp)",
            "addi sp, sp, 80",
            "ret",
            f = sym $f,
        )
    };
}

/// `void __verbs_log(struct verbs_context *, uint32_t level, const char *fmt, ...)`: a line for the log file. `fmt`
/// names device, function and line already.
#[unsafe(naked)]
unsafe extern "C" fn verbs_log() {
    variadic!(3 log_list)
}

/// `int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct verbs_sysfs_dev *, const char *fnfmt, ...)`: reads a
/// file of the device's directory. Returns its length or -1 with errno.
#[unsafe(naked)]
unsafe extern "C" fn read_ibdev_sysfs_file() {
    variadic!(4 read_list)
}

unsafe extern "C" fn log_list(_: *mut verbs_context, level: u32, fmt: *const c_char, ap: *mut c_void) {
    let level = match level {
        1 => Level::Error,
        2 => Level::Warning,
        3 => Level::Info,
        _ => Level::Debug,
    };
    if log::enabled_at(level) && !fmt.is_null() {
        // SAFETY: the caller gives a format and the arguments that it names.
        let text = unsafe { format(fmt, ap) };
        log::log(level, format_args!("{}", String::from_utf8_lossy(text.trim_ascii_end())));
    }
}

unsafe extern "C" fn read_list(
    buf: *mut c_char,
    size: usize,
    device: *const verbs_sysfs_dev,
    fmt: *const c_char,
    ap: *mut c_void,
) -> c_int {
    if device.is_null() || fmt.is_null() || buf.is_null() {
        Errno::EINVAL.store();
        return -1;
    }
    // SAFETY: the caller gives a device whose path ends in NUL, a format with its arguments, and `size` bytes.
    unsafe {
        let dir = CStr::from_ptr((&raw const (*device).ibdev_path).cast());
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(&format(fmt, ap)));
        sysfs::read_text(&path, buf, size)
    }
}

/// # Safety
/// `fmt` must be a C string and `ap` a `va_list` with the arguments it names; the list is used up.
unsafe fn format(fmt: *const c_char, ap: *mut c_void) -> Vec<u8> {
    let mut text = vec![0; TEXT];
    // SAFETY: `text` has as many bytes as said; the caller vouches for the rest.
    let length = unsafe { vsnprintf(text.as_mut_ptr().cast(), TEXT, fmt, ap) };
    text.truncate(usize::try_from(length).unwrap_or(0).min(TEXT - 1));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = unsafe extern "C" fn(*mut c_char, usize, *mut verbs_sysfs_dev, *const c_char, ...) -> c_int;
    type Show = unsafe extern "C" fn(*mut u8, usize, *const c_char, ...);

    /// A variadic function that formats into a buffer.
    #[unsafe(naked)]
    unsafe extern "C" fn show() {
        variadic!(3 show_list)
    }

    unsafe extern "C" fn show_list(out: *mut u8, size: usize, fmt: *const c_char, ap: *mut c_void) {
        // SAFETY: the test passes a buffer of `size` bytes, a format and its arguments.
        let text = unsafe { format(fmt, ap) };
        assert!(text.len() < size);
        // SAFETY: it fits, as just checked.
        unsafe { out.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }

    #[test]
    fn arguments_come_from_registers_and_from_the_stack() {
        let mut out = [0u8; 256];
        // SAFETY: the naked function has this C signature.
        let show: Show = unsafe { std::mem::transmute(show as *const ()) };
        // SAFETY: the buffer has 256 bytes and the arguments fit the format.
        unsafe {
            let fmt = c"%d %s %f %ld %d %d %g %d %s %g %g %g %g %g %g %g %d".as_ptr();
            show(
                out.as_mut_ptr(),
                256,
                fmt,
                1,
                c"two".as_ptr(),
                3.5f64,
                -4i64,
                5,
                6,
                7.25f64,
                8,
                c"nine".as_ptr(),
                10.0f64,
                11.0f64,
                12.0f64,
                13.0f64,
                14.0f64,
                15.0f64,
                16.5f64,
                17,
            );
        }
        let text = CStr::from_bytes_until_nul(&out).unwrap().to_str().unwrap();
        assert_eq!(text, "1 two 3.500000 -4 5 6 7.25 8 nine 10 11 12 13 14 15 16.5 17");
    }

    #[test]
    fn file_name_is_formatted() {
        let mut device = verbs_sysfs_dev::zeroed();
        for (to, from) in device.ibdev_path.iter_mut().zip(b"/proc/self") {
            *to = *from as c_char;
        }
        let mut buf = [0u8; 64];
        // SAFETY: the naked function has this C signature.
        let read: Read = unsafe { std::mem::transmute(read_ibdev_sysfs_file as *const ()) };
        // SAFETY: buffer, device and format are valid and the arguments fit the format.
        let n = unsafe {
            let name = c"%s%c%s_%s_%s".as_ptr();
            let buf = buf.as_mut_ptr().cast();
            read(
                buf,
                64,
                &mut device,
                name,
                c"oo".as_ptr(),
                i32::from(b'm'),
                c"".as_ptr(),
                c"score".as_ptr(),
                c"adj".as_ptr(),
            )
        };
        assert!(n > 0 && buf[0].is_ascii_digit() || buf[0] == b'-', "{n} {buf:?}");
    }
}
