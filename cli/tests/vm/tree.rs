//! `vm fetch --tree` with a folder that has the files of a compiled kernel.
//!
//! Scripts replace apt, the compiler and the other tools.

use crate::fetch::write_program;
use crate::run_command::{command, stderr, stdout};
use hsa_rocr::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

const CONFIGURATION: &str = "\
#
# Automatically generated file; DO NOT EDIT.
# Linux/x86 6.12.9 Kernel Configuration
#
CONFIG_DRM_AMDGPU=m
CONFIG_HSA_AMD=y
CONFIG_PCI=y
CONFIG_DMI=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_BINFMT_ELF=y
CONFIG_BINFMT_SCRIPT=y
CONFIG_DEVTMPFS=y
CONFIG_TMPFS=y
CONFIG_OVERLAY_FS=m
CONFIG_9P_FS=m
CONFIG_NET_9P_VIRTIO=y
CONFIG_VIRTIO_PCI=m
CONFIG_VIRTIO_CONSOLE=y
CONFIG_SERIAL_8250_CONSOLE=y
CONFIG_DEBUG_FS=y
CONFIG_KALLSYMS_ALL=y
CONFIG_KPROBES=y
CONFIG_FUNCTION_TRACER=y
CONFIG_DYNAMIC_FTRACE_WITH_REGS=y
";

/// The other files of a compiled tree: the path, the contents, and the targets of `make` that create the file.
const FILES: [(&str, &str, &str); 5] = [
    ("arch/x86/boot/bzImage", "image", "bzImage"),
    ("include/config/kernel.release", "6.12.9-mine\n", "bzImage modules"),
    ("drivers/gpu/drm/amd/amdgpu/amdgpu.ko", "\0depends=ttm\0", "modules"),
    (
        "modules.order",
        "fs/overlayfs/overlay.o\ndrivers/gpu/drm/amd/amdgpu/amdgpu.o\ndrivers/gpu/drm/ttm/ttm.o\n",
        "modules",
    ),
    ("Module.symvers", "", "modules"),
];

fn write(tree: &Path, file: &str, text: &str) {
    let path = tree.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Creates a compiled tree.
fn create_tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    write(tree.path(), ".config", CONFIGURATION);
    for (file, text, _) in FILES {
        write(tree.path(), file, text);
    }
    for module in ["fs/overlayfs/overlay.ko", "drivers/gpu/drm/ttm/ttm.ko"] {
        write(tree.path(), module, "\0depends=\0");
    }
    fs::create_dir_all(tree.path().join("drivers/gpu/drm/amd/include")).unwrap();
    tree
}

/// Runs `vm fetch --tree` with a tree that the command must reject. Checks that the command creates no folder. Returns
/// the message.
fn fetch_rejection(tree: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    let output = command(&["vm", "fetch", "--tree", tree.to_str().unwrap()])
        .env("HSA_VMM_VM", &kernels)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(!kernels.exists());
    stderr(&output)
}

