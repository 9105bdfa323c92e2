//! A kernel that was compiled in a source tree.

use crate::fetch::{FetchError, TOOLS, busybox, download_busybox, install_tools, lock};
use crate::packages::{self, SERIES};
use crate::tool::{ToolError, file_error, ignore_missing};
use crate::{Kernel, build, folder, initramfs};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

// The paths of files and folders in a source tree.
const IMAGE: &str = "arch/x86/boot/bzImage";
const AMD: &str = "drivers/gpu/drm/amd";
const AMDGPU: &str = "drivers/gpu/drm/amd/amdgpu/amdgpu.ko";
/// A list of all modules, with a line such as `drivers/gpu/drm/ttm/ttm.o` for each.
const MODULES: &str = "modules.order";
const RELEASE: &str = "include/config/kernel.release";
const CONFIGURATION: &str = ".config";
/// The options that `init`, QEMU's devices and `hsa_vmm.ko` need, built in or as a module.
const OPTIONS: [&str; 19] = [
    "HSA_AMD",
    "PCI",
    "DMI",
    "BLK_DEV_INITRD",
    "BINFMT_ELF",
    "BINFMT_SCRIPT",
    "DEVTMPFS",
    "TMPFS",
    "OVERLAY_FS",
    "9P_FS",
    "NET_9P_VIRTIO",
    "VIRTIO_PCI",
    "VIRTIO_CONSOLE",
    "SERIAL_8250_CONSOLE",
    "DEBUG_FS",
    // The module uses kprobes and kallsyms to find functions of amdgpu.ko, and ftrace to replace them.
    "KALLSYMS_ALL",
    "KPROBES",
    "FUNCTION_TRACER",
    "DYNAMIC_FTRACE_WITH_REGS",
];

/// Why the kernel of a source tree cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The tree has no configuration.
    #[error(
        "cannot use the kernel tree {tree}: {CONFIGURATION} was not found; give --tree the folder in which the kernel \
         was configured and compiled", tree = tree.display()
    )]
    NotConfigured {
        /// The tree.
        tree: PathBuf,
    },
    /// The tree is not of the series for which the module is written.
    #[error(
        "cannot use the kernel tree {tree}: it is Linux {version}, and only Linux {SERIES} is supported, because the \
         software GPUs are written for the amdgpu of Linux {SERIES}", tree = tree.display()
    )]
    OtherSeries {
        /// The tree.
        tree: PathBuf,
        /// The tree's version.
        version: String,
    },
    /// The configuration lacks options.
    #[error(
        "cannot use the kernel tree {tree}: its {CONFIGURATION} lacks {missing}; change it with \
         `make -C {tree} menuconfig`, then run `make -C {tree} bzImage modules`", tree = tree.display()
    )]
    Options {
        /// The tree.
        tree: PathBuf,
        /// The missing options.
        missing: String,
    },
    /// The tree was not compiled.
    #[error(
        "cannot use the kernel tree {tree}: {file} was not found; run `make -C {tree} {target}`", tree = tree.display()
    )]
    NotCompiled {
        /// The tree.
        tree: PathBuf,
        /// The missing file.
        file: &'static str,
        /// The arguments of `make`.
        target: &'static str,
    },
}

