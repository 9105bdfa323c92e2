//! Clean trees: folders that serve programs as root folder. A tree contains no programs, or a minimal Debian.

use crate::{assert_conforms, root, run_ok};
use hsa_rocr::{folder, test};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// A shell script that creates a minimal Debian system of this computer's release, from this computer's mirror.
/// Arguments: the folder of the system, the folder for downloads, and additional packages, separated by commas.
const DEBOOTSTRAP: &str = ". /etc/os-release; exec debootstrap --variant=minbase --cache-dir=\"$2\" \
    ${3:+--include=\"$3\"} \"$VERSION_CODENAME\" \"$1\" \
    \"$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | \
    grep -E '/debian/?$' | head -n 1)\"";

/// A shell script that mounts `/proc` and `/dev` in a folder, and runs a program with this folder as its root.
/// Arguments: the folder, the program, and the program's arguments.
const CHANGE_ROOT: &str = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && \
    tree=$1 && shift && exec chroot \"$tree\" \"$@\"";

/// A tree that is the root folder of the programs that run in it.
pub struct Tree(tempfile::TempDir);

impl Tree {
    /// Creates a tree that contains only empty folders.
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["dev", "proc", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Creates a tree with a minimal Debian, the named packages of Debian, and their dependencies.
    pub fn debian(packages: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = base_system(&packages.join(","));
        run_ok(Command::new("cp").arg("-a").arg(base.join(".")).arg(folder.path()));
        Self(folder)
    }

    /// Returns the path of a file in the tree, as seen from outside the tree.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name.trim_start_matches('/'))
    }

    /// Runs a program with the tree as its root folder, and with `/proc` and `/dev`. The program has only the
    /// environment variables PATH and HOME. Returns the program's output.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", CHANGE_ROOT, "sh"]).arg(self.0.path()).args(arguments);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", "/root");
        run_ok(&mut command)
    }

    /// Checks that the tree contains none of these programs.
    #[track_caller]
    pub fn assert_lacks(&self, programs: &[&str]) {
        for program in programs {
            let path = self.path("usr/bin").join(program);
            assert!(!path.exists(), "the tree is not clean: {path:?}");
        }
    }

    /// Checks that the command runs in the tree, on the simulation.
    #[track_caller]
    pub fn assert_command_runs(&self, command: &str) {
        let output = self.run(&[command, "info", "--runtime", "sim"]);
        assert!(output.contains("simulation"), "{output}");
        assert_conforms(&self.run(&[command, "conform", "--runtime", "sim", "--filter", "map"]));
    }

    /// Checks that the emulated driver runs in the tree, with copies of the fetched releases of AMD's runtime.
    #[track_caller]
    pub fn assert_emulation_runs(&self, name: &str, command: &str) {
        let Some(fetched_releases) = test::fetch_releases(name) else { return };
        for fetched in fetched_releases {
            let release = fetched.release().to_string();
            let target = self.path("root/.cache/hsa-vmm/rocr");
            fs::create_dir_all(&target).unwrap();
            run_ok(Command::new("cp").arg("-a").arg(folder().unwrap().join(&release)).arg(&target));
            let output = self.run(&[command, "emulate", "--rocr", &release, "--", command, "info"]);
            assert!(output.contains("libhsa-runtime64"), "{output}");
        }
    }
}

/// Returns a folder with a minimal Debian and the named packages. If the folder does not exist, creates it.
fn base_system(packages: &str) -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let packages_folder = root().join("target/packages");
    let name = if packages.is_empty() { "debian".to_owned() } else { format!("debian,{packages}") };
    let folder = packages_folder.join(&name);
    if !folder.exists() {
        // Rename the folder when it is complete, so that an interrupted test leaves no incomplete base.
        let (incomplete, downloads) = (
            packages_folder.join(name + ".part"),
            create_folder(&packages_folder).join("downloads"),
        );
        let _ = fs::remove_dir_all(&incomplete);
        fs::create_dir_all(&incomplete).unwrap();
        fs::create_dir_all(&downloads).unwrap();
        let mut create = Command::new("sh");
        run_ok(
            create.args(["-c", DEBOOTSTRAP, "sh"]).arg(&incomplete).arg(&downloads).arg(packages),
        );
        fs::rename(&incomplete, &folder).unwrap();
    }
    folder
}

/// Creates a folder and returns its absolute path, which debootstrap needs for its downloads.
fn create_folder(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    folder.canonicalize().unwrap()
}
