//! Downloads releases of AMD's runtime.

use crate::apt::{self, AptError, Archive};
use crate::{FetchedRelease, NotFetched, Release, SourceError};
use hsa_sys::open_regular;
use rustix::fs::{FlockOperation, flock, statvfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The package of the runtime.
const RUNTIME: &str = "libhsa-runtime64-1";
/// The package of the program that lists GPUs. Only a script in the package needs the package's dependencies, so they
/// are not fetched.
const ROCMINFO: &str = "rocminfo";

/// The disk space needed for the lists (48 MiB), the packages and three releases (67 MiB), with a
/// margin.
const NEEDED_SPACE: u64 = 192 << 20;
pub(crate) const TEMPORARY_PREFIX: &str = ".fetch-";

/// Why releases could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The packages could not be downloaded.
    #[error("cannot fetch AMD's runtime: {0}")]
    Apt(AptError),
    /// A file or folder could not be created.
    #[error("cannot store AMD's runtime in {path}: {cause}{}", remedy(cause), path = path.display())]
    Folder {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The disk is nearly full.
    #[error(
        "cannot fetch AMD's runtime: {path} needs {} MiB of free space and has {}; set HSA_VMM_ROCR to another folder",
        needed >> 20, available >> 20, path = path.display()
    )]
    Full {
        /// The folder.
        path: PathBuf,
        /// The available bytes.
        available: u64,
        /// The needed bytes.
        needed: u64,
    },
    /// The source that the user named cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The packages lack expected files.
    #[error("cannot use the fetched release: {0}")]
    Incomplete(NotFetched),
}

/// Returns what to do if this user cannot write in the folder.
fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; set HSA_VMM_ROCR to a folder that you can write to"
        }
        _ => "",
    }
}

/// Returns a function that converts a system error to a [`FetchError`] with the path.
pub(crate) fn folder_error(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let path = path.to_owned();
    |cause| FetchError::Folder { path, cause }
}

impl From<AptError> for FetchError {
    fn from(error: AptError) -> Self {
        Self::Apt(error)
    }
}

impl From<NotFetched> for FetchError {
    fn from(error: NotFetched) -> Self {
        Self::Incomplete(error)
    }
}

/// Downloads releases of AMD's runtime with their dependencies from this machine's package mirror.
///
/// Stores each release atomically in `folder/VERSION`. Changes nothing outside of the folder, and
/// does not need root. Keeps existing releases. If several processes fetch at once, one process
/// fetches and the others report that they wait. Calls `report` with a description of each step.
///
/// The mirror is `HSA_VMM_MIRROR`, if set, or else the mirror in the machine's package sources. `apt-get` checks
/// signatures and checksums against the keys of the package `debian-archive-keyring`. Accepts expired lists with a
/// valid signature.
///
/// # Errors
/// The message names the failed step, and a remedy if one is known. Existing releases stay.
pub fn fetch(
    releases: &[Release],
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Vec<FetchedRelease>, FetchError> {
    let open = || -> Result<Vec<_>, NotFetched> {
        releases.iter().map(|&release| FetchedRelease::open(folder, release)).collect()
    };
    if let Ok(all) = open() {
        return Ok(all);
    }
    let _lock = lock_folder(folder, NEEDED_SPACE, report)?;
    // Another process may have fetched the releases meanwhile.
    if let Ok(all) = open() {
        return Ok(all);
    }
    remove_temporary_folders(folder).map_err(folder_error(folder))?;
    let work = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder);
    let work = work.map_err(folder_error(folder))?;
    report("getting the lists of packages");
    let archive = Archive::open(&work.path().join("apt"))?;
    let versions = archive.versions(RUNTIME)?;
    for &release in releases {
        if FetchedRelease::open(folder, release).is_ok() {
            continue;
        }
        let chosen = apt::choose(RUNTIME, release.version(), &versions)?;
        report(&format!("getting {release} ({} {} of {})", RUNTIME, chosen.version, chosen.suite));
        let packages = archive.download(RUNTIME, &chosen, &[ROCMINFO])?;
        let root = work.path().join(release.version());
        fs::create_dir(&root).map_err(folder_error(&root))?;
        unpack(&packages, &root)?;
        let destination = folder.join(release.version());
        // If the folder exists, its contents are incomplete.
        if destination.exists() {
            fs::remove_dir_all(&destination).map_err(folder_error(&destination))?;
        }
        fs::rename(&root, &destination).map_err(folder_error(&destination))?;
    }
    Ok(open()?)
}

/// Creates a folder, locks it against other processes that fetch, and checks the free space. Reports when it waits for
/// the lock.
pub(crate) fn lock_folder(
    folder: &Path,
    needed: u64,
    report: &mut dyn FnMut(&str),
) -> Result<File, FetchError> {
    fs::create_dir_all(folder).map_err(folder_error(folder))?;
    let path = folder.join("lock");
    let mut options = File::options();
    // Other users get no permissions, because a user who can open the file can lock it.
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let lock = open_regular(&path, options).map_err(folder_error(&path))?;
    // The file of an earlier build may have more permissions. Only its owner can change them.
    let _ = lock.set_permissions(fs::Permissions::from_mode(0o600));
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        report(&format!("waiting for another process, which has locked {}", path.display()));
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| folder_error(&path)(error.into()))?;
    }
    let disk = statvfs(folder).map_err(|error| folder_error(folder)(error.into()))?;
    let available = disk.f_bavail.saturating_mul(disk.f_frsize);
    if available < needed {
        return Err(FetchError::Full { path: folder.to_owned(), available, needed });
    }
    Ok(lock)
}

/// Removes the temporary folders of killed processes. The caller must hold the lock.
pub(crate) fn remove_temporary_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Unpacks all packages of a folder into another folder, removes the packages, and writes their list.
fn unpack(packages: &Path, root: &Path) -> Result<(), FetchError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(packages).map_err(folder_error(packages))? {
        let entry = entry.map_err(folder_error(packages))?;
        if let Some(name) = apt::name_and_version(&entry.file_name()) {
            apt::unpack(&entry.path(), root)?;
            fs::remove_file(entry.path()).map_err(folder_error(packages))?;
            names.push(name);
        }
    }
    names.sort();
    let list = root.join("packages");
    fs::write(&list, names.join("\n") + "\n").map_err(folder_error(&list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn remedy_for_a_folder_without_permission_is_named() {
        for (errno, expected) in [(Errno::ACCESS, true), (Errno::ROFS, true), (Errno::IO, false)] {
            let error = folder_error(Path::new("/a"))(errno.into());
            assert_eq!(error.to_string().contains("HSA_VMM_ROCR"), expected, "{error}");
        }
    }

    #[test]
    fn lock_reports_that_it_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut unexpected = |step: &str| panic!("{step}");
        let mut first = Some(lock_folder(folder.path(), 0, &mut unexpected).unwrap());
        let mut steps = Vec::new();
        let mut report = |step: &str| {
            steps.push(step.to_owned());
            first = None;
        };
        lock_folder(folder.path(), 0, &mut report).unwrap();
        let path = folder.path().join("lock");
        let expected = format!("waiting for another process, which has locked {}", path.display());
        assert_eq!(steps, [expected]);
    }
}
