//! Fetched releases.

use crate::{Release, hip};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release of AMD's runtime in a folder, with its own C library and loader.
#[derive(Clone, Debug)]
pub struct FetchedRelease {
    release: Release,
    root: PathBuf,
    libraries: PathBuf,
    loader: PathBuf,
}

/// A release that is unknown, missing or incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotFetched(String);

impl FetchedRelease {
    /// Opens a release that [`fetch`](crate::fetch()) has downloaded or
    /// [`fetch_from`](crate::fetch_from()) has stored.
    ///
    /// # Errors
    /// A part of the release is missing; the message names the command that fetches the release.
    pub fn open(folder: &Path, release: Release) -> Result<Self, NotFetched> {
        let root = folder.join(release.version());
        if !release.is_packaged() && !root.exists() {
            return Err(NotFetched(unknown_release(folder, release)));
        }
        let not_fetched = |missing: &str| {
            let folder = folder.display();
            NotFetched(format!(
                "{missing} of release {release} not found in {folder}; run `hsa-vmm rocr fetch`"
            ))
        };
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
        let loader = loader(&libraries).ok_or_else(|| not_fetched("loader"))?;
        let fetched = Self { release, root, libraries, loader };
        // `fetch` and `fetch_from` write the file `packages` last. Without it, the release is incomplete.
        if !fetched.root.join("packages").is_file() {
            return Err(not_fetched("list of packages"));
        }
        if !fetched.runtime().is_file() {
            return Err(not_fetched("runtime"));
        }
        Ok(fetched)
    }

    /// Opens all complete releases of a folder: first Debian's releases, from the oldest to the
    /// newest, then the others by name.
    #[must_use]
    pub fn all(folder: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut releases: Vec<Release> = names.collect();
        releases.sort_by_key(|release| (!release.is_packaged(), *release));
        releases.into_iter().filter_map(|release| Self::open(folder, release).ok()).collect()
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

    /// Returns the folder of the release's libraries.
    pub(crate) fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// Returns the release's dynamic loader.
    pub(crate) fn loader(&self) -> &Path {
        &self.loader
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
        // `fetch_hip` writes the list last.
        self.has_package(package).then(|| self.libraries.join(format!("libamdhip64.so.{major}")))
    }

    /// Returns the packages of the release, such as `libc6 2.41-12`.
    #[must_use]
    pub fn packages(&self) -> Vec<String> {
        // If the list was removed after `open`, returns no packages.
        let list = fs::read_to_string(self.root.join("packages")).unwrap_or_default();
        list.lines().map(str::to_owned).collect()
    }

    /// Returns whether the release contains a complete package of this name.
    pub(crate) fn has_package(&self, package: &str) -> bool {
        self.packages().iter().any(|line| line.split(' ').next() == Some(package))
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
    /// that the program starts use the machine's libraries.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let program = program.as_ref();
        let path = self.program(program).or_else(|| find_program(program));
        let mut command = Command::new(&self.loader);
        command.arg("--library-path").arg(&self.libraries);
        command.arg(path.as_deref().map_or(program, Path::as_os_str));
        command
    }
}

/// Returns the message about a release that is neither fetched nor one of Debian's.
fn unknown_release(folder: &Path, release: Release) -> String {
    let fetched = FetchedRelease::all(folder);
    let names: Vec<_> = fetched.iter().map(|it| it.release.version()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!(
        "unknown release `{release}`; fetched releases: {names}; `hsa-vmm rocr fetch` downloads 6.1.2, 6.4.3 and \
         7.2.4, or stores another one (`--from PATH`)"
    )
}

/// Finds the dynamic loader in a folder: `ld-linux-x86-64.so.2`, or the loader of another
/// architecture.
fn loader(libraries: &Path) -> Option<PathBuf> {
    let is_loader = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-linux-"))
    };
    fs::read_dir(libraries).ok()?.filter_map(|entry| Some(entry.ok()?.path())).find(is_loader)
}

/// Finds the file of a program: a path, or a name in `PATH`.
#[must_use]
pub fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::{FetchedRelease, find_program};
    use crate::Release;
    use std::ffi::OsStr;

    #[test]
    fn missing_release_error_suggests_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let error = FetchedRelease::open(folder.path(), Release::R6_4_3).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("6.4.3") && text.contains("rocr fetch"), "{text}");
    }

    #[test]
    fn programs_are_searched_in_path() {
        assert!(find_program(OsStr::new("sh")).is_some_and(|path| path.is_file()));
        assert_eq!(find_program(OsStr::new("/bin/sh")), Some("/bin/sh".into()));
        assert_eq!(find_program(OsStr::new("no such program")), None);
        assert_eq!(find_program(OsStr::new("/no/such/program")), None);
    }
}
