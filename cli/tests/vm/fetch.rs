//! `vm fetch` with package sources that lack a package of the kernel's version.
//!
//! Scripts replace `apt-cache` and `apt-get`. `apt-cache` finds the packages that a test lists. `apt-get` writes its
//! arguments to a file.

use crate::run_command::{command, stderr};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The programs that `vm fetch` needs, besides those of apt. In these tests, the command fails before it runs them.
const TOOLS: [&str; 6] = ["gcc", "make", "strip", "xz", "tar", "qemu-system-x86_64"];

/// A script that imitates `apt-cache search` and `apt-cache madison`. The file `packages` beside the script has a line
/// for each package: name and version.
const APT_CACHE: &str = r#"#!/bin/sh
packages="${0%/*}/packages"
case $1 in
  search) grep "^linux-image-" "$packages" | while read -r name version; do echo "$name - Linux"; done ;;
  madison) grep "^$2 " "$packages" | while read -r name version; do
             echo " $name | $version | http://deb.example/debian bookworm/main amd64 Packages"; done ;;
  *) exit 100 ;;
esac
"#;

/// A script that succeeds for `apt-get update`, and fails for any other command.
const APT_GET: &str = r#"#!/bin/sh
echo "$*" >>"${0%/*}/calls"
case $* in *update) ;; *) echo "E: unexpected command" >&2; exit 100 ;; esac
"#;

pub fn write_program(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs `hsa-vmm vm fetch`, which must fail, with package sources that contain `packages` (name, version). Checks that
/// nothing was downloaded. Returns the message.
fn fetch_rejection(packages: &[(&str, &str)], arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (message, calls) = fetch(folder.path(), packages, arguments);
    // As root, the command runs `apt-get update`. It must run no other command of `apt-get`.
    assert!(calls.lines().all(|call| call.ends_with("update")), "{calls}");
    let files = fs::read_dir(folder.path().join("kernels")).unwrap();
    let files: Vec<_> = files.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(files, ["lock"]);
    message
}

/// Runs `hsa-vmm vm fetch`, which must fail, with scripts in `folder/programs`, and the kernels in `folder/kernels`.
/// Returns the message, and the arguments of `apt-get`.
fn fetch(folder: &Path, packages: &[(&str, &str)], arguments: &[&str]) -> (String, String) {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).unwrap();
    for (name, text) in [("apt-cache", APT_CACHE), ("apt-get", APT_GET)] {
        write_program(&programs.join(name), text);
    }
    for name in TOOLS {
        write_program(&programs.join(name), "#!/bin/sh\nexit 1\n");
    }
    let lines: String =
        packages.iter().map(|(name, version)| format!("{name} {version}\n")).collect();
    fs::write(programs.join("packages"), lines).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let kernels = folder.join("kernels");
    let output = command(&[&["vm", "fetch"], arguments].concat())
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("HSA_VMM_VM", &kernels)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    let calls = fs::read_to_string(programs.join("calls")).unwrap_or_default();
    (stderr(&output), calls)
}

/// Writes the files of a fetched kernel that `hsa-vmm vm` and `hsa-vmm vm fetch` need before they run QEMU or `make`.
fn write_kernel(folder: &Path, release: &str, version: &str) -> PathBuf {
    let kernel = folder.join("kernels").join(release);
    let headers = kernel.join(format!("root/usr/src/linux-headers-{release}"));
    fs::create_dir_all(&headers).unwrap();
    fs::write(headers.join("Makefile"), "").unwrap();
    for (name, text) in [("vmlinuz", ""), ("initramfs", ""), ("packages", version)] {
        fs::write(kernel.join(name), text).unwrap();
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hsa/vm");
    fs::copy(sources.join("guest/init"), kernel.join("init")).unwrap();
    fs::create_dir(kernel.join("module")).unwrap();
    for file in fs::read_dir(sources.join("module")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), kernel.join("module").join(file.file_name())).unwrap();
    }
    kernel
}

