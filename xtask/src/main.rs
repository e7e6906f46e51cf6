//! `cargo xtask demo | test | bench | guest | install`.
fn main() {}