#[test]
fn tree_without_a_compiled_file_is_rejected() {
    for (file, _, target) in FILES {
        let tree = create_tree();
        fs::remove_file(tree.path().join(file)).unwrap();
        let message = fetch_rejection(tree.path());
        let path = tree.path().canonicalize().unwrap();
        let path = path.display();
        let expected = format!(
            "cannot use the kernel tree {path}: {file} was not found; run `make -C {path} {target}`"
        );
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn tree_without_configuration_is_rejected() {
    let tree = create_tree();
    fs::remove_file(tree.path().join(".config")).unwrap();
    let message = fetch_rejection(tree.path());
    assert!(message.contains(".config was not found"), "{message}");
    let message = fetch_rejection(&tree.path().join("missing"));
    assert!(message.contains("missing: No such file"), "{message}");
}

#[test]
fn tree_of_another_series_is_rejected() {
    let tree = create_tree();
    write(tree.path(), ".config", &CONFIGURATION.replace("6.12.9", "6.18.2"));
    let message = fetch_rejection(tree.path());
    assert!(message.contains("it is Linux 6.18.2, and only Linux 6.12 is supported"), "{message}");
}

#[test]
fn tree_without_needed_options_is_rejected() {
    let options = CONFIGURATION.lines().filter(|line| line.starts_with("CONFIG_"));
    for line in options.clone() {
        let tree = create_tree();
        let (name, _) = line.split_once('=').unwrap();
        let unset = CONFIGURATION.replace(line, &format!("# {name} is not set"));
        write(tree.path(), ".config", &unset);
        let message = fetch_rejection(tree.path());
        assert!(message.contains(&format!("lacks {name}")), "{message}");
    }
    let tree = create_tree();
    write(tree.path(), ".config", "# Linux/x86 6.12.9 Kernel Configuration\n");
    let message = fetch_rejection(tree.path());
    assert!(
        options.map(|line| line.split('=').next().unwrap()).all(|name| message.contains(name)),
        "{message}"
    );
}

/// The scripts that replace the tools. `make` writes its arguments to a file, and the modules to the folder `M`.
const TOOLS: [(&str, &str); 8] = [
    ("apt-get", "case $* in *download*) : >busybox.deb ;; esac"),
    ("dpkg-deb", r#"mkdir -p "$3/bin" && echo busybox >"$3/bin/busybox""#),
    (
        "make",
        r#"echo "$*" >"${0%/*}/make-arguments"
for word; do case $word in M=*) cd "${word#M=}"; echo software-gpu >hsa_vmm.ko; echo >fast_load.ko ;; esac; done"#,
    ),
    ("strip", r#"if [ "$2" = -o ]; then cp "$4" "$3"; fi"#),
    ("gcc", ""),
    ("xz", "exit 1"),
    ("tar", "exit 1"),
    ("qemu-system-x86_64", ""),
];

/// Runs `vm fetch --tree` with [`TOOLS`].
fn fetch(tree: &Path, programs: &Path, kernels: &Path) -> Output {
    for (name, text) in TOOLS {
        write_program(&programs.join(name), &format!("#!/bin/sh\n{text}\n"));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    command(&["vm", "fetch", "--tree", tree.to_str().unwrap()])
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("HSA_VMM_VM", kernels)
        .output()
        .unwrap()
}

#[test]
fn kernel_of_a_tree_is_stored_by_its_release() {
    let name = "kernel_of_a_tree_is_stored_by_its_release";
    // Without a release of AMD's runtime, the command would download one.
    if test::fetch_releases(name).is_none() {
        return;
    }
    let [programs, kernels] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tree = create_tree();
    // A Debian kernel with the same release was fetched before.
    write(kernels.path(), "6.12.9-mine/packages", "6.12.9-1");
    let output = fetch(tree.path(), programs.path(), kernels.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("6.12.9-mine in "), "{}", stdout(&output));
    let kernel = kernels.path().join("6.12.9-mine");
    assert!(!kernel.join("packages").exists(), "the list of Debian's packages was not removed");
    assert_eq!(fs::read_to_string(kernel.join("vmlinuz")).unwrap(), "image");
    let initramfs = fs::read(kernel.join("initramfs")).unwrap();
    let initramfs = String::from_utf8_lossy(&initramfs);
    // Built-in modules have no file, so the list does not contain them.
    assert!(initramfs.contains("overlay\nttm\namdgpu\nhsa_vmm\n"), "{initramfs}");
    assert!(initramfs.contains("software-gpu\n") && initramfs.contains(CONFIGURATION));
    let arguments = fs::read_to_string(programs.path().join("make-arguments")).unwrap();
    let path: PathBuf = tree.path().canonicalize().unwrap();
    assert!(arguments.contains(&format!("-C {} modules M=", path.display())), "{arguments}");
    let amd = format!("AMD={}/drivers/gpu/drm/amd ", path.display());
    assert!(arguments.contains(&amd), "{arguments}");
}
