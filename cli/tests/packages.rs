//! Each package is installed into a tree that has nothing else, and used there.
//!
//! Needs root, and for two of them debootstrap, which fetches a minimal Debian (once, into
//! `target/packages`). Takes minutes: `HSA_VMM_PACKAGES=1 cargo test -p hsa-vmm-cli --test packages`.

use hsa_rocr::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Fails unless a command succeeds. Returns what it printed, on standard error last.
#[track_caller]
fn well(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Output { status, stdout, stderr } = &output;
    let said = text(stdout) + &text(stderr);
    assert!(status.success(), "{command:?}: {status}\n{said}");
    said
}

/// Returns why this test cannot run here, after printing it.
fn is_skipped(name: &str, tools: &[&str]) -> bool {
    let is_wanted = std::env::var_os("HSA_VMM_PACKAGES").is_some();
    let is_there = |tool: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).exists())
    };
    let missing = tools.iter().find(|tool| !is_there(tool));
    let why = if !is_wanted {
        "takes minutes; HSA_VMM_PACKAGES=1 runs it".to_owned()
    } else if !rustix::process::geteuid().is_root() {
        "only root can change the root folder".to_owned()
    } else if let Some(tool) = missing {
        format!("{tool} is not installed")
    } else {
        return false;
    };
    test::report(&format!("SKIPPED packages::{name}: {why}"));
    true
}

/// Builds what the packages consist of, in the profile of this test. Returns the folder.
fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-p", "hsa-vmm-cli", "-p", "hsa-vmm-capi", "-p", "hsa-kfd"]);
        well(build.current_dir(root()));
        Path::new(env!("CARGO_BIN_EXE_hsa-vmm")).parent().unwrap().to_owned()
    })
}

/// A tree that a program runs in as its root folder.
struct Tree(tempfile::TempDir);

impl Tree {
    fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["dev", "proc", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// A minimal Debian of this machine's release, with a C compiler and Python.
    fn debian() -> Self {
        static CACHE: OnceLock<PathBuf> = OnceLock::new();
        let base = CACHE.get_or_init(|| {
            let folder = root().join("target/packages/debian");
            if folder.join("debootstrap").exists() || !folder.join("bin/sh").exists() {
                // None, or one that was interrupted.
                let _ = fs::remove_dir_all(&folder);
                fs::create_dir_all(&folder).unwrap();
                let script = ". /etc/os-release; exec debootstrap --variant=minbase \
                    --include=gcc,libc6-dev,pkg-config,python3-venv \"$VERSION_CODENAME\" \"$1\" \
                    \"$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | \
                    grep -E '/debian/?$' | head -n 1)\"";
                well(Command::new("sh").args(["-c", script, "sh"]).arg(&folder));
            }
            folder
        });
        let folder = tempfile::tempdir().unwrap();
        well(Command::new("cp").arg("-a").arg(base.join(".")).arg(folder.path()));
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a program with the tree as its root folder, with `/proc` and `/dev`, and no variables.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let script = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && tree=$1 && shift && exec chroot \"$tree\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(self.0.path()).args(arguments);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", "/root");
        well(&mut command)
    }

    /// The command runs there, on the simulation.
    #[track_caller]
    fn command_works(&self, command: &str) {
        let said = self.run(&[command, "info", "--runtime", "sim"]);
        assert!(said.contains("simulation"), "{said}");
        let said = self.run(&[command, "conform", "--runtime", "sim", "--filter", "map"]);
        let last = said.lines().last().unwrap();
        assert!(last.contains(" passed, 0 failed"), "{last}");
    }

    /// The emulated driver runs there, with AMD's runtime that is copied there, if there is one here.
    #[track_caller]
    fn emulation_works(&self, name: &str, command: &str) {
        let Some(installations) = test::installations(name) else { return };
        for installation in installations {
            let release = installation.release().to_string();
            let to = self.path("root/.cache/hsa-vmm/rocr");
            fs::create_dir_all(&to).unwrap();
            let from = root().join("target/rocr").join(&release);
            well(Command::new("cp").arg("-a").arg(from).arg(&to));
            let said = self.run(&[command, "emulate", "--rocr", &release, "--", command, "info"]);
            assert!(said.contains("libhsa-runtime64"), "{said}");
        }
    }
}

