//! A set-user-id program runs no code that its caller's environment names.

mod hostile;

use hostile::library_of;
use hsa_vmm::Runtime;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const NOBODY_UID: u32 = 65534;

/// A set-user-id program of root, a library with a constructor, and the file that the constructor creates.
struct Attack {
    folder: TempDir,
    program: PathBuf,
    mark: PathBuf,
}

impl Attack {
    /// Returns `None` and prints the reason if a set-user-id program gets no privileges.
    fn prepare(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can make a set-user-id program of root's");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::create_dir_all(folder.path().join("malicious/lib")).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let program = folder.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mark = open.join("constructor-ran");
        let source = format!(
            "#include <fcntl.h>\n#include <unistd.h>\n\
             __attribute__((constructor)) static void run(void) {{\n\
             close(open(\"{}\", O_CREAT | O_WRONLY, 0600));\n}}\n",
            mark.display()
        );
        let library = library_of(name, &source);
        for file in ["attack.so", "malicious/lib/libhsa-runtime64.so.1"] {
            fs::copy(&library, folder.path().join(file)).unwrap();
        }
        fs::remove_file(library).unwrap();
        let attack = Self { folder, program, mark };
        attack.set_mode(0o4755);
        let (text, _) = attack.run(&[]);
        if text.contains("effective user 0\n") {
            return Some(attack);
        }
        eprintln!("SKIPPED: a set-user-id program gets no privileges here (nosuid): {text}");
        None
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.program, Permissions::from_mode(mode)).unwrap();
    }

    /// Runs the program as another user. Returns its output, and the user that the constructor ran as.
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
        let ran_as = fs::metadata(&self.mark).ok().map(|file| file.uid());
        let _ = fs::remove_file(&self.mark);
        (text, ran_as)
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
    let ways = [
        ("HSA_VMM_RUNTIME", library.as_str()),
        ("HSA_VMM_RUNTIME", "./attack.so"),
        ("ROCM_PATH", rocm.as_str()),
        ("ROCM_PATH", "malicious"),
    ];
    for way in ways {
        attack.set_mode(0o4755);
        let (text, ran_as) = attack.run(&[way]);
        assert_eq!(ran_as, None, "{way:?} ran the caller's code: {text}");
        assert!(!text.contains(way.1), "{way:?} was looked at: {text}");
    }
    // Without privileges the attack works, but the caller only attacks itself.
    for way in [ways[0], ways[1], ways[2]] {
        attack.set_mode(0o755);
        let (text, ran_as) = attack.run(&[way]);
        assert_eq!(ran_as, Some(NOBODY_UID), "{way:?}: {text}");
    }
}

#[test]
fn privileged_load_ignores_simulation() {
    let Some(attack) = Attack::prepare("constructor-simulation") else { return };
    let variables = [("HSA_VMM_RUNTIME", "sim"), ("HSA_SIM", "consumer")];
    let (text, _) = attack.run(&variables);
    assert!(text.contains("not loaded"), "{text}");
    attack.set_mode(0o755);
    let (text, _) = attack.run(&variables);
    assert!(text.contains("loaded simulation"), "{text}");
}

#[test]
fn load_ignores_relative_rocm_path() {
    let output = |folder: &str| {
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
    let lacking = library_of("lacking", "int hsa_init(void) { return 0; }\n");
    fs::rename(lacking, folder.path().join("lib/libhsa-runtime64.so.1")).unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let text = output(name);
    assert!(text.contains("ROCM_PATH") && text.contains("is not absolute"), "{text}");
    assert!(!text.contains("hsa_status_string"), "it was loaded: {text}");
    let text = output(fs::canonicalize(&folder).unwrap().to_str().unwrap());
    assert!(text.contains("does not export"), "{text}");
}
