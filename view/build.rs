//! The name that the loader knows the library by.
fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libanyverbs-view.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
