//! Marker symbols that GNU ld makes for every node and lld does not; distributions list them in their symbols files.
//! And the providers' one variable.
macro_rules! mark_nodes {
    ($($v:literal)*) => { $(
        #[cfg(not(miri))]
        ::core::arch::global_asm!(
            concat!(".globl __node.", $v),
            concat!(".set __node.", $v, ", 0"),
            concat!(".symver __node.", $v, ", ", $v, "@@", $v, ", remove"),
        );
    )* };
}

mark_nodes! {
    "IBVERBS_1.0" "IBVERBS_1.1" "IBVERBS_1.5" "IBVERBS_1.6" "IBVERBS_1.7" "IBVERBS_1.8" "IBVERBS_1.9" "IBVERBS_1.10"
    "IBVERBS_1.11" "IBVERBS_1.12" "IBVERBS_1.13" "IBVERBS_1.14" "IBVERBS_1.15" "IBVERBS_1.16" "IBVERBS_1.17"
    "IBVERBS_1.18" "IBVERBS_PRIVATE_34" "IBVERBS_PRIVATE_57" "IBVERBS_PRIVATE_59" "IBVERBS_PRIVATE_64"
    "IBVERBS_PRIVATE_65" "ANYVERBS_1.0"
}

// Set by RDMAV_ALLOW_DISASSOC_DESTROY: destroying objects of a device that is gone succeeds.
export_bool!("verbs_allow_disassociate_destroy"
    @ "IBVERBS_PRIVATE_34" "IBVERBS_PRIVATE_57" "IBVERBS_PRIVATE_59" "IBVERBS_PRIVATE_64" @@ "IBVERBS_PRIVATE_65");
