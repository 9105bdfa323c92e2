//! Fetched releases.

use crate::{Release, hip};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release of AMD's runtime in a folder, with its own C library and loader.
#[derive(Clone, Debug)]
pub struct Installation {
    release: Release,
    root: PathBuf,
    libraries: PathBuf,
    loader: PathBuf,
}

/// A release that is missing or incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missing} of release {release} not found in {folder}; run `hsa-vmm rocr fetch`", folder = folder.display())]
pub struct NotInstalled {
    release: Release,
    folder: PathBuf,
    missing: &'static str,
}

impl Installation {
    /// Opens a release that [`fetch`](crate::fetch()) has downloaded.
    ///
    /// # Errors
    /// A part of the release is missing; the message says how to fetch it.
    pub fn open(folder: &Path, release: Release) -> Result<Self, NotInstalled> {
        let root = folder.join(release.version());
        let lacks = |missing| NotInstalled { release, folder: folder.to_owned(), missing };
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
        let loader = loader(&libraries).ok_or_else(|| lacks("loader"))?;
        let installation = Self { release, root, libraries, loader };
        // The list is written last.
        if !installation.root.join("packages").is_file() {
            return Err(lacks("list of packages"));
        }
        if !installation.runtime().is_file() {
            return Err(lacks("runtime"));
        }
        Ok(installation)
    }

    /// Returns the release.
    #[must_use]
    pub fn release(&self) -> Release {
        self.release
    }

    /// Returns the folder of the release.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the file of the runtime.
    #[must_use]
    pub fn runtime(&self) -> PathBuf {
        self.libraries.join("libhsa-runtime64.so.1")
    }

    /// Returns the file of HIP, if [`fetch_hip`](crate::fetch_hip()) has downloaded it.
    #[must_use]
    pub fn hip(&self) -> Option<PathBuf> {
        let package = hip::package(self.release)?;
        let major = package.rsplit_once('-')?.1;
        // The list is written last.
        let fetched = self.packages().iter().any(|line| line.split(' ').next() == Some(package));
        fetched.then(|| self.libraries.join(format!("libamdhip64.so.{major}")))
    }

    /// Returns the packages of the release, such as `libc6 2.41-12`.
    #[must_use]
    pub fn packages(&self) -> Vec<String> {
        // If the list was removed after `open`, returns no packages.
        let list = fs::read_to_string(self.root.join("packages")).unwrap_or_default();
        list.lines().map(str::to_owned).collect()
    }

    /// Returns the file of a program of this release, such as `rocminfo`.
    #[must_use]
    pub fn program(&self, name: &OsStr) -> Option<PathBuf> {
        let is_bare_name = !name.as_encoded_bytes().contains(&b'/');
        Some(self.root.join("usr/bin").join(name)).filter(|path| is_bare_name && path.is_file())
    }

    /// Returns a command that starts a program with this runtime, its loader and its C library,
    /// which can be newer than the machine's.
    ///
    /// `program` is a program of this release (`rocminfo`), a path, or a name in `PATH`. Processes
    /// that it starts use the machine's libraries.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let program = program.as_ref();
        let path = self.program(program).or_else(|| on_path(program));
        let mut command = Command::new(&self.loader);
        command.arg("--library-path").arg(&self.libraries);
        command.arg(path.as_deref().map_or(program, Path::as_os_str));
        command
    }
}

/// Finds the dynamic loader in a folder: `ld-linux-x86-64.so.2`, or another architecture's.
fn loader(libraries: &Path) -> Option<PathBuf> {
    let is_loader = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-linux-"))
    };
    fs::read_dir(libraries).ok()?.filter_map(|entry| Some(entry.ok()?.path())).find(is_loader)
}

/// Returns whether a program exists: a path, or a name in `PATH`.
#[must_use]
pub fn is_program(program: &OsStr) -> bool {
    Path::new(program).is_file() && program.as_encoded_bytes().contains(&b'/')
        || on_path(program).is_some()
}

/// Searches `PATH` for a bare name, because the dynamic loader does not.
fn on_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return None;
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::{Installation, on_path};
    use crate::Release;
    use std::ffi::OsStr;

    #[test]
    fn not_installed_error_suggests_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let error = Installation::open(folder.path(), Release::R6_4_3).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("6.4.3") && text.contains("rocr fetch"), "{text}");
    }

    #[test]
    fn programs_are_searched_in_path() {
        assert!(on_path(OsStr::new("sh")).is_some_and(|path| path.is_file()));
        assert_eq!(on_path(OsStr::new("/bin/sh")), None);
        assert_eq!(on_path(OsStr::new("no such program")), None);
    }
}