/// Adds the kernel that was compiled in a source tree of Linux to `folder`, the folder of the fetched kernels. Compiles
/// the kernel module of the software GPUs for this kernel.
///
/// `tree` is the source tree, or the build folder if the kernel was compiled with `make O=…`. The kernel's modules
/// need not be installed. Downloads busybox from the host's package sources, and installs missing tools as
/// [`fetch`](crate::fetch()) does.
///
/// # Errors
/// The message names what the tree lacks, or the failed step, and a remedy if one is known.
pub fn use_tree(
    folder: &Path,
    tree: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Kernel, FetchError> {
    let tree = fs::canonicalize(tree).map_err(file_error(tree))?;
    let release = check(&tree)?;
    let source = folder::module_source()?;
    let _lock = lock(folder, report)?;
    let target = folder.join(&release);
    let work = target.join("module");
    let root = target.join("root");
    download_busybox(&root, report)?;
    install_tools(&TOOLS, report)?;
    // Files of this kernel must not be combined with files of an earlier kernel of the same name.
    for file in [Kernel::PACKAGES, Kernel::INITRAMFS] {
        ignore_missing(fs::remove_file(target.join(file))).map_err(file_error(&target))?;
    }
    ignore_missing(fs::remove_dir_all(&work)).map_err(file_error(&work))?;
    report("compiling the kernel modules");
    // With `make O=…`, `source` in the build folder is a link to the source tree.
    let amd = [tree.join(AMD), tree.join("source").join(AMD)];
    let amd = amd.iter().find(|path| path.join("include").is_dir()).unwrap_or(&amd[0]);
    build::build(&source, &tree, amd, &work)?;
    report("writing the initial file system");
    let image = tree.join(IMAGE);
    fs::copy(&image, target.join(Kernel::IMAGE)).map_err(file_error(&image))?;
    let origin = target.join(Kernel::TREE);
    fs::write(&origin, tree.as_os_str().as_encoded_bytes()).map_err(file_error(&origin))?;
    let (initramfs, configuration) = (target.join(Kernel::INITRAMFS), tree.join(CONFIGURATION));
    initramfs::write(&initramfs, &modules(&tree)?, &configuration, &busybox(&root), &work)?;
    Ok(Kernel::open(folder, Some(&release))?)
}

/// Checks that a tree can be used. Returns the name of its kernel, such as `6.12.117-debug`.
fn check(tree: &Path) -> Result<String, TreeError> {
    let owned = || tree.to_owned();
    let configuration = fs::read_to_string(tree.join(CONFIGURATION))
        .map_err(|_| TreeError::NotConfigured { tree: owned() })?;
    if let Some(version) =
        version(&configuration).filter(|version| !packages::is_in_series(version))
    {
        return Err(TreeError::OtherSeries { tree: owned(), version: version.to_owned() });
    }
    let missing = missing_options(&configuration);
    if !missing.is_empty() {
        return Err(TreeError::Options { tree: owned(), missing: missing.join(", ") });
    }
    for (file, target) in [
        (IMAGE, "bzImage"),
        (RELEASE, "bzImage modules"),
        (AMDGPU, "modules"),
        (MODULES, "modules"),
        ("Module.symvers", "modules"),
    ] {
        if !tree.join(file).is_file() {
            return Err(TreeError::NotCompiled { tree: owned(), file, target });
        }
    }
    let release = fs::read_to_string(tree.join(RELEASE)).unwrap_or_default().trim().to_owned();
    if packages::is_in_series(&release) {
        return Ok(release);
    }
    Err(TreeError::OtherSeries { tree: owned(), version: release })
}

/// Returns the version in the comment `# Linux/x86 6.12.117 Kernel Configuration` of a configuration.
fn version(configuration: &str) -> Option<&str> {
    configuration.lines().find_map(|line| line.strip_prefix("# Linux/")?.split(' ').nth(1))
}

/// Returns the required options that a configuration lacks.
fn missing_options(configuration: &str) -> Vec<String> {
    let has = |line: &str| configuration.lines().any(|other| other == line);
    let amdgpu = "CONFIG_DRM_AMDGPU=m".to_owned();
    let amdgpu = (!has(&amdgpu)).then_some(amdgpu);
    let options = OPTIONS.iter().map(|name| format!("CONFIG_{name}"));
    let missing = options.filter(|name| !has(&format!("{name}=y")) && !has(&format!("{name}=m")));
    amdgpu.into_iter().chain(missing).collect()
}

/// Returns the tree's modules by name. As in the kernel, `_` replaces `-` in the names.
fn modules(tree: &Path) -> Result<BTreeMap<String, PathBuf>, ToolError> {
    let list = tree.join(MODULES);
    let text = fs::read_to_string(&list).map_err(file_error(&list))?;
    let files = text.lines().map(|line| tree.join(line).with_extension("ko"));
    let named = |file: PathBuf| Some((file.file_stem()?.to_str()?.replace('-', "_"), file));
    Ok(files.filter_map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::{OPTIONS, missing_options, modules, version};
    use std::fs;

    #[test]
    fn options_are_built_in_or_modules() {
        let mut text = "# Linux/x86 6.12.9 Kernel Configuration\nCONFIG_DRM_AMDGPU=m\n".to_owned();
        for (number, name) in OPTIONS.iter().enumerate() {
            text += &format!("CONFIG_{name}={}\n", ["y", "m"][number % 2]);
        }
        assert_eq!(version(&text), Some("6.12.9"));
        assert!(missing_options(&text).is_empty());
        // amdgpu must be a module: hsa_vmm.ko replaces functions of amdgpu before amdgpu binds to a device.
        let built_in = text.replace("CONFIG_DRM_AMDGPU=m", "CONFIG_DRM_AMDGPU=y");
        assert_eq!(missing_options(&built_in), ["CONFIG_DRM_AMDGPU=m"]);
    }

    #[test]
    fn modules_are_read_from_modules_order() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("modules.order"), "net/9p/9pnet.o\nlib/drm-exec.o\n").unwrap();
        let found = modules(tree.path()).unwrap();
        assert_eq!(found["9pnet"], tree.path().join("net/9p/9pnet.ko"));
        assert_eq!(found["drm_exec"], tree.path().join("lib/drm-exec.ko"));
    }
}
