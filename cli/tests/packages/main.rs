//! Installs each package into an otherwise empty tree, and uses it there. Builds the packaged crates in an empty
//! folder.
//!
//! Trees need root. Two packages also need debootstrap, which fetches a minimal Debian into `target/packages`
//! once. Takes minutes: `HSA_VMM_PACKAGES=1 cargo test -p hsa-vmm-cli --test packages`.

use hsa_rocr::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs a command, which must succeed. Returns its output, with standard error last.
#[track_caller]
fn run_ok(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Output { status, stdout, stderr } = &output;
    let output = text(stdout) + &text(stderr);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// Returns whether this test cannot run. Reports the reason.
fn is_skipped(name: &str, tools: &[&str]) -> bool {
    let is_selected = std::env::var_os("HSA_VMM_PACKAGES").is_some();
    let is_installed = |tool: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).exists())
    };
    let missing = tools.iter().find(|tool| !is_installed(tool));
    let reason = if !is_selected {
        "takes minutes; HSA_VMM_PACKAGES=1 runs it".to_owned()
    } else if tools.contains(&"unshare") && !rustix::process::geteuid().is_root() {
        "only root can change the root folder".to_owned()
    } else if let Some(tool) = missing {
        format!("{tool} is not installed")
    } else {
        return false;
    };
    test::report(&format!("SKIPPED packages::{name}: {reason}"));
    true
}

/// Builds the programs and libraries of the packages, in the profile of this test. Returns their folder.
fn build() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "-p",
            "hsa-vmm-cli",
            "-p",
            "hsa-vmm-capi",
            "-p",
            "hsa-kfd",
            "-p",
            "hsa-record",
        ]);
        run_ok(build.current_dir(root()));
        Path::new(env!("CARGO_BIN_EXE_hsa-vmm")).parent().unwrap().to_owned()
    })
}

/// A tree that is the root folder of the programs that run in it.
struct Tree(tempfile::TempDir);

impl Tree {
    fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["dev", "proc", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Creates a tree with a minimal Debian of this machine's release, a C compiler and Python.
    fn debian() -> Self {
        static CACHE: OnceLock<PathBuf> = OnceLock::new();
        let base = CACHE.get_or_init(|| {
            let folder = root().join("target/packages/debian");
            if folder.join("debootstrap").exists() || !folder.join("bin/sh").exists() {
                // The tree does not exist, or debootstrap was interrupted.
                let _ = fs::remove_dir_all(&folder);
                fs::create_dir_all(&folder).unwrap();
                let script = ". /etc/os-release; exec debootstrap --variant=minbase \
                    --include=gcc,libc6-dev,pkg-config,python3-venv \"$VERSION_CODENAME\" \"$1\" \
                    \"$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | \
                    grep -E '/debian/?$' | head -n 1)\"";
                run_ok(Command::new("sh").args(["-c", script, "sh"]).arg(&folder));
            }
            folder
        });
        let folder = tempfile::tempdir().unwrap();
        run_ok(Command::new("cp").arg("-a").arg(base.join(".")).arg(folder.path()));
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a program with the tree as its root folder, with `/proc` and `/dev`. Of the environment variables, sets
    /// only PATH and HOME.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let script = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" && tree=$1 && shift && exec chroot \"$tree\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(self.0.path()).args(arguments);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", "/root");
        run_ok(&mut command)
    }

    /// Checks that the command runs in the tree, on the simulation.
    #[track_caller]
    fn assert_command_runs(&self, command: &str) {
        let output = self.run(&[command, "info", "--runtime", "sim"]);
        assert!(output.contains("simulation"), "{output}");
        let output = self.run(&[command, "conform", "--runtime", "sim", "--filter", "map"]);
        let last = output.lines().last().unwrap();
        assert!(last.contains(" passed, 0 failed"), "{last}");
    }

    /// Checks that the emulated driver runs in the tree, with copies of the fetched releases of AMD's runtime.
    #[track_caller]
    fn assert_emulation_runs(&self, name: &str, command: &str) {
        let Some(installations) = test::installations(name) else { return };
        for installation in installations {
            let release = installation.release().to_string();
            let target = self.path("root/.cache/hsa-vmm/rocr");
            fs::create_dir_all(&target).unwrap();
            let from = root().join("target/rocr").join(&release);
            run_ok(Command::new("cp").arg("-a").arg(from).arg(&target));
            let output = self.run(&[command, "emulate", "--rocr", &release, "--", command, "info"]);
            assert!(output.contains("libhsa-runtime64"), "{output}");
        }
    }
}

#[test]
fn deb_installs_command_driver_and_library() {
    let name = "deb_installs_command_driver_and_library";
    if is_skipped(name, &["debootstrap", "unshare", "dpkg-deb", "cc"]) {
        return;
    }
    let tree = Tree::debian();
    let folder = tempfile::tempdir().unwrap();
    let mut make = Command::new(root().join("packaging/deb"));
    run_ok(make.arg("--built").arg(collect_objects()).arg(folder.path()));
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    fs::copy(file, tree.path("tmp/package.deb")).unwrap();
    tree.run(&["dpkg", "--install", "/tmp/package.deb"]);
    tree.assert_command_runs("hsa-vmm");
    tree.assert_emulation_runs(name, "hsa-vmm");
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
fn collect_objects() -> PathBuf {
    let folder = root().join("target/packages/built");
    fs::create_dir_all(&folder).unwrap();
    for name in ["hsa-vmm", "libhsa_kfd.so", "libhsa_record.so", "libhsavmm.a"] {
        let from = build().join(name);
        let from = if from.exists() { from } else { build().join("deps").join(name) };
        fs::copy(&from, folder.join(name)).unwrap_or_else(|error| panic!("{from:?}: {error}"));
    }
    folder
}

#[test]
fn wheel_installs_command_and_driver() {
    let name = "wheel_installs_command_and_driver";
    if is_skipped(name, &["debootstrap", "unshare", "maturin", "strip"]) {
        return;
    }
    let tree = Tree::debian();
    let folder = tempfile::tempdir().unwrap();
    run_ok(
        Command::new(root().join("packaging/wheel")).args(["--profile", "dev"]).arg(folder.path()),
    );
    let wheel = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().file_name();
    let path_in_tree = format!("/tmp/{}", wheel.to_str().unwrap());
    fs::copy(folder.path().join(&wheel), tree.path(&path_in_tree[1..])).unwrap();
    tree.run(&["python3", "-m", "venv", "/environment"]);
    tree.run(&["/environment/bin/pip", "install", "--no-index", &path_in_tree]);
    tree.assert_command_runs("/environment/bin/hsa-vmm");
    tree.assert_emulation_runs(name, "/environment/bin/hsa-vmm");
}

#[test]
fn static_command_runs_in_empty_tree() {
    if is_skipped("static_command_runs_in_empty_tree", &["rustup", "unshare"]) {
        return;
    }
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let targets = run_ok(Command::new("rustup").args(["target", "list", "--installed"]));
    if !targets.lines().any(|line| line == target) {
        test::report(&format!(
            "SKIPPED packages::static_command_runs_in_empty_tree: no target {target}"
        ));
        return;
    }
    let tree = Tree::empty();
    run_ok(Command::new(root().join("packaging/static")).arg(tree.path("")));
    tree.assert_command_runs("/hsa-vmm");
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
        make.arg("--built").arg(collect_objects());
        run_ok(make.arg(installation.release().to_string()).arg(tree.path("")));
        tree.assert_command_runs("/bin/hsa-vmm");
        let output = tree.run(&["/bin/hsa-vmm", "emulate", "--", "/bin/hsa-vmm", "conform"]);
        assert!(output.lines().last().unwrap().contains(" 0 failed"), "{output}");
    }
}

/// Packages the crates, and returns the files.
fn package_crates() -> Vec<PathBuf> {
    let folder = root().join("target/packages/crates");
    let _ = fs::remove_dir_all(folder.join("package"));
    let mut package = Command::new(env!("CARGO"));
    package.args([
        "package",
        "--workspace",
        "--locked",
        "--no-verify",
        "--allow-dirty",
        "--offline",
    ]);
    // These two compile other crates' sources, and are not published.
    package.args(["--exclude", "hsa-sim-shared", "--exclude", "hsa-vmm-interleavings"]);
    run_ok(package.arg("--target-dir").arg(&folder).current_dir(root()));
    let entries = fs::read_dir(folder.join("package")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|name| name == "crate")).collect()
}

