//! Stores a release of AMD's runtime that the user provides, beside the fetched releases.

use crate::apt;
use crate::fetch::{TEMPORARY_PREFIX, folder_error, lock_folder, remove_temporary_folders};
use crate::{FetchError, FetchedRelease, Release, fetch};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file name of the runtime.
const RUNTIME: &str = "libhsa-runtime64.so.1";
/// The disk space needed for an unpacked package of the runtime.
const NEEDED_SPACE: u64 = 512 << 20;
/// The maximum depth of the folders that are searched for a runtime.
const MAX_DEPTH: usize = 8;

/// Why a release could not be stored from a file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source is neither a folder, a package, an archive nor a library.
    #[error(
        "{0}: neither a folder, a .deb, a .tar nor a libhsa-runtime64.so; unpack it, and name the folder"
    )]
    Kind(PathBuf),
    /// The source cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Unreadable {
        /// The source.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The source contains no runtime.
    #[error("{0} contains no {RUNTIME}")]
    NoRuntime(PathBuf),
    /// The source contains several runtimes.
    #[error(
        "{source_path} contains several runtimes; name the folder of one of them:{}",
        one_per_line(found)
    )]
    Several {
        /// The source.
        source_path: PathBuf,
        /// The runtimes.
        found: Vec<PathBuf>,
    },
    /// The source does not contain the version of ROCm, and no name was given.
    #[error(
        "{0} contains no ROCm version (.info/version); choose a name: `rocr fetch NAME --from PATH`"
    )]
    NoName(PathBuf),
    /// The name is that of a release that Debian has as a package.
    #[error("the name {0} belongs to the release that `rocr fetch` downloads; choose another one")]
    Packaged(Release),
    /// The runtime needs libraries that are neither in its folder nor in the base release. The base
    /// release is the packaged release whose libraries the runtime uses.
    #[error(
        "{runtime} needs {}, which are neither in its folder in {source_path} nor in the base release",
        missing.join(", ")
    )]
    Missing {
        /// The source.
        source_path: PathBuf,
        /// The runtime.
        runtime: PathBuf,
        /// The libraries.
        missing: Vec<String>,
    },
}

/// Returns a function that converts a system error to an error about a source.
fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> SourceError + use<> {
    let path = path.to_owned();
    |cause| SourceError::Unreadable { path, cause }
}

/// Formats each path as a line.
fn one_per_line(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("\n  {}", path.display())).collect()
}

/// Stores the runtime of a folder, a Debian package, a tar archive or a library file in `folder/NAME`.
///
/// `release` is the name. If it is `None`, the name is the version in ROCm's file `.info/version`.
/// Replaces an existing release of that name. Rejects the names of packaged releases.
///
/// Uses the C library and the other libraries of the newest packaged release, and downloads that
/// release if needed. If the packaged release lacks a library, copies the library from the source.
///
/// # Errors
/// The source has no runtime or lacks libraries, or a release cannot be fetched (see [`fetch`](crate::fetch())).
pub fn fetch_from(
    source: &Path,
    release: Option<Release>,
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<FetchedRelease, FetchError> {
    if let Some(name) = release.filter(|release| release.is_packaged()) {
        return Err(SourceError::Packaged(name).into());
    }
    let source = source.canonicalize().map_err(unreadable(source))?;
    let base = match fetch(&[Release::R7_2_4], folder, report)?.pop() {
        Some(base) => base,
        None => FetchedRelease::open(folder, Release::R7_2_4)?,
    };
    let _lock = lock_folder(folder, NEEDED_SPACE, report)?;
    remove_temporary_folders(folder).map_err(folder_error(folder))?;
    let work = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder);
    let work = work.map_err(folder_error(folder))?;
    let unpacked = work.path().join("source");
    fs::create_dir(&unpacked).map_err(folder_error(&unpacked))?;
    report(&format!("reading {}", source.display()));
    let runtime = find_runtime(&source, &unpack(&source, &unpacked)?)?;
    let release = match release.or_else(|| version_of(&runtime)) {
        Some(release) if release.is_packaged() => return Err(SourceError::Packaged(release).into()),
        Some(release) => release,
        None => return Err(SourceError::NoName(source).into()),
    };
    report(&format!("storing {release}"));
    let root = work.path().join("root");
    create_release(&base, &source, &runtime, &root)?;
    let destination = folder.join(release.version());
    if destination.exists() {
        fs::remove_dir_all(&destination).map_err(folder_error(&destination))?;
    }
    fs::rename(&root, &destination).map_err(folder_error(&destination))?;
    Ok(FetchedRelease::open(folder, release)?)
}

