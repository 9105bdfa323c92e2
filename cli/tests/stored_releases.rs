//! Tests releases of AMD's runtime that `hsa-vmm rocr fetch --from` stores, and `hsa-vmm rocr check`.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{Release, test};
use run_command::{HSA_VMM, command, stderr, stdout};

#[test]
fn fetch_from_stores_a_release() {
    let Some(all) = test::fetch_releases("fetch_from_stores_a_release") else { return };
    let release = |release| all.iter().find(|it| it.release() == release).unwrap();
    let (older, base) = (release(Release::R6_4_3), release(Release::R7_2_4));
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(base.root(), folder.path().join("7.2.4")).unwrap();
    let run = |arguments: &[&str]| {
        command(arguments).env("HSA_VMM_ROCR", folder.path()).output().unwrap()
    };
    let library = older.runtime().canonicalize().unwrap();
    let path = library.to_str().unwrap();
    let output = run(&["rocr", "fetch", "--from", path, "--version", "9.0-test"]);
    assert!(output.status.success(), "{output:?}");
    let output = run(&["rocr", "list"]);
    assert!(
        stdout(&output).contains("9.0-test") && stdout(&output).contains("1.15.0-local"),
        "{output:?}"
    );
    let output = run(&["emulate", "--rocr", "9.0-test", "--", HSA_VMM, "info"]);
    assert!(stdout(&output).contains("ROCr 1.15 (ROCm 6.4)"), "{output:?}");
    // `--from` needs a version, and rejects the version of a release that can be downloaded.
    assert_eq!(run(&["rocr", "fetch", "--from", path]).status.code(), Some(3));
    let output = run(&["rocr", "fetch", "6.4.3", "--from", path]);
    assert!(stderr(&output).contains("choose another"), "{output:?}");
}

#[test]
fn check_compares_a_stored_release() {
    let Some(all) = test::fetch_releases("check_compares_a_stored_release") else { return };
    let release = |release| all.iter().find(|it| it.release() == release).unwrap();
    let (older, base) = (release(Release::R6_4_3), release(Release::R7_2_4));
    let folder = tempfile::tempdir().unwrap();
    // The results are sent to other people, so they must not contain the path of the home folder.
    let home = folder.path().to_str().unwrap();
    let run = |arguments: &[&str]| {
        command(arguments).env("HSA_VMM_ROCR", home).env("HOME", home).output().unwrap()
    };
    let results = folder.path().join("results");
    let check = ["rocr", "check", "9.0-test", "-o", results.to_str().unwrap()];
    let output = run(&check);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("9.0-test"), "{output:?}");
    std::os::unix::fs::symlink(base.root(), folder.path().join("7.2.4")).unwrap();
    let library = older.runtime().canonicalize().unwrap();
    let output = run(&["rocr", "fetch", "9.0-test", "--from", library.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_file(folder.path().join("7.2.4")).unwrap();
    let output = run(&check);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("rocr fetch 7.2.4"), "{output:?}");
    assert!(!results.exists());
    std::os::unix::fs::symlink(base.root(), folder.path().join("7.2.4")).unwrap();

    let output = run(&[&check[..], &["--filter", "nonsense"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("no case matches"), "{output:?}");

    let output = run(&[&check[..], &["--filter", "map.*"]].concat());
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(results.join(name)).expect(name);
    let summary = read("summary.txt");
    assert_eq!(stdout(&output).replace(home, "~"), summary);
    for file in results.read_dir().unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(home), "{}:\n{text}", path.display());
    }
    for line in [
        "release               9.0-test, compared with 7.2.4; emulated driver, 2 GPUs",
        "implementation        ROCr 1.15 (ROCm 6.4)",
        "extension             1.7",
        "bringup               every level was reached or does not apply",
        "quirk                 cpu_unmap_leaves_hole (found by a probe; ROCR-Runtime: \
         MappedHandleAllowedAgent::RemoveAccess)",
    ] {
        assert!(summary.lines().any(|it| it == line), "{line}:\n{summary}");
    }
    assert!(summary.contains("passed, 0 failed"), "{summary}");
    for (name, implementation) in
        [("7.2.4", "ROCr 1.18 (ROCm 7)"), ("9.0-test", "ROCr 1.15 (ROCm 6.4)")]
    {
        let report: serde_json::Value =
            serde_json::from_str(&read(&format!("conform-{name}.json"))).unwrap();
        assert_eq!(report["runtime"]["implementation"], implementation);
        assert!(report["cases"].as_array().unwrap().len() > 10);
        assert!(read(&format!("conform-{name}.txt")).contains("libhsa-runtime64"), "{name}");
    }
    assert!(read("info.json").contains("\"probes\""));
    assert!(read("diff.txt").contains("cpu_unmap_leaves_hole"), "{}", read("diff.txt"));
    assert!(read("bringup.txt").contains("process killed"), "{}", read("bringup.txt"));
}
