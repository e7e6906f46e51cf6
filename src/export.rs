//! Versioned ELF symbols: `export!` and `export_bool!`, the only place that spells a C name and its node together.
#[cfg(target_arch = "x86_64")]
macro_rules! tail_jump {
    () => {
        "jmp {f}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! tail_jump {
    () => {
        "b {f}"
    };
}
#[cfg(target_arch = "riscv64")]
macro_rules! tail_jump {
    () => {
        "tail {f}"
    };
}

/// `export!(rust_fn => "c_name" @@ "NODE")` default version, `@` compatibility version.
macro_rules! export {
    ($f:path => $n:literal @@ $v:literal) => { export!(@asm $f, concat!("__export.", $n, ".", $v), concat!($n, "@@", $v)); };
    ($f:path => $n:literal @ $v:literal) => { export!(@asm $f, concat!("__export.", $n, ".", $v), concat!($n, "@", $v)); };
    (@asm $f:path, $label:expr, $name:expr) => {
        #[cfg(not(miri))]
        ::core::arch::global_asm!(
            concat!(".pushsection .text.", $label, ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", $label),
            concat!(".type ", $label, ",@function"),
            concat!(".symver ", $label, ", ", $name, ", remove"),
            concat!($label, ":"),
            ".cfi_startproc",
            tail_jump!(),
            ".cfi_endproc",
            concat!(".size ", $label, ", . - ", $label),
            ".popsection",
            f = sym $f,
        );
    };
}
/// `export_bool!("c_name" @@ "NODE")`: one zero byte of writable data under a versioned name.
macro_rules! export_bool {
    ($n:literal @@ $v:literal) => {
        #[cfg(not(miri))]
        ::core::arch::global_asm!(
            concat!(".pushsection .bss.", $n, ",\"aw\",@nobits"),
            concat!(".globl __export.", $n),
            concat!(".type __export.", $n, ",@object"),
            concat!(".symver __export.", $n, ", ", $n, "@@", $v, ", remove"),
            concat!("__export.", $n, ":"),
            ".zero 1",
            concat!(".size __export.", $n, ", 1"),
            ".popsection",
        );
    };
}