/// Unpacks the source if it is a package or an archive. Returns the folder to search, or the
/// library itself.
fn unpack(source: &Path, folder: &Path) -> Result<PathBuf, FetchError> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    if source.is_dir() || name.starts_with("libhsa-runtime64.so") {
        return Ok(source.to_owned());
    }
    if name.ends_with(".deb") {
        apt::unpack(source, folder)?;
    } else if name.contains(".tar") || name.ends_with(".tgz") {
        // tar recognises the compression, and extracts nothing outside of the folder.
        let mut command = Command::new("tar");
        command.arg("--extract").arg("--file").arg(source).arg("--directory").arg(folder);
        command.args(["--no-same-owner", "--no-same-permissions"]);
        apt::run(&format!("tar --extract --file {}", source.display()), "tar", command)?;
    } else {
        return Err(SourceError::Kind(source.to_owned()).into());
    }
    Ok(folder.to_owned())
}

/// Finds the runtime in a folder. Fails if the folder contains no runtime or several.
fn find_runtime(source: &Path, searched: &Path) -> Result<PathBuf, FetchError> {
    if searched.is_file() {
        return Ok(searched.to_owned());
    }
    let mut found = BTreeSet::new();
    add_runtimes(searched, MAX_DEPTH, &mut found).map_err(unreadable(searched))?;
    let mut found: Vec<PathBuf> = found.into_iter().collect();
    match (found.pop(), found.is_empty()) {
        (Some(runtime), true) => Ok(runtime),
        (None, _) => Err(SourceError::NoRuntime(source.to_owned()).into()),
        (Some(last), false) => {
            found.push(last);
            Err(SourceError::Several { source_path: source.to_owned(), found }.into())
        }
    }
}

/// Adds the runtimes in a folder and its subfolders. Ignores symbolic links.
fn add_runtimes(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            add_runtimes(&entry.path(), depth - 1, found)?;
        } else if kind.is_file() && entry.file_name().to_string_lossy().starts_with(RUNTIME) {
            found.insert(entry.path());
        }
    }
    Ok(())
}

/// Returns the version in ROCm's file `.info/version`, without its build number.
fn version_of(runtime: &Path) -> Option<Release> {
    let rocm = runtime.parent()?.parent()?;
    let version = fs::read_to_string(rocm.join(".info/version")).ok()?;
    version.trim().split('-').next()?.parse().ok()
}

/// Creates the folder of a release: the libraries and programs of `base`, the runtime `runtime`, and, from the source,
/// the libraries that `base` lacks.
fn create_release(
    base: &FetchedRelease,
    source: &Path,
    runtime: &Path,
    root: &Path,
) -> Result<(), FetchError> {
    let is_runtime = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libhsa-runtime64.so")
    };
    for part in [base.libraries(), base.root().join("usr/bin").as_path()] {
        let target = root.join(part.strip_prefix(base.root()).unwrap_or(part));
        fs::create_dir_all(&target).map_err(folder_error(&target))?;
        if part.is_dir() {
            link_tree(part, &target, &is_runtime).map_err(folder_error(&target))?;
        }
    }
    let libraries = base.libraries();
    let libraries = root.join(libraries.strip_prefix(base.root()).unwrap_or(libraries));
    for (name, path) in libraries_to_copy(base, source, runtime)? {
        let copy = libraries.join(name);
        fs::File::open(&path).map_err(unreadable(&path))?;
        fs::copy(path, &copy).map_err(folder_error(&copy))?;
    }
    // Keep the file's name, which contains the library's version.
    let file = libraries.join(runtime.file_name().unwrap_or(RUNTIME.as_ref()));
    fs::File::open(runtime).map_err(unreadable(runtime))?;
    fs::copy(runtime, &file).map_err(folder_error(&file))?;
    let link = libraries.join(RUNTIME);
    if let Some(name) = file.file_name().filter(|_| file != link) {
        symlink(name, &link).map_err(folder_error(&link))?;
    }
    let build = hsa_sys::build_of_file(runtime).unwrap_or_else(|| "unknown".to_owned());
    let mut packages = base.packages();
    packages.retain(|line| !line.starts_with("libhsa-runtime64-1 "));
    packages.push(format!("libhsa-runtime64-1 {build}"));
    packages.sort();
    // Write the list last, because it marks the release as complete.
    let list = root.join("packages");
    fs::write(&list, packages.join("\n") + "\n").map_err(folder_error(&list))
}