/// The package sources no longer have this kernel, but its module can be compiled again. `vm` does not use a module
/// that was compiled earlier.
#[test]
fn kernel_without_compiled_module_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let release = "6.12.90+deb12-amd64";
    let kernel = write_kernel(folder.path(), release, "6.12.90-1");
    fs::write(kernel.join("module/removed.c"), "").unwrap();
    let (message, calls) = fetch(folder.path(), &KERNEL, &["--kernel", release]);
    assert!(message.contains("`make --silent -C"), "{message}");
    assert_eq!(calls, "");
    assert!(!kernel.join("module/removed.c").exists());
    let output = command(&["vm", "--kernel", release, "--", "true"])
        .env("HSA_VMM_VM", folder.path().join("kernels"))
        .output()
        .unwrap();
    let advice = format!("run `hsa-vmm vm fetch --kernel {release}`");
    assert!(stderr(&output).contains(&advice), "{}", stderr(&output));
}

#[test]
fn failed_download_keeps_the_earlier_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write_kernel(folder.path(), "6.12.117+deb12-amd64", "6.12.117-1");
    let (message, calls) = fetch(folder.path(), &KERNEL, &[]);
    assert!(message.contains("E: unexpected command"), "{message}");
    assert!(calls.contains(" download "), "{calls}");
    for name in ["vmlinuz", "initramfs", "packages", "module/Kbuild"] {
        assert!(kernel.join(name).exists(), "{name}");
    }
}

/// The packages of a kernel, all in the same version.
const KERNEL: [(&str, &str); 5] = [
    ("linux-image-6.12.117+deb12-amd64", "6.12.117-1~deb12u1"),
    ("linux-headers-6.12.117+deb12-amd64", "6.12.117-1~deb12u1"),
    ("linux-headers-6.12.117+deb12-common", "6.12.117-1~deb12u1"),
    ("linux-kbuild-6.12.117+deb12", "6.12.117-1~deb12u1"),
    ("linux-source-6.12", "6.12.117-1~deb12u1"),
];

#[test]
fn fetch_rejects_packages_of_different_versions() {
    for (changed, (name, version)) in KERNEL.iter().enumerate().skip(1) {
        let mut packages = KERNEL;
        packages[changed].1 = "6.12.110-1~deb12u1";
        let message = fetch_rejection(&packages, &[]);
        let expected = format!(
            "cannot fetch the kernel 6.12.117+deb12-amd64: the package sources do not have {name} {version}, which must \
             have the kernel's version; run `apt-get update`, or choose another kernel with --kernel"
        );
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn fetch_names_all_missing_packages() {
    let message = fetch_rejection(&KERNEL[..2], &["--kernel", "6.12.117+deb12-amd64"]);
    for (name, version) in &KERNEL[2..] {
        assert!(message.contains(&format!("{name} {version}")), "{message}");
    }
    assert!(!message.contains("linux-headers-6.12.117+deb12-amd64"), "{message}");
}

#[test]
fn fetch_rejects_kernels_of_other_series() {
    let packages =
        [("linux-image-6.1.0-55-amd64", "6.1.1-1"), ("linux-image-7.1.3+deb14-amd64", "7.1.3-1")];
    let message = fetch_rejection(&packages, &[]);
    assert!(message.contains("have no kernel of the series 6.12 (available: none)"), "{message}");
    for (release, _) in packages {
        let release = release.trim_start_matches("linux-image-");
        let message = fetch_rejection(&packages, &["--kernel", release]);
        let expected = format!("cannot fetch the kernel {release}: only Linux 6.12 is supported");
        assert!(message.contains(&expected), "{message}");
    }
    let message = fetch_rejection(&KERNEL, &["--kernel", "6.12.90+deb12-amd64"]);
    let expected = "have no kernel 6.12.90+deb12-amd64 (available: 6.12.117+deb12-amd64)";
    assert!(message.contains(expected), "{message}");
}
