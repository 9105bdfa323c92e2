//! Packages that need no distribution: the static command, and the tree for an initramfs.

use crate::manifests::{Binstall, published};
use crate::tree::Tree;
use crate::{
    PROFILE, assert_conforms, collect_objects, report_if_skipped, root, run_ok, skip,
    with_build_folder,
};
use hsa_rocr::test;
use std::process::Command;

/// Unpacks the archive as `cargo binstall` does, into an empty tree, and uses the command there.
#[test]
fn static_archive_runs_in_empty_tree() {
    let name = "static_archive_runs_in_empty_tree";
    if report_if_skipped(name, &["rustup", "tar"]) {
        return;
    }
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let targets = run_ok(Command::new("rustup").args(["target", "list", "--installed"]));
    if !targets.lines().any(|line| line == target) {
        skip(name, "musl", &format!("the target {target} is not installed"));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut make = Command::new(root().join("packaging/static"));
    make.args(["--profile", PROFILE]).arg(folder.path());
    with_build_folder(|build| run_ok(make.env("CARGO_TARGET_DIR", build)));

    let packages = published(root());
    let command = packages.iter().find(|package| package["name"] == "hsa-vmm-cli").unwrap();
    for host in [target, format!("{}-unknown-linux-gnu", std::env::consts::ARCH)] {
        let binstall = Binstall::of(command, &host, "https://example.org/project");
        let (_, archive) = binstall.url.rsplit_once('/').unwrap();
        let tree = Tree::empty();
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(folder.path().join(archive)).arg("-C").arg(tree.path(""));
        run_ok(&mut unpack);
        assert!(tree.path(&binstall.program).is_file(), "{binstall:?}");
        tree.assert_command_runs(&format!("/{}", binstall.program));
    }
}

#[test]
fn bundle_runs_amds_runtime_without_a_distribution() {
    let name = "bundle_runs_amds_runtime_without_a_distribution";
    if report_if_skipped(name, &["readelf", "strip", "cc"]) {
        return;
    }
    for fetched in test::fetch_releases(name).unwrap_or_default() {
        let tree = Tree::empty();
        let (mut make, objects) =
            (Command::new(root().join("packaging/bundle")), collect_objects());
        make.arg("--built").arg(objects.path());
        run_ok(make.arg(fetched.release().to_string()).arg(tree.path("")));
        tree.assert_command_runs("/bin/hsa-vmm");
        let output = tree.run(&["/bin/hsa-vmm", "emulate", "--", "/bin/hsa-vmm", "conform"]);
        assert_conforms(&output);
    }
}
