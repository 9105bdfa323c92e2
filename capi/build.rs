//! Keeps the shared library loaded after `dlclose`, because an open runtime has threads, memory and descriptors.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
