//! Fetching releases.

use crate::apt::{self, AptError, Archive};
use crate::{Installation, NotInstalled, Release};
use rustix::fs::{FlockOperation, OFlags, flock, statvfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const RUNTIME: &str = "libhsa-runtime64-1";
/// Comes along: what shows that a driver works. What it needs besides the runtime is for its
/// companion script.
const SHOW: &str = "rocminfo";

/// What the lists (48 MiB), the packages and three releases (67 MiB) take, with some to spare.
const NEEDED: u64 = 192 << 20;
/// How the folders of fetches at work are called.
pub(crate) const WORK: &str = ".fetch-";

/// Why releases could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The packages could not be got.
    #[error("AMD's runtime cannot be fetched: {0}")]
    Apt(AptError),
    /// A file or folder could not be made.
    #[error("AMD's runtime cannot be kept in {path}: {cause}", path = path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The disk is nearly full.
    #[error(
        "AMD's runtime needs up to {} MiB in {path}, where {} are left; HSA_VMM_ROCR names another folder",
        needed >> 20, left >> 20, path = path.display()
    )]
    Full {
        /// The folder.
        path: PathBuf,
        /// The bytes it has left.
        left: u64,
        /// The bytes that are needed.
        needed: u64,
    },
    /// The packages are not what they were.
    #[error("the packages were unpacked, but {0}")]
    Incomplete(NotInstalled),
}

/// Says of which file or folder the system said no.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let path = path.to_owned();
    |cause| FetchError::Folder { path, cause }
}

impl From<AptError> for FetchError {
    fn from(error: AptError) -> Self {
        Self::Apt(error)
    }
}

impl From<NotInstalled> for FetchError {
    fn from(error: NotInstalled) -> Self {
        Self::Incomplete(error)
    }
}

/// Gets releases of AMD's runtime, with all that they need, from this machine's package mirror.
///
/// Each goes to `folder/VERSION` as a whole or not at all; nothing outside the folder is touched,
/// and root's rights are not needed. What is there already is left as it is. Several processes may
/// do this at once: one fetches, the others wait. `told` is told of each step.
///
/// The mirror is the one of the machine's own package sources, or `HSA_VMM_MIRROR`. Signatures and
/// sums are checked by `apt-get`, against the keys of the package `debian-archive-keyring`; a suite
/// whose lists have expired is accepted, as its signature holds.
///
/// # Errors
/// Which step failed, on what, and what may help; what was there before is there still.
pub fn fetch(
    releases: &[Release],
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Vec<Installation>, FetchError> {
    let open = || -> Result<Vec<_>, NotInstalled> {
        releases.iter().map(|&release| Installation::open(folder, release)).collect()
    };
    if let Ok(all) = open() {
        return Ok(all);
    }
    let _alone = alone(folder, NEEDED)?;
    // Another process may have done it meanwhile.
    if let Ok(all) = open() {
        return Ok(all);
    }
    sweep(folder).map_err(at(folder))?;
    let work = tempfile::Builder::new().prefix(WORK).tempdir_in(folder);
    let work = work.map_err(at(folder))?;
    report("getting the lists of packages");
    let archive = Archive::open(&work.path().join("apt"))?;
    let offers = archive.offers(RUNTIME)?;
    for &release in releases {
        if Installation::open(folder, release).is_ok() {
            continue;
        }
        let offer = apt::choose(RUNTIME, release.version(), &offers)?;
        report(&format!("getting {release} ({} {} of {})", RUNTIME, offer.version, offer.suite));
        let packages = archive.download(RUNTIME, &offer, &[SHOW])?;
        let root = work.path().join(release.version());
        fs::create_dir(&root).map_err(at(&root))?;
        unpack(&packages, &root)?;
        let end = folder.join(release.version());
        // What is there is not whole, or there would be nothing to fetch.
        if end.exists() {
            fs::remove_dir_all(&end).map_err(at(&end))?;
        }
        fs::rename(&root, &end).map_err(at(&end))?;
    }
    Ok(open()?)
}

/// Waits until nobody else fetches into a folder, which is made, and sees whether there is room.
pub(crate) fn alone(folder: &Path, needed: u64) -> Result<File, FetchError> {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let path = folder.join("lock");
    // A link is not followed, and nothing is truncated.
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let lock = options.open(&path).map_err(at(&path))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| at(&path)(error.into()))?;
    let disk = statvfs(folder).map_err(|error| at(folder)(error.into()))?;
    let left = disk.f_bavail.saturating_mul(disk.f_frsize);
    if left < needed {
        return Err(FetchError::Full { path: folder.to_owned(), left, needed });
    }
    Ok(lock)
}

/// Removes what fetches left that were killed; whoever holds the lock is the only one at work.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(WORK.as_bytes()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Unpacks all packages of a folder into another, removes them, and leaves a list of what it was.
fn unpack(packages: &Path, root: &Path) -> Result<(), FetchError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(packages).map_err(at(packages))? {
        let entry = entry.map_err(at(packages))?;
        if let Some(name) = apt::name_and_version(&entry.file_name()) {
            apt::unpack(&entry.path(), root)?;
            fs::remove_file(entry.path()).map_err(at(packages))?;
            names.push(name);
        }
    }
    names.sort();
    let list = root.join("packages");
    fs::write(&list, names.join("\n") + "\n").map_err(at(&list))
}
