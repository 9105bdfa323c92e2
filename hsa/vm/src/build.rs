//! Compiles the kernel modules of this project for a kernel.

use crate::tool::{self, ToolError, file_error};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The module that makes the kernel load other modules faster.
pub(crate) const FAST_LOAD: &str = "fast_load.ko";
/// The module with the software GPUs.
pub(crate) const SOFTWARE_GPUS: &str = "hsa_vmm.ko";

/// Copies the modules' files from `source` to `work`, compiles the modules there, and strips their debug information.
///
/// `headers` is the folder of the kernel's headers, in which `make` runs. `amd` is the folder `drivers/gpu/drm/amd` of
/// the kernel's source, or a copy of the headers in that folder.
pub(crate) fn build(
    source: &Path,
    headers: &Path,
    amd: &Path,
    work: &Path,
) -> Result<(), ToolError> {
    fs::create_dir_all(work).map_err(file_error(work))?;
    for entry in fs::read_dir(source).map_err(file_error(source))? {
        let path = entry.map_err(file_error(source))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, work.join(name)).map_err(file_error(&path))?;
        }
    }
    let mut command = Command::new("make");
    command.arg("--silent").arg("-C").arg(headers).arg("modules");
    command.arg(format!("M={}", work.display())).arg(format!("AMD={}", amd.display()));
    // The modules need no type information, which `pahole` would generate.
    command.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
    tool::run(command, "make")?;
    let mut command = Command::new("strip");
    command.arg("--strip-debug").args([FAST_LOAD, SOFTWARE_GPUS].map(|file| work.join(file)));
    tool::run(command, "binutils").map(drop)
}

/// Replaces the path of an included file in the Makefile of an unpacked package: the installed path becomes the path
/// below `root`.
pub(crate) fn relocate(makefile: &Path, root: &Path) -> Result<(), ToolError> {
    let text = fs::read_to_string(makefile).map_err(file_error(makefile))?;
    let relocated =
        text.replace("include /usr/src/", &format!("include {}/usr/src/", root.display()));
    fs::write(makefile, relocated).map_err(file_error(makefile))
}