/// Links or copies every file of a folder into another folder, except those that `skip` selects.
fn link_tree(source: &Path, target: &Path, skip: &dyn Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (old, new) = (entry.path(), target.join(entry.file_name()));
        let kind = entry.file_type()?;
        if skip(&old) {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&new)?;
            link_tree(&old, &new, skip)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&old)?, &new)?;
        } else if fs::hard_link(&old, &new).is_err() {
            // A hard link is impossible if the folder is on another disk, or the file belongs to another user.
            fs::copy(&old, &new)?;
        }
    }
    Ok(())
}

/// Returns the libraries that the runtime needs and the base release lacks, with their files in the source.
fn libraries_to_copy(
    base: &FetchedRelease,
    source: &Path,
    runtime: &Path,
) -> Result<Vec<(String, PathBuf)>, FetchError> {
    let folder = runtime.parent().unwrap_or(runtime);
    // TheRock, AMD's build system, stores its own builds of libraries such as libdrm in `rocm_sysdeps`.
    let folders = [base.libraries(), folder, &folder.join("rocm_sysdeps/lib")];
    let folders = folders.map(|folder| folder.display().to_string()).join(":");
    let mut command = Command::new(base.loader());
    command.arg("--library-path").arg(folders).arg("--list").arg(runtime);
    let output = apt::run(&format!("ld.so --list {}", runtime.display()), "ld.so", command)?;
    let list = String::from_utf8_lossy(&output.stdout);
    let (found, missing) = parse_loader_list(&list);
    if !missing.is_empty() {
        let (source_path, runtime) = (source.to_owned(), runtime.to_owned());
        return Err(SourceError::Missing { source_path, runtime, missing }.into());
    }
    let is_in_source = |path: &Path| path.starts_with(folder) && !path.starts_with(base.root());
    Ok(found.into_iter().filter(|(_, path)| is_in_source(path)).collect())
}

/// Parses the dynamic loader's list: lines such as `libelf.so.1 => /lib/libelf.so.1 (0x7f00)`. Returns the
/// libraries with their files, and the libraries that were not found.
fn parse_loader_list(list: &str) -> (Vec<(String, PathBuf)>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, file) in list.lines().filter_map(|line| line.trim().split_once(" => ")) {
        // The name can be a path, in `DT_NEEDED` or for the loader itself.
        let name = name.rsplit('/').next().unwrap_or(name).to_owned();
        match file.rsplit_once(" (0x") {
            Some((path, _)) => found.push((name, path.into())),
            None => missing.push(name),
        }
    }
    (found, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_the_loader_is_parsed() {
        let (found, missing) = parse_loader_list(
            "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibdrm.so.2 => /a b/libdrm.so.2 (0x00007f00)\n\
             \tlibother.so.1 => not found\n\t/lib64/ld-linux-x86-64.so.2 => /x/ld.so (0x00007f01)\n",
        );
        let paths = [("libdrm.so.2", "/a b/libdrm.so.2"), ("ld-linux-x86-64.so.2", "/x/ld.so")];
        assert_eq!(found, paths.map(|(name, path)| (name.to_owned(), PathBuf::from(path))));
        assert_eq!(missing, ["libother.so.1"]);
    }

    #[test]
    fn source_has_exactly_one_runtime() {
        let source = tempfile::tempdir().unwrap();
        let find = || find_runtime(source.path(), source.path());
        let assert_error = |error: FetchError, text: &str| {
            assert!(error.to_string().contains(text), "{error}");
        };
        assert_error(find().unwrap_err(), "contains no libhsa-runtime64.so.1");
        let library = source.path().join("opt/rocm-7.14.0/lib/libhsa-runtime64.so.1.20.0");
        let folder = library.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(&library, "").unwrap();
        symlink("libhsa-runtime64.so.1.20.0", folder.join(RUNTIME)).unwrap();
        assert_eq!(find().unwrap(), library);
        assert_eq!(version_of(&library), None);
        fs::create_dir(folder.join("../.info")).unwrap();
        fs::write(folder.join("../.info/version"), "7.14.0-43\n").unwrap();
        assert_eq!(version_of(&library), "7.14.0".parse().ok());
        fs::write(source.path().join("libhsa-runtime64.so.1"), "").unwrap();
        assert_error(find().unwrap_err(), "several runtimes");
    }

    #[test]
    fn other_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rocm.zip");
        fs::write(&file, "").unwrap();
        let error = unpack(&file, folder.path()).unwrap_err();
        assert!(error.to_string().contains("unpack it"), "{error}");
        let error = fetch_from(&file, Some(Release::R6_4_3), folder.path(), &mut |_| ());
        assert!(error.unwrap_err().to_string().contains("choose another"));
    }
}
