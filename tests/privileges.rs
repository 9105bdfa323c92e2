//! In a set-user-ID program, the library runs no code that the caller's environment variables name.

mod hostile;

use hostile::compile_source;
use hsa_vmm::Runtime;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const NOBODY_UID: u32 = 65534;

/// Prints that a test is skipped. The test harness captures the output of `eprintln!`.
fn report_skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {reason}");
}

/// A set-user-ID program of root, a library with a constructor, and the file that the constructor creates.
struct Attack {
    folder: TempDir,
    program: PathBuf,
    marker: PathBuf,
}

impl Attack {
    /// Returns `None` and prints the reason if a set-user-ID program gets no privileges.
    fn prepare(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            report_skipped(name, "only root can create a set-user-id program of root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let writable = folder.path().join("writable");
        fs::create_dir(&writable).unwrap();
        fs::create_dir_all(folder.path().join("malicious/lib")).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&writable, Permissions::from_mode(0o777)).unwrap();
        let program = folder.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let marker = writable.join("constructor-ran");
        let source = format!(
            "#include <fcntl.h>\n#include <unistd.h>\n\
             __attribute__((constructor)) static void run(void) {{\n\
             close(open(\"{}\", O_CREAT | O_WRONLY, 0600));\n}}\n",
            marker.display()
        );
        let library = compile_source(name, &source);
        for file in ["attack.so", "malicious/lib/libhsa-runtime64.so.1"] {
            fs::copy(&library, folder.path().join(file)).unwrap();
        }
        fs::remove_file(library).unwrap();
        let attack = Self { folder, program, marker };
        attack.set_mode(0o4755);
        let (text, _) = attack.run(&[]);
        if text.contains("effective user 0\n") {
            return Some(attack);
        }
        report_skipped(name, &format!("no privileges for set-user-id programs (nosuid): {text}"));
        None
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.program, Permissions::from_mode(mode)).unwrap();
    }

    /// Runs the program as another user. Returns its output, and the effective user of the constructor if it ran.
    fn run(&self, variables: &[(&str, &str)]) -> (String, Option<u32>) {
        let output = Command::new(&self.program)
            .args(["--exact", "child_loads_a_runtime", "--ignored", "--nocapture"])
            .env_clear()
            .envs(variables.iter().copied())
            .current_dir(self.folder.path())
            .uid(NOBODY_UID)
            .gid(NOBODY_UID)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("child has returned"), "{output:?}");
        let constructor_user = fs::metadata(&self.marker).ok().map(|file| file.uid());
        let _ = fs::remove_file(&self.marker);
        (text, constructor_user)
    }

    fn path(&self, file: impl AsRef<Path>) -> String {
        self.folder.path().join(file).to_str().unwrap().to_owned()
    }
}

#[test]
#[ignore = "run by the tests below, as another user"]
fn child_loads_a_runtime() {
    println!("\neffective user {}", rustix::process::geteuid().as_raw());
    match Runtime::load() {
        Ok(runtime) => println!("loaded {}", runtime.info().name),
        Err(error) => println!("not loaded: {error}"),
    }
    println!("child has returned");
}

#[test]
fn privileged_load_ignores_environment() {
    let Some(attack) = Attack::prepare("constructor-load") else { return };
    let (library, rocm) = (attack.path("attack.so"), attack.path("malicious"));
    let variables = [
        ("HSA_VMM_RUNTIME", library.as_str()),
        ("HSA_VMM_RUNTIME", "./attack.so"),
        ("ROCM_PATH", rocm.as_str()),
        ("ROCM_PATH", "malicious"),
    ];
    for variable in variables {
        attack.set_mode(0o4755);
        let (text, constructor_user) = attack.run(&[variable]);
        assert_eq!(constructor_user, None, "{variable:?} ran the caller's code: {text}");
        assert!(!text.contains(variable.1), "{variable:?} was not ignored: {text}");
    }
    // In a program without privileges, the constructor runs, but only with the caller's own rights. The loop leaves out
    // the last variable, because the library never uses a relative `ROCM_PATH`.
    for variable in &variables[..3] {
        attack.set_mode(0o755);
        let (text, constructor_user) = attack.run(&[*variable]);
        assert_eq!(constructor_user, Some(NOBODY_UID), "{variable:?}: {text}");
    }
}

#[test]
fn privileged_load_ignores_simulation() {
    let Some(attack) = Attack::prepare("constructor-simulation") else { return };
    let variables = [("HSA_VMM_RUNTIME", "sim"), ("HSA_SIM", "consumer")];
    let (text, _) = attack.run(&variables);
    assert!(text.contains("not loaded"), "{text}");
    for expected in ["set-user-ID", "ignores HSA_VMM_RUNTIME and ROCM_PATH", "/opt/rocm/lib"] {
        assert!(text.contains(expected), "{text}");
    }
    attack.set_mode(0o755);
    let (text, _) = attack.run(&variables);
    assert!(text.contains("loaded simulation"), "{text}");
    let (text, _) = attack.run(&[("HSA_VMM_RUNTIME", "/nowhere.so")]);
    assert!(text.contains("not loaded") && !text.contains("set-user-ID"), "{text}");
}

#[test]
fn load_ignores_relative_rocm_path() {
    let output_with_rocm_path = |folder: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_loads_a_runtime", "--ignored", "--nocapture"])
            .env_remove("HSA_VMM_RUNTIME")
            .env("ROCM_PATH", folder)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = TempDir::new_in(".").unwrap();
    fs::create_dir(folder.path().join("lib")).unwrap();
    let library = compile_source("lacking", "int hsa_init(void) { return 0; }\n");
    fs::rename(library, folder.path().join("lib/libhsa-runtime64.so.1")).unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let text = output_with_rocm_path(name);
    assert!(text.contains("ROCM_PATH") && text.contains("is not absolute"), "{text}");
    assert!(!text.contains("hsa_status_string"), "the library was loaded: {text}");
    let text = output_with_rocm_path(fs::canonicalize(&folder).unwrap().to_str().unwrap());
    assert!(text.contains("does not export"), "{text}");
}
