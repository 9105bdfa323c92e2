//! Defects of AMD's kernel driver, shown by the C programs in docs/kernel.
//!
//! The emulated driver has three of these defects if a setting requests them. Without a setting, the programs find no
//! defect.

use hsa_rocr::{Emulation, test};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each program, and the setting that gives the emulated driver the program's defect. `None`: no setting exists.
const PROGRAMS: [(&str, Option<&str>); 5] = [
    ("no_flush", Some("tlb=on")),
    ("early_return", Some("pte_delay=100ms")),
    ("forgotten_entries", Some("split_bug=on")),
    ("shared_gem_handle", None),
    ("foreign_gem_handle", None),
];

/// The exit status of a program that has found its defect.
const FOUND: i32 = 1;

/// Compiles a program, and returns its path.
fn compile(name: &str) -> PathBuf {
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(root.join("hsa/sys/include"))
        .arg(root.join("docs/kernel").join(name).with_extension("c"))
        .args(["-ldl", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn programs_show_defects_of_the_kernel_driver() {
    for fetched in test::fetch_selected_releases("kernel") {
        for (name, settings) in PROGRAMS {
            let program = compile(name);
            let with_defect = settings.map(|settings| (settings, FOUND));
            for (settings, expected) in with_defect.into_iter().chain([("gpus=1", 0)]) {
                let mut command = fetched.command(&program);
                let emulation = Emulation::with_gpus(1).with_setting(settings);
                emulation.apply(&mut command).expect("the emulated driver");
                let output = command.output().expect("the loader of a release");
                let text = String::from_utf8_lossy(&output.stderr);
                let release = fetched.release();
                assert_eq!(
                    output.status.code(),
                    Some(expected),
                    "{name} on {release} with {settings}: {text}"
                );
            }
            std::fs::remove_file(program).expect("the program exists");
        }
    }
}