#[test]
fn deb_installs_command_driver_and_library() {
    let name = "deb_installs_command_driver_and_library";
    if is_skipped(name, &["debootstrap", "dpkg-deb", "cc"]) {
        return;
    }
    let tree = Tree::debian();
    let folder = tempfile::tempdir().unwrap();
    let mut make = Command::new(root().join("packaging/deb"));
    well(make.arg("--built").arg(with_objects()).arg(folder.path()));
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    fs::copy(file, tree.path("tmp/package.deb")).unwrap();
    tree.run(&["dpkg", "--install", "/tmp/package.deb"]);
    tree.command_works("hsa-vmm");
    tree.emulation_works(name, "hsa-vmm");
    fs::copy(root().join("capi/examples/cycle.c"), tree.path("tmp/cycle.c")).unwrap();
    for package in ["hsavmm", "hsavmm-static"] {
        let script = format!(
            "cc /tmp/cycle.c $(pkg-config --cflags --libs {package}) -o /tmp/cycle && \
             HSA_VMM_RUNTIME=sim /tmp/cycle"
        );
        assert!(tree.run(&["sh", "-c", &script]).contains("written at the first"));
    }
    tree.run(&["dpkg", "--purge", "hsa-vmm"]);
    assert!(!tree.path("usr/bin/hsa-vmm").exists() && !tree.path("usr/lib/hsa-vmm").exists());
}

/// Returns a folder with the command and the libraries, some of which cargo leaves in `deps`.
fn with_objects() -> PathBuf {
    let folder = root().join("target/packages/built");
    fs::create_dir_all(&folder).unwrap();
    for name in ["hsa-vmm", "libhsa_kfd.so", "libhsavmm.a"] {
        let from = built().join(name);
        let from = if from.exists() { from } else { built().join("deps").join(name) };
        fs::copy(&from, folder.join(name)).unwrap_or_else(|error| panic!("{from:?}: {error}"));
    }
    folder
}

#[test]
fn wheel_installs_command_and_driver() {
    let name = "wheel_installs_command_and_driver";
    if is_skipped(name, &["debootstrap", "maturin", "strip"]) {
        return;
    }
    let tree = Tree::debian();
    let folder = tempfile::tempdir().unwrap();
    well(
        Command::new(root().join("packaging/wheel")).args(["--profile", "dev"]).arg(folder.path()),
    );
    let wheel = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().file_name();
    let inside = format!("/tmp/{}", wheel.to_str().unwrap());
    fs::copy(folder.path().join(&wheel), tree.path(&inside[1..])).unwrap();
    tree.run(&["python3", "-m", "venv", "/environment"]);
    tree.run(&["/environment/bin/pip", "install", "--no-index", &inside]);
    tree.command_works("/environment/bin/hsa-vmm");
    tree.emulation_works(name, "/environment/bin/hsa-vmm");
}

#[test]
fn static_command_needs_nothing() {
    if is_skipped("static_command_needs_nothing", &["rustup", "unshare"]) {
        return;
    }
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let targets = well(Command::new("rustup").args(["target", "list", "--installed"]));
    if !targets.lines().any(|line| line == target) {
        test::report(&format!(
            "SKIPPED packages::static_command_needs_nothing: no target {target}"
        ));
        return;
    }
    let tree = Tree::empty();
    well(Command::new(root().join("packaging/static")).arg(tree.path("")));
    tree.command_works("/hsa-vmm");
}

#[test]
fn bundle_runs_amds_runtime_without_a_distribution() {
    let name = "bundle_runs_amds_runtime_without_a_distribution";
    if is_skipped(name, &["unshare", "readelf", "strip", "cc"]) {
        return;
    }
    for installation in test::installations(name).unwrap_or_default() {
        let tree = Tree::empty();
        let mut make = Command::new(root().join("packaging/bundle"));
        make.arg("--built").arg(with_objects());
        well(make.arg(installation.release().to_string()).arg(tree.path("")));
        tree.command_works("/bin/hsa-vmm");
        let said = tree.run(&["/bin/hsa-vmm", "emulate", "--", "/bin/hsa-vmm", "conform"]);
        assert!(said.lines().last().unwrap().contains(" 0 failed"), "{said}");
    }
}
