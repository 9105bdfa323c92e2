//! The runtime of `tests/hostile/runtime.c`, as a shared object. It reports ROCm 6.4, imports any file, and fails some
//! conformance cases and levels of `bringup`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the runtime into `folder`, and returns its path.
pub fn build(folder: &Path) -> PathBuf {
    let library = folder.join("libhsa-runtime64.so.1");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-shared", "-fPIC", "-pthread", "-I", &format!("{root}/hsa/sys/include")])
        .arg(format!("-Wl,--version-script={root}/tests/hostile/rocr.map"))
        .arg("-o")
        .arg(&library)
        .arg(format!("{root}/tests/hostile/runtime.c"))
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{output:?}");
    library
}
