//! A set-user-id program that links the emulation writes no file that its caller names.

mod fixture;

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65534;

const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/auxv.h>
int main(void) {
  int opened = open("/dev/kfd", O_RDWR);
  printf("privileged %lu, opened %d\n", getauxval(AT_SECURE), opened >= 0);
  return 0;
}
"#;

/// Prints that the test is skipped. The test harness captures the output of `eprintln!`.
fn report_skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED privileged_program_ignores_variables: {reason}");
}

#[test]
fn privileged_program_ignores_variables() {
    // SAFETY: the call takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        report_skipped("only root can create a set-user-id program of root");
        return;
    }
    let folder = std::env::temp_dir().join(format!("hsa-kfd-privileges-{}", std::process::id()));
    let (writable, program) = (folder.join("writable"), folder.join("program"));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(&writable).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&writable, Permissions::from_mode(0o777)).unwrap();
    fs::write(folder.join("program.c"), PROGRAM).unwrap();
    fs::copy(fixture::object(), folder.join("libhsa_kfd.so")).unwrap();
    let compiled = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-Wl,--no-as-needed", "-L", folder.to_str().unwrap(), "-o"])
        .args([&program, &folder.join("program.c")])
        .arg("-lhsa_kfd")
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let files = ["log", "tables"].map(|name| writable.join(name));
    let run = |mode: u32| {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.env("HSA_KFD_LOG", &files[0]).env("HSA_KFD_PAGE_TABLES", &files[1]);
        let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
        let written = files.each_ref().map(|file| fs::remove_file(file).is_ok());
        (String::from_utf8(output.stdout).unwrap(), written)
    };
    let (text, written) = run(0o4755);
    if text.contains("privileged 1") {
        assert_eq!(text, "privileged 1, opened 1\n");
        assert_eq!(written, [false, false], "the program must not write its caller's files");
        // Without privileges, the files are written.
        let (text, written) = run(0o755);
        assert_eq!((text.as_str(), written), ("privileged 0, opened 1\n", [true, true]));
    } else {
        report_skipped(&format!("no privileges for set-user-id programs (nosuid): {text}"));
    }
    fs::remove_dir_all(folder).unwrap();
}
