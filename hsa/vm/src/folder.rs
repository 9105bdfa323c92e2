//! The folder of fetched kernels, and the folder of the kernel module's source.

use std::env;
use std::path::{Path, PathBuf};

/// Returns the folder of the fetched kernels.
///
/// `HSA_VMM_VM` names the folder. The default is `vm` beside the folder of AMD's runtime (`beside`), which is in
/// cargo's build folder or in the user's cache.
#[must_use]
pub fn folder(beside: &Path) -> PathBuf {
    match env::var_os("HSA_VMM_VM").filter(|configured| !configured.is_empty()) {
        Some(configured) => std::path::absolute(&configured).unwrap_or_else(|_| configured.into()),
        None => beside.with_file_name("vm"),
    }
}

/// Finds the kernel module's source: `HSA_VMM_VM_MODULE`, or `hsa/vm/module` in a folder above this program
/// or above the current folder.
pub(crate) fn module_source() -> Option<PathBuf> {
    if let Some(configured) =
        env::var_os("HSA_VMM_VM_MODULE").filter(|configured| !configured.is_empty())
    {
        return Some(configured.into());
    }
    let starts = [env::current_exe().ok(), env::current_dir().ok()];
    let mut folders = starts.iter().flatten().flat_map(|start| start.ancestors());
    folders.find_map(|folder| {
        let source = folder.join("hsa/vm/module");
        source.join("Kbuild").is_file().then_some(source)
    })
}
