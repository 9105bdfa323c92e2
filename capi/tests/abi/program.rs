//! C and C++ programs that are compiled against the headers and linked to the library.

use hsa_rocr::{Emulation, FetchedRelease};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The language of a source, which selects the compiler and its flags.
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
        command.args(["-x", kind, standard, "-O1", "-g"]);
        command
    }
}

/// Returns the directory of this package.
pub fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory in which Cargo has built `libhsavmm.so`: the directory of this test binary, or its parent.
pub fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a file has a directory");
    let found = [folder, folder.parent().expect("`deps` has a parent")]
        .into_iter()
        .find(|folder| folder.join("libhsavmm.so").exists());
    found.expect("Cargo builds the library before its tests").to_owned()
}

/// A compiled program. Dropping this value deletes the program's file.
#[derive(Debug)]
pub struct Program {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Program {
    /// Compiles a source of this package. Warnings are errors.
    #[track_caller]
    pub fn compile(source: &str, language: Language, flags: &[&str]) -> Self {
        let mut command = language.compiler();
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]);
        command.arg("-I").arg(package().join("include")).args(flags).arg(package().join(source));
        Self::link(command, &format!("{source} as {language:?}"))
    }

    /// Compiles a program of another project: all files `*.cpp` of a folder, as C++17, with warnings disabled. The
    /// compiler runs in the folder. If the folder has a file `flags`, each of its lines is an argument for the
    /// compiler.
    #[track_caller]
    pub fn compile_folder(folder: &Path) -> Self {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let files = entries.map(|entry| entry.unwrap().path());
        let mut sources: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|name| name == "cpp")).collect();
        assert!(!sources.is_empty(), "{folder:?}: no file *.cpp");
        sources.sort();
        let flags = std::fs::read_to_string(folder.join("flags")).unwrap_or_default();
        let mut command = Language::Cpp17.compiler();
        command.current_dir(folder).args(["-w", "-I.", "-I"]).arg(package().join("include"));
        command.args(sources).args(["-x", "none"]).args(flags.lines());
        Self::link(command, &folder.display().to_string())
    }

    /// Runs a compiler that links the program with the library. `description` names the sources in messages.
    #[track_caller]
    fn link(mut compiler: Command, description: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("program");
        let library = library_folder();
        // Use DT_RPATH, which precedes LD_LIBRARY_PATH: Cargo adds a directory to LD_LIBRARY_PATH that can contain an
        // older build.
        let mut rpath = std::ffi::OsString::from("-Wl,--disable-new-dtags,-rpath,");
        rpath.push(&library);
        compiler.arg("-o").arg(&file).arg("-L").arg(&library);
        compiler.args(["-x", "none", "-lhsavmm", "-lpthread"]).arg(rpath);
        let output = compiler.output();
        let output =
            output.unwrap_or_else(|error| panic!("no compiler for {description}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{description}:\n{errors}");
        Self { file, _folder: folder }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns a command that runs the program on the simulation with this configuration.
    pub fn on_simulation(&self, configuration: &str) -> Command {
        let mut command = Command::new(&self.file);
        remove_settings(&mut command).env("HSA_VMM_RUNTIME", "sim").env("HSA_SIM", configuration);
        command
    }

    /// Returns a command that runs the program on a release of AMD's runtime, over the emulated driver.
    pub fn on_release(&self, fetched: &FetchedRelease, emulation: &Emulation) -> Command {
        let mut command = fetched.command(&self.file);
        remove_settings(&mut command).env("HSA_VMM_RUNTIME", fetched.runtime());
        emulation.apply(&mut command).expect("hsa-kfd is built");
        command
    }
}

/// Removes inherited environment variables that configure the library or the runtime.
fn remove_settings(command: &mut Command) -> &mut Command {
    for variable in [
        "HSA_VMM_PROFILE",
        "HSA_VMM_PAGE_TABLES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_HIDDEN_FREE_MEM",
        "HSA_SIM",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Asserts that a program has succeeded. Returns its output. `description` names the program in messages.
#[track_caller]
pub fn expect_success(output: &Output, description: &str) -> String {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{description}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}
