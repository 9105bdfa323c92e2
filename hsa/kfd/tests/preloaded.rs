//! The shared object, preloaded into programs of the machine.

use std::path::PathBuf;
use std::process::Command;

/// The object, which cargo builds before this test and leaves beside it.
fn object() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let folder = test.parent().expect("the test lies in a folder");
    folder.join("libhsa_kfd.so")
}

/// What a program prints.
fn output(setting: &str, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", object())
        .env("HSA_KFD", setting)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

const NODES: &str = "/sys/devices/virtual/kfd/kfd/topology/nodes";

#[test]
fn the_topology_is_read_as_files() {
    let nodes = output("gpus=3", "ls", &[NODES]);
    assert_eq!(nodes.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let properties = output("profile=rdna3", "cat", &[&format!("{NODES}/1/properties")]);
    assert!(properties.contains("gfx_target_version 110000\n"), "{properties}");
    assert!(properties.contains("drm_render_minor 128\n"), "{properties}");
}

#[test]
fn a_device_is_a_device() {
    let shown = output("gpus=2", "stat", &["-c", "%F %t:%T", "/dev/dri/renderD129"]);
    assert_eq!(shown, "character special file e2:81\n");
    assert!(output("gpus=1", "stat", &["-c", "%F", "/dev/kfd"]).starts_with("character special"));
}

#[test]
fn other_files_are_the_machines_own() {
    let own = std::fs::read_to_string("/proc/version").expect("the kernel's version");
    assert_eq!(output("gpus=1", "cat", &["/proc/version"]), own);
    assert_eq!(
        output("gpus=1", "stat", &["-c", "%F %t:%T", "/dev/null"]),
        "character special file 1:3\n"
    );
}
