//! Finds ROCm's `lib` folder on the build machine, if ROCm is installed. At run time, hsa-vmm searches this
//! folder for the runtime, in addition to the usual places.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ROCM_PATH");
    // Ignores a relative `ROCM_PATH`: its meaning depends on the current folder.
    let rocm_path = std::env::var_os("ROCM_PATH").map(PathBuf::from).filter(|it| it.is_absolute());
    let roots = rocm_path.into_iter().chain([PathBuf::from("/opt/rocm")]);
    let holds_runtime = |folder: &PathBuf| folder.join("libhsa-runtime64.so.1").is_file();
    if let Some(folder) = roots.map(|root| Path::join(&root, "lib")).find(holds_runtime) {
        println!("cargo:rustc-env=HSA_VMM_ROCM_LIBRARIES={}", folder.display());
    }
}
