//! C and C++ programs that are compiled against the headers and linked to the library.

use hsa_rocr::{Emulation, Installation};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Which compiler reads a source, and how strictly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C99,
    Cpp17,
}

impl Language {
    pub const ALL: [Self; 2] = [Self::C99, Self::Cpp17];

    fn compiler(self) -> Command {
        let (variable, name, standard, kind) = match self {
            Self::C99 => ("CC", "cc", "-std=c99", "c"),
            Self::Cpp17 => ("CXX", "c++", "-std=c++17", "c++"),
        };
        let mut command = Command::new(std::env::var_os(variable).unwrap_or_else(|| name.into()));
        command.args(["-x", kind, standard]);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]);
        command
    }
}

/// The folder of this package.
pub fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder that Cargo has built `libhsavmm.so` into: that of this very program, or the one above.
pub fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its own file");
    let here = program.parent().expect("a file is in a folder");
    let found = [here, here.parent().expect("`deps` is in a folder")]
        .into_iter()
        .find(|folder| folder.join("libhsavmm.so").exists());
    found.expect("Cargo builds the library before its tests").to_owned()
}

/// A compiled program, which goes with this value.
#[derive(Debug)]
pub struct Program {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Compiles a source of this package, every warning an error.
    #[track_caller]
    pub fn compile(source: &str, language: Language, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a program");
        let file = folder.path().join("program");
        let library = library_folder();
        // As the older kind of path, which comes before LD_LIBRARY_PATH: Cargo names a folder there
        // that may have an older build.
        let mut rpath = std::ffi::OsString::from("-Wl,--disable-new-dtags,-rpath,");
        rpath.push(&library);
        let output = language
            .compiler()
            .arg("-I")
            .arg(package().join("include"))
            .args(more)
            .arg(package().join(source))
            .arg("-o")
            .arg(&file)
            .arg("-L")
            .arg(&library)
            .args(["-x", "none", "-lhsavmm", "-lpthread"])
            .arg(rpath)
            .output()
            .unwrap_or_else(|error| panic!("no compiler for {language:?}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{source} as {language:?}:\n{said}");
        Self { file, _folder: folder }
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A command that runs it on the simulation; `sim` configures that.
    pub fn on_simulation(&self, sim: &str) -> Command {
        let mut command = Command::new(&self.file);
        clean(&mut command).env("HSA_VMM_RUNTIME", "sim").env("HSA_SIM", sim);
        command
    }

    /// A command that runs it on a release of AMD's runtime, over the emulated driver.
    pub fn on_release(&self, installation: &Installation, emulation: &Emulation) -> Command {
        let mut command = installation.command(&self.file);
        clean(&mut command).env("HSA_VMM_RUNTIME", installation.runtime());
        emulation.apply(&mut command).expect("hsa-kfd is built");
        command
    }
}

/// Takes out what this machine's environment could change.
fn clean(command: &mut Command) -> &mut Command {
    for variable in ["HSA_VMM_PROFILE", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_SIM"] {
        command.env_remove(variable);
    }
    command
}

/// Fails unless a program has ended well; returns what it printed.
#[track_caller]
pub fn well(output: &Output, what: &str) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
    out.into_owned()
}
