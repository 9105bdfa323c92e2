//! The Debian package and the Python package (wheel).

use crate::tree::Tree;
use crate::{
    PROFILE, collect_objects, only_file, report_if_skipped, root, run_ok, with_build_folder,
};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Installs the Debian package into a tree. The first call makes the package.
fn install_deb(tree: &Tree) {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    let package = PACKAGE.get_or_init(|| {
        let (folder, objects) = (root().join("target/packages/deb"), collect_objects());
        let _ = fs::remove_dir_all(&folder);
        let mut make = Command::new(root().join("packaging/deb"));
        run_ok(make.arg("--built").arg(objects.path()).arg(&folder));
        only_file(&folder)
    });
    fs::copy(package, tree.path("tmp/package.deb")).unwrap();
    tree.run(&["dpkg", "--install", "/tmp/package.deb"]);
}

#[test]
fn deb_installs_command_and_driver() {
    let name = "deb_installs_command_and_driver";
    if report_if_skipped(name, &["dpkg-deb", "cc"]) {
        return;
    }
    let tree = Tree::debian(&[]);
    tree.assert_lacks(&["cc", "python3"]);
    install_deb(&tree);
    tree.assert_command_runs("hsa-vmm");
    tree.assert_emulation_runs(name, "hsa-vmm");
    tree.run(&["dpkg", "--purge", "hsa-vmm"]);
    assert!(!tree.path("usr/bin/hsa-vmm").exists() && !tree.path("usr/lib/hsa-vmm").exists());
}

#[test]
fn deb_installs_c_library() {
    if report_if_skipped("deb_installs_c_library", &["dpkg-deb", "cc"]) {
        return;
    }
    let tree = Tree::debian(&["gcc", "libc6-dev", "pkg-config"]);
    install_deb(&tree);
    fs::copy(root().join("capi/examples/cycle.c"), tree.path("tmp/cycle.c")).unwrap();
    for package in ["hsavmm", "hsavmm-static"] {
        let script = format!(
            "cc /tmp/cycle.c $(pkg-config --cflags --libs {package}) -o /tmp/cycle && \
             HSA_VMM_RUNTIME=sim /tmp/cycle"
        );
        assert!(tree.run(&["sh", "-c", &script]).contains("written at the first"));
    }
}

#[test]
fn wheel_installs_command_and_driver() {
    let name = "wheel_installs_command_and_driver";
    if report_if_skipped(name, &["maturin", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut make = Command::new(root().join("packaging/wheel"));
    make.args(["--profile", PROFILE]).arg(folder.path());
    with_build_folder(|build| run_ok(make.env("CARGO_TARGET_DIR", build)));
    let wheel = only_file(folder.path());
    let tree = Tree::debian(&["python3-venv"]);
    tree.assert_lacks(&["cc"]);
    let path_in_tree = format!("/tmp/{}", wheel.file_name().unwrap().to_str().unwrap());
    fs::copy(&wheel, tree.path(&path_in_tree)).unwrap();
    tree.run(&["python3", "-m", "venv", "/environment"]);
    tree.run(&["/environment/bin/pip", "install", "--no-index", &path_in_tree]);
    tree.assert_command_runs("/environment/bin/hsa-vmm");
    tree.assert_emulation_runs(name, "/environment/bin/hsa-vmm");
}
