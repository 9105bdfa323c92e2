//! The initial file system of the virtual machine: `init`, busybox, and the kernel modules.

use crate::Kernel;
use crate::build::{FAST_LOAD, SOFTWARE_GPUS};
use crate::tool::{self, ToolError, file_error};
use cpio::newc::{Builder, trailer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first program in the virtual machine.
pub(crate) const INIT: &[u8] = include_bytes!("../guest/init");
/// The modules that `init` needs, and AMD's driver.
const MODULES: [&str; 6] =
    ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "amdgpu"];
// The modes of archive entries: a file, a folder, a symbolic link.

const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;

/// Writes the initial file system. `modules` maps the names of the kernel's modules to their files. `configuration` is
/// the file with the kernel's options. `own_modules` is the folder in which this project's modules were compiled.
pub(crate) fn write(
    target: &Path,
    modules: &BTreeMap<String, PathBuf>,
    configuration: &Path,
    busybox: &Path,
    own_modules: &Path,
) -> Result<(), ToolError> {
    let mut load_order = LoadOrder { files: modules, order: Vec::new(), visited: BTreeSet::new() };
    for name in MODULES {
        load_order.add(name)?;
    }
    let mut archive = Archive { bytes: Vec::new() };
    let add_files = |archive: &mut Archive| -> io::Result<()> {
        archive.add("bin", FOLDER, b"")?;
        archive.add("modules", FOLDER, b"")?;
        archive.add("init", FILE, INIT)?;
        archive.add("bin/busybox", FILE, &fs::read(busybox)?)?;
        for program in [
            "sh", "cat", "chroot", "cp", "dmesg", "insmod", "kill", "mkdir", "mount", "poweroff",
            "rm", "rmmod", "sleep", "sync", "uname", "unshare",
        ] {
            archive.add(&format!("bin/{program}"), LINK, b"busybox")?;
        }
        archive.add("configuration", FILE, &fs::read(configuration)?)?;
        let mut order = String::new();
        for (name, bytes) in &load_order.order {
            archive.add(&format!("modules/{name}.ko"), FILE, bytes)?;
            order += &format!("{name}\n");
        }
        for file in [FAST_LOAD, SOFTWARE_GPUS] {
            archive.add(&format!("modules/{file}"), FILE, &fs::read(own_modules.join(file))?)?;
        }
        archive.add("modules/order", FILE, (order + "hsa_vmm\n").as_bytes())
    };
    add_files(&mut archive).map_err(file_error(target))?;
    let bytes = trailer(archive.bytes).map_err(file_error(target))?;
    let init = target.with_file_name(Kernel::INIT);
    fs::write(&init, INIT).map_err(file_error(&init))?;
    // Rename the complete file, so that other processes never see a partial file.
    let partial = target.with_extension("part");
    fs::write(&partial, bytes)
        .and_then(|()| fs::rename(&partial, target))
        .map_err(file_error(target))
}

struct Archive {
    bytes: Vec<u8>,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        let size = u32::try_from(contents.len()).map_err(io::Error::other)?;
        let mut writer = Builder::new(name).mode(mode).write(&mut self.bytes, size);
        writer.write_all(contents)?;
        writer.finish().map(drop)
    }
}

/// Sorts modules in the order in which `init` must load them.
struct LoadOrder<'a> {
    /// The files of all modules of the kernel, by name.
    files: &'a BTreeMap<String, PathBuf>,
    /// The names and contents of the added modules, in order.
    order: Vec<(String, Vec<u8>)>,
    visited: BTreeSet<String>,
}

impl LoadOrder<'_> {
    /// Adds a module after its dependencies. Skips a module without a file, which is built into the kernel.
    fn add(&mut self, name: &str) -> Result<(), ToolError> {
        let Some(path) = self.files.get(name) else { return Ok(()) };
        if !self.visited.insert(name.to_owned()) {
            return Ok(());
        }
        let bytes = read_module(path)?;
        for dependency in dependencies(&bytes) {
            self.add(&dependency)?;
        }
        self.order.push((name.to_owned(), bytes));
        Ok(())
    }
}

/// Returns the modules in a folder and its subfolders, by name. As in the kernel, `_` replaces `-` in the names.
pub(crate) fn find_modules(folder: &Path) -> Result<BTreeMap<String, PathBuf>, ToolError> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(file_error(&folder))? {
            let path = entry.map_err(file_error(&folder))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some((name, _)) =
                path.file_name().and_then(|name| name.to_str()?.split_once(".ko"))
            {
                found.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(found)
}

/// Reads a module. Decompresses a compressed file. Strips the debug information from any other file, because this
/// information can take hundreds of megabytes.
fn read_module(path: &Path) -> Result<Vec<u8>, ToolError> {
    if path.extension().is_some_and(|extension| extension == "xz") {
        let mut command = Command::new("xz");
        command.args(["--decompress", "--stdout"]).arg(path);
        return tool::run(command, "xz-utils");
    }
    let stripped = tempfile::NamedTempFile::new().map_err(file_error(path))?;
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg("-o").arg(stripped.path()).arg(path);
    tool::run(command, "binutils")?;
    fs::read(stripped.path()).map_err(file_error(path))
}

/// Returns the names of the modules that a module needs, from the entry `depends=a,b` of the module's information.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[start + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Archive, FILE, dependencies};

    #[test]
    fn dependencies_reads_module_names() {
        assert_eq!(
            dependencies(b"license=GPL\0depends=ttm,drm-exec\0name=amdgpu\0"),
            ["ttm", "drm_exec"]
        );
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"nothing").is_empty());
    }

    #[test]
    fn archive_contains_its_files() {
        let mut archive = Archive { bytes: Vec::new() };
        archive.add("init", FILE, b"text").unwrap();
        assert!(archive.bytes.starts_with(b"070701"));
        assert!(archive.bytes.windows(4).any(|window| window == b"text"));
    }
}