/// A program outside this workspace uses the packaged library, and the packaged command runs.
#[test]
fn crates_build_outside_the_workspace() {
    if is_skipped("crates_build_outside_the_workspace", &["tar", "cc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut patches, mut members) = (String::new(), String::new());
    for file in package_crates() {
        run_ok(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(folder.path()));
        // The file `hsa-vmm-0.1.0.crate` contains the folder `hsa-vmm-0.1.0`.
        let crate_folder = file.file_stem().unwrap().to_str().unwrap();
        let (name, _) = crate_folder.rsplit_once('-').unwrap();
        patches.push_str(&format!("{name} = {{ path = \"{crate_folder}\" }}\n"));
        members.push_str(&format!("\"{crate_folder}\", "));
    }
    fs::write(
        path("Cargo.toml"),
        format!(
            "[workspace]\nmembers = [{members}]\n\n\
             [package]\nname = \"program\"\nedition = \"2024\"\n\n\
             [dependencies]\nanyhow = \"1\"\n\
             hsa-vmm = {{ version = \"0.1\", features = [\"simulation\"] }}\n\n\
             [patch.crates-io]\n{patches}"
        ),
    )
    .unwrap();
    fs::create_dir(path("src")).unwrap();
    fs::copy(root().join("examples/cycle.rs"), path("src/main.rs")).unwrap();
    // The versions that this workspace was tested with; other versions could need the network.
    fs::copy(root().join("Cargo.lock"), path("Cargo.lock")).unwrap();
    let target = root().join("target/packages/outside");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--workspace", "--offline", "--target-dir"]).arg(&target);
    run_ok(build.current_dir(folder.path()));
    let program = |name: &str| {
        let mut command = Command::new(target.join("debug").join(name));
        command.env_clear().env("HSA_VMM_RUNTIME", "sim").current_dir(folder.path());
        command
    };
    run_ok(&mut program("program"));
    let output =
        run_ok(program("hsa-vmm").args(["conform", "--runtime", "sim", "--filter", "map"]));
    assert!(output.lines().last().unwrap().contains(" passed, 0 failed"), "{output}");
}
