//! Fetches HIP beside a release of the runtime, for benchmarks.

use crate::apt::{self, Archive};
use crate::fetch::{TEMPORARY_PREFIX, folder_error, lock_folder, remove_temporary_folders};
use crate::{FetchError, Installation, Release, fetch};
use std::fs;
use std::path::{Path, PathBuf};

/// The disk space needed for package lists, packages (including compilers) and their contents.
const NEEDED_SPACE: u64 = 512 << 20;

/// Returns Debian's package of HIP for a release, if any.
pub(crate) fn package(release: Release) -> Option<&'static str> {
    match release {
        Release::R6_1_2 => None,
        Release::R6_4_3 => Some("libamdhip64-6"),
        Release::R7_2_4 => Some("libamdhip64-7"),
    }
}

/// Downloads HIP's library and its dependencies into the folder of a release. Fetches the release
/// first if needed. Returns `None` if Debian has no HIP for the release (6.1.2).
///
/// The folder is locked, and the packages are checked, as by [`fetch`](crate::fetch()).
///
/// # Errors
/// As for [`fetch`](crate::fetch()).
pub fn fetch_hip(
    release: Release,
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Option<PathBuf>, FetchError> {
    let Some(package) = package(release) else { return Ok(None) };
    let open = || Installation::open(folder, release);
    fetch(&[release], folder, report)?;
    let _lock = lock_folder(folder, NEEDED_SPACE)?;
    let installation = open()?;
    if let Some(hip) = installation.hip() {
        return Ok(Some(hip));
    }
    remove_temporary_folders(folder).map_err(folder_error(folder))?;
    let work = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder);
    let work = work.map_err(folder_error(folder))?;
    report("getting the lists of packages");
    let archive = Archive::open(&work.path().join("apt"))?;
    let offer = apt::choose(package, release.version(), &archive.offers(package)?)?;
    report(&format!("getting HIP {release} ({package} {} of {})", offer.version, offer.suite));
    let packages = archive.download(package, &offer, &[])?;
    let mut names = installation.packages();
    for entry in fs::read_dir(&packages).map_err(folder_error(&packages))? {
        let entry = entry.map_err(folder_error(&packages))?;
        let Some(name) = apt::name_and_version(&entry.file_name()) else { continue };
        // Packages that exist may be in use.
        if !names.contains(&name) {
            apt::unpack(&entry.path(), installation.root())?;
            names.push(name);
        }
    }
    names.sort();
    // The list is replaced last and atomically: it shows whether HIP is complete.
    let list = work.path().join("packages");
    fs::write(&list, names.join("\n") + "\n").map_err(folder_error(&list))?;
    let destination = installation.root().join("packages");
    fs::rename(&list, &destination).map_err(folder_error(&destination))?;
    Ok(open()?.hip())
}
