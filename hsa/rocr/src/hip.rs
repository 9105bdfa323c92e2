//! Fetches HIP, or another package, into the folder of a release.

use crate::apt::{self, AptError, Archive, PackageVersion};
use crate::fetch::{TEMPORARY_PREFIX, folder_error, lock_folder, remove_temporary_folders};
use crate::{FetchError, FetchedRelease, Release, fetch};
use std::fs;
use std::path::{Path, PathBuf};

/// The disk space needed for package lists, packages (including compilers) and their contents.
const NEEDED_SPACE: u64 = 512 << 20;

/// Returns Debian's package of HIP for a release, if any.
pub(crate) fn package(release: Release) -> Option<&'static str> {
    match release {
        Release::R6_4_3 => Some("libamdhip64-6"),
        Release::R7_2_4 => Some("libamdhip64-7"),
        _ => None,
    }
}

/// Downloads HIP's library and its dependencies into the folder of a release. Fetches the release
/// first if needed. Returns `None` if Debian has no HIP for the release (6.1.2).
///
/// Locks the folder and checks the packages, as [`fetch`](crate::fetch()) does.
///
/// # Errors
/// As for [`fetch`](crate::fetch()).
pub fn fetch_hip(
    release: Release,
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Option<PathBuf>, FetchError> {
    let Some(package) = package(release) else { return Ok(None) };
    let fetched = fetch_packages(release, folder, package, report, &|archive, chosen| {
        archive.download(package, chosen, &[])
    })?;
    Ok(fetched.hip())
}

/// Downloads a package of a release into the release's folder, unless the folder contains the package. Fetches the
/// release first if needed. `download` downloads the package, and may download others with it.
pub(crate) fn fetch_packages(
    release: Release,
    folder: &Path,
    package: &str,
    report: &mut dyn FnMut(&str),
    download: &dyn Fn(&Archive, &PackageVersion) -> Result<PathBuf, AptError>,
) -> Result<FetchedRelease, FetchError> {
    let open = || FetchedRelease::open(folder, release);
    fetch(&[release], folder, report)?;
    let _lock = lock_folder(folder, NEEDED_SPACE, report)?;
    let fetched = open()?;
    if fetched.has_package(package) {
        return Ok(fetched);
    }
    remove_temporary_folders(folder).map_err(folder_error(folder))?;
    let work = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder);
    let work = work.map_err(folder_error(folder))?;
    report("getting the lists of packages");
    let archive = Archive::open(&work.path().join("apt"))?;
    let chosen = apt::choose(package, release.version(), &archive.versions(package)?)?;
    report(&format!("getting {package} {} of {}", chosen.version, chosen.suite));
    let packages = download(&archive, &chosen)?;
    let mut names = fetched.packages();
    for entry in fs::read_dir(&packages).map_err(folder_error(&packages))? {
        let entry = entry.map_err(folder_error(&packages))?;
        let Some(name) = apt::name_and_version(&entry.file_name()) else { continue };
        // Do not unpack a package that the release already has in this version: its files may be in use.
        if !names.contains(&name) {
            apt::unpack(&entry.path(), fetched.root())?;
            names.push(name);
        }
    }
    names.sort();
    // Replace the list last and atomically, because it marks the package as complete.
    let list = work.path().join("packages");
    fs::write(&list, names.join("\n") + "\n").map_err(folder_error(&list))?;
    let destination = fetched.root().join("packages");
    fs::rename(&list, &destination).map_err(folder_error(&destination))?;
    Ok(open()?)
}
