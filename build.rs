//! Finds ROCm on the machine that builds: its library folder becomes one of the places where the
//! runtime is looked for later. None found is fine.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ROCM_PATH");
    // A relative folder would be another one where the program runs.
    let folders = std::env::var_os("ROCM_PATH").map(PathBuf::from).filter(|it| it.is_absolute());
    let folders = folders.into_iter().chain([PathBuf::from("/opt/rocm")]);
    let holds_runtime = |folder: &PathBuf| folder.join("libhsa-runtime64.so.1").is_file();
    if let Some(folder) = folders.map(|rocm| Path::join(&rocm, "lib")).find(holds_runtime) {
        println!("cargo:rustc-env=HSA_VMM_ROCM_LIBRARIES={}", folder.display());
    }
}
