//! The packaged crates, built outside the workspace.

use crate::tree::Tree;
use crate::{PROFILE, report_if_skipped, root, run_ok, with_build_folder};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Packages the crates, and returns the `.crate` files.
fn package_crates() -> Vec<PathBuf> {
    let folder = root().join("target/packages/crates");
    let _ = fs::remove_dir_all(folder.join("package"));
    let mut package = Command::new(env!("CARGO"));
    package.args([
        "package",
        "--workspace",
        "--locked",
        "--no-verify",
        "--allow-dirty",
        "--offline",
    ]);
    // These two packages compile other crates' sources, and are not published.
    package.args(["--exclude", "hsa-sim-shared", "--exclude", "hsa-vmm-interleavings"]);
    run_ok(package.arg("--target-dir").arg(&folder).current_dir(root()));
    let entries = fs::read_dir(folder.join("package")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|name| name == "crate")).collect()
}

/// Builds, outside this workspace, a program that embeds the packaged library. Also builds the packaged command there.
/// Runs the program and the command in a minimal Debian.
#[test]
fn crates_build_outside_the_workspace() {
    if report_if_skipped("crates_build_outside_the_workspace", &["tar", "cc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut patches, mut members) = (String::new(), String::new());
    for file in package_crates() {
        run_ok(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(folder.path()));
        // The file `hsa-vmm-0.1.0.crate` contains the folder `hsa-vmm-0.1.0`.
        let crate_folder = file.file_stem().unwrap().to_str().unwrap();
        let (name, _) = crate_folder.rsplit_once('-').unwrap();
        patches.push_str(&format!("{name} = {{ path = \"{crate_folder}\" }}\n"));
        members.push_str(&format!("\"{crate_folder}\", "));
    }
    fs::write(
        path("Cargo.toml"),
        format!(
            "[workspace]\nmembers = [{members}]\n\n\
             [package]\nname = \"program\"\nedition = \"2024\"\n\n\
             [dependencies]\nanyhow = \"1\"\n\
             hsa-vmm = {{ version = \"0.1\", features = [\"simulation\"] }}\n\n\
             [profile.{PROFILE}]\ninherits = \"dev\"\ndebug = false\n\n\
             [patch.crates-io]\n{patches}"
        ),
    )
    .unwrap();
    fs::create_dir(path("src")).unwrap();
    fs::copy(root().join("examples/cycle.rs"), path("src/main.rs")).unwrap();
    // Use the versions that this workspace was tested with, because a build with other versions could need the network.
    fs::copy(root().join("Cargo.lock"), path("Cargo.lock")).unwrap();

    let programs = ["program", "hsa-vmm"];
    with_build_folder(|target| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--workspace", "--offline", "--profile", PROFILE]);
        build.arg("--target-dir").arg(target);
        run_ok(build.current_dir(folder.path()));
        for program in programs {
            fs::copy(target.join(PROFILE).join(program), path(program)).unwrap();
        }
    });
    // Create the tree after the build, so that other tests can create their trees during the build.
    let tree = Tree::debian(&[]);
    tree.assert_lacks(&["cc", "cargo", "python3"]);
    for program in programs {
        fs::copy(path(program), tree.path("tmp").join(program)).unwrap();
    }
    tree.run(&["/tmp/program"]);
    tree.assert_command_runs("/tmp/hsa-vmm");
}
