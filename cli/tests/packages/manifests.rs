//! The crates' manifests: metadata for docs.rs and `cargo binstall`, and the repository that a release sets.

use crate::{root, run_ok};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the published packages of a workspace, as `cargo metadata` describes them.
pub fn published(workspace: &Path) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = command.current_dir(workspace).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    // `publish` is null for a published package, and an empty list for an unpublished package.
    packages.filter(|package| package["publish"].is_null()).cloned().collect()
}

/// The archive that `cargo binstall` fetches for a host.
#[derive(Debug)]
pub struct Binstall {
    pub url: String,
    /// The path of the program in the archive.
    pub program: String,
}

impl Binstall {
    /// Fills in the variables of a package's templates.
    pub fn of(package: &Value, target: &str, repository: &str) -> Self {
        let metadata = &package["metadata"]["binstall"];
        let overrides = &metadata["overrides"][target];
        let template = |key: &str| {
            let value = overrides[key].as_str().or(metadata[key].as_str());
            value.unwrap_or_else(|| panic!("no {key} for {target}"))
        };
        assert_eq!(template("pkg-fmt"), "tgz");
        let fill = |template: &str| {
            let text = |key: &str| package[key].as_str().unwrap().to_owned();
            let filled = [
                ("repo", repository.to_owned()),
                ("name", text("name")),
                ("version", text("version")),
                ("target", target.to_owned()),
                ("bin", "hsa-vmm".to_owned()),
                ("binary-ext", String::new()),
            ]
            .iter()
            .fold(template.to_owned(), |text, (key, value)| {
                text.replace(&format!("{{ {key} }}"), value)
            });
            assert!(!filled.contains('{'), "unknown variable: {filled}");
            filled
        };
        Self { url: fill(template("pkg-url")), program: fill(template("bin-dir")) }
    }
}

#[test]
fn published_crates_have_metadata() {
    let packages = published(root());
    assert_eq!(packages.len(), 12);
    for package in &packages {
        let name = &package["name"];
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{name} has no {key}");
        }
        for key in ["keywords", "categories"] {
            assert!(package[key].as_array().is_some_and(|list| !list.is_empty()), "{name}: {key}");
        }
        // The code needs Linux, so docs.rs must not build the documentation for other systems.
        let targets = &package["metadata"]["docs"]["rs"]["targets"];
        assert_eq!(targets, &serde_json::json!(["x86_64-unknown-linux-gnu"]), "{name}");
    }
}

/// Copies the manifests of the workspace to a folder. Creates an empty source file for each cargo target.
fn copy_manifests(to: &Path) {
    let root = root().canonicalize().unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = command.current_dir(&root).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let copied_path =
        |path: &Value| to.join(Path::new(path.as_str().unwrap()).strip_prefix(&root).unwrap());
    for package in metadata["packages"].as_array().unwrap() {
        for file in package["targets"].as_array().unwrap() {
            let file = copied_path(&file["src_path"]);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let manifest = copied_path(&package["manifest_path"]);
        fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        fs::copy(package["manifest_path"].as_str().unwrap(), manifest).unwrap();
    }
    fs::copy(root.join("Cargo.lock"), to.join("Cargo.lock")).unwrap();
}

/// The repository has no public address yet. For a release, `packaging/repository` writes the address into the
/// manifests.
#[test]
fn release_sets_repository_of_every_crate() {
    assert!(published(root()).iter().all(|package| package["repository"].is_null()));
    let folder = tempfile::tempdir().unwrap();
    copy_manifests(folder.path());
    let url = "https://example.org/project";
    let set = |url: &str| {
        run_ok(Command::new(root().join("packaging/repository")).arg(url).arg(folder.path()));
    };
    // The second call replaces the first address.
    set("https://example.org/other");
    set(url);
    let packages = published(folder.path());
    assert_eq!(packages.len(), published(root()).len());
    for package in &packages {
        assert_eq!(package["repository"], url, "{}", package["name"]);
    }
    let command = packages.iter().find(|package| package["name"] == "hsa-vmm-cli").unwrap();
    let repository = command["repository"].as_str().unwrap();
    let version = command["version"].as_str().unwrap();
    let binstall = Binstall::of(command, "x86_64-unknown-linux-gnu", repository);
    let archive = "hsa-vmm-cli-x86_64-unknown-linux-musl.tgz";
    assert_eq!(binstall.url, format!("{url}/releases/download/v{version}/{archive}"));
}
