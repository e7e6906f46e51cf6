//! Versioned ELF symbols: `export!` and its relatives, the only place that spells a C name and its node together.
//!
//! Each exported name is a jump to an ordinary Rust function, because the compiler's own version script would export
//! a `no_mangle` function without a node. The lines must sit in the package that makes the shared library.
#[cfg(target_arch = "x86_64")]
macro_rules! tail_jump {
    () => {
        "endbr64\njmp {f}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! tail_jump {
    () => {
        "hint #34\nb {f}"
    };
}
#[cfg(target_arch = "riscv64")]
macro_rules! tail_jump {
    () => {
        "tail {f}"
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
compile_error!("export! needs this architecture's jump");

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

/// `export_private!(34: rust_fn => "c_name")`: every private node from this one to the newest, which is the default.
/// `34 to 57` stops at a node, for a function whose parameters changed after it.
macro_rules! export_private {
    (34: $f:path => $n:literal) => {
        export_private!(34 to 57: $f => $n);
        export_private!(59: $f => $n);
    };
    (57: $f:path => $n:literal) => {
        export!($f => $n @ "IBVERBS_PRIVATE_57");
        export_private!(59: $f => $n);
    };
    (59: $f:path => $n:literal) => {
        export!($f => $n @ "IBVERBS_PRIVATE_59");
        export_private!(64: $f => $n);
    };
    (64: $f:path => $n:literal) => {
        export!($f => $n @ "IBVERBS_PRIVATE_64");
        export_private!(65: $f => $n);
    };
    (65: $f:path => $n:literal) => {
        export!($f => $n @@ "IBVERBS_PRIVATE_65");
    };
    (34 to 34: $f:path => $n:literal) => {
        export!($f => $n @ "IBVERBS_PRIVATE_34");
    };
    (34 to 57: $f:path => $n:literal) => {
        export!($f => $n @ "IBVERBS_PRIVATE_34");
        export!($f => $n @ "IBVERBS_PRIVATE_57");
    };
    (34 to 59: $f:path => $n:literal) => {
        export_private!(34 to 57: $f => $n);
        export!($f => $n @ "IBVERBS_PRIVATE_59");
    };
    (34 to 64: $f:path => $n:literal) => {
        export_private!(34 to 59: $f => $n);
        export!($f => $n @ "IBVERBS_PRIVATE_64");
    };
}

/// `export_bool!("c_name" @ "NODE" "NODE" @@ "NODE")`: one zero byte of writable data under versioned names.
macro_rules! export_bool {
    ($n:literal @ $($old:literal)* @@ $v:literal) => {
        #[cfg(not(miri))]
        ::core::arch::global_asm!(
            concat!(".pushsection .bss.", $n, ",\"aw\",@nobits"),
            $(
                concat!(".globl __export.", $n, ".", $old),
                concat!(".type __export.", $n, ".", $old, ",@object"),
                concat!(".size __export.", $n, ".", $old, ", 1"),
                concat!(".symver __export.", $n, ".", $old, ", ", $n, "@", $old, ", remove"),
                concat!("__export.", $n, ".", $old, ":"),
            )*
            concat!(".globl __export.", $n),
            concat!(".type __export.", $n, ",@object"),
            concat!(".size __export.", $n, ", 1"),
            concat!(".symver __export.", $n, ", ", $n, "@@", $v, ", remove"),
            concat!("__export.", $n, ":"),
            // Under this name the library itself finds it.
            concat!(".globl __value.", $n),
            concat!(".hidden __value.", $n),
            concat!("__value.", $n, ":"),
            ".zero 1",
            ".popsection",
        );
    };
}
