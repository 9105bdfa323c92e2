//! A release that the user provides is stored, and runs like a downloaded release.

use hsa_rocr::{Emulation, FetchedRelease, Release, fetch_from, test};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of releases. It contains release 7.2.4, whose libraries the stored releases use.
struct ReleaseFolder(tempfile::TempDir);

impl ReleaseFolder {
    fn new(base: &FetchedRelease) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        symlink(base.root(), folder.path().join(base.release().version())).unwrap();
        Self(folder)
    }

    fn store(&self, source: &Path, name: Option<&str>) -> Result<FetchedRelease, String> {
        let name = name.map(|name| name.parse().unwrap());
        fetch_from(source, name, self.0.path(), &mut |_| ()).map_err(|error| error.to_string())
    }
}

/// Creates a ROCm folder as in AMD's packages, with the runtime of Debian's package.
fn create_rocm_folder(folder: &Path, runtime: &FetchedRelease) -> PathBuf {
    let library = runtime.runtime().canonicalize().unwrap();
    let lib = folder.join("opt/rocm-6.4.3/lib");
    fs::create_dir_all(&lib).unwrap();
    fs::copy(&library, lib.join(library.file_name().unwrap())).unwrap();
    symlink(library.file_name().unwrap(), lib.join("libhsa-runtime64.so.1")).unwrap();
    fs::create_dir(lib.join("../.info")).unwrap();
    fs::write(lib.join("../.info/version"), "6.4.3.1-60403\n").unwrap();
    folder.join("opt")
}

/// Returns what `rocminfo` prints with a release.
fn rocminfo_output(fetched: &FetchedRelease) -> String {
    let mut command = fetched.command("rocminfo");
    Emulation::with_gpus(1).apply(&mut command).unwrap();
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn run_tool(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

#[test]
fn release_is_stored_from_each_kind_of_source() {
    let Some(all) = test::fetch_releases("release_is_stored_from_each_kind_of_source") else {
        return;
    };
    let release = |release| all.iter().find(|fetched| fetched.release() == release).unwrap();
    let (older, base) = (release(Release::R6_4_3), release(Release::R7_2_4));
    let (folder, source) = (ReleaseFolder::new(base), tempfile::tempdir().unwrap());
    let opt = create_rocm_folder(source.path(), older);
    let path = |name: &str| source.path().join(name).to_str().unwrap().to_owned();
    let root = source.path().to_str().unwrap();
    run_tool("tar", &["-czf", &path("rocm.tar.gz"), "-C", root, "opt"]);
    fs::create_dir_all(source.path().join("package/DEBIAN")).unwrap();
    let control =
        "Package: hsa-rocr\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n";
    fs::write(source.path().join("package/DEBIAN/control"), control).unwrap();
    run_tool("cp", &["-a", opt.to_str().unwrap(), &path("package/opt")]);
    run_tool("dpkg-deb", &["--build", "--root-owner-group", &path("package"), &path("rocr.deb")]);

    let mut stored = vec![folder.store(&opt, None).unwrap()];
    assert_eq!(stored[0].release().version(), "6.4.3.1", "the version in .info/version");
    stored.push(folder.store(path("rocm.tar.gz").as_ref(), Some("7.14-tar")).unwrap());
    stored.push(folder.store(path("rocr.deb").as_ref(), Some("7.14-deb")).unwrap());
    stored.push(folder.store(&older.runtime().canonicalize().unwrap(), Some("10.0-file")).unwrap());
    // Store the first release again, which replaces it.
    stored[0] = folder.store(&opt, None).unwrap();
    for fetched in &stored {
        let packages = fetched.packages();
        let runtime = "libhsa-runtime64-1 1.15.0-local-build-unknown";
        assert!(packages.iter().any(|line| line == runtime), "{packages:?}");
        let file = fetched.runtime().canonicalize().unwrap();
        assert_eq!(file.file_name(), older.runtime().canonicalize().unwrap().file_name());
        assert!(file.starts_with(fetched.root().canonicalize().unwrap()));
        let text = rocminfo_output(fetched);
        assert!(text.contains("gfx942") && text.contains("Runtime Ext Version:     1.7"), "{text}");
    }
    let names = FetchedRelease::all(folder.0.path());
    let names: Vec<_> = names.iter().map(|fetched| fetched.release().to_string()).collect();
    assert_eq!(names, ["7.2.4", "10.0-file", "6.4.3.1", "7.14-deb", "7.14-tar"]);
}

#[test]
fn invalid_sources_leave_no_files() {
    let Some(all) = test::fetch_releases("invalid_sources_leave_no_files") else { return };
    let base = all.iter().find(|fetched| fetched.release() == Release::R7_2_4).unwrap();
    let (folder, source) = (ReleaseFolder::new(base), tempfile::tempdir().unwrap());
    let file = |name: &str, contents: &str| {
        let path = source.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    };
    let library = file("libhsa-runtime64.so.1", "not a library");
    for (path, expected) in [
        (source.path().join("missing"), "No such file"),
        (file("a.deb", "no package"), "dpkg-deb --extract"),
        (file("a.tar", "no archive"), "tar --extract"),
        (file("a.rpm", ""), "neither a folder"),
        (library, "ld.so --list"),
    ] {
        let error = folder.store(&path, Some("other")).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let opt = create_rocm_folder(source.path(), base);
    fs::remove_dir_all(opt.join("rocm-6.4.3/.info")).unwrap();
    let error = folder.store(&opt, None).unwrap_err();
    assert!(error.contains("rocr fetch NAME"), "{error}");
    let error = folder.store(&opt, Some("7.2.4")).unwrap_err();
    assert!(error.contains("choose another"), "{error}");
    let remaining: Vec<_> =
        fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(remaining.len(), 2, "the base release and the lock: {remaining:?}");
}
