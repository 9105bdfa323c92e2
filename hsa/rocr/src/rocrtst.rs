//! Fetches AMD's own tests of the runtime.

use crate::hip::fetch_packages;
use crate::{FetchError, FetchedRelease, Release};
use std::path::{Path, PathBuf};

/// The only release for which Debian has a package of the tests.
const RELEASE: Release = Release::R7_2_4;
/// The package of the tests. `apt-get` cannot install it: Debian replaced `libamd-smi26`, on which
/// the package depends.
pub(crate) const PACKAGE: &str = "libhsa-runtime64-tests";
/// `libhwloc15`, which the tests need, and `libudev1`, which `libhwloc15` needs.
const LIBRARIES: [&str; 2] = ["libhwloc15", "libudev1"];

/// AMD's program `rocrtst64`, with the release to which it belongs.
#[derive(Clone, Debug)]
pub struct Rocrtst {
    /// The release, whose loader and libraries the program needs.
    pub fetched: FetchedRelease,
    /// The program. It also needs a library `libamd_smi.so.26`, which is not fetched.
    pub program: PathBuf,
}

/// Downloads `rocrtst64` of 7.2.4 into the folder of that release. Fetches the release first if needed.
///
/// Locks the folder and checks the packages, as [`fetch`](crate::fetch()) does.
///
/// # Errors
/// As for [`fetch`](crate::fetch()).
pub fn fetch_rocrtst(folder: &Path, report: &mut dyn FnMut(&str)) -> Result<Rocrtst, FetchError> {
    let fetched = fetch_packages(RELEASE, folder, PACKAGE, report, &|archive, chosen| {
        let packages: Vec<&str> = [PACKAGE].into_iter().chain(LIBRARIES).collect();
        archive.download_without_dependencies(&chosen.suite, &packages)
    })?;
    let program = fetched.root().join("usr/libexec/rocm").join(PACKAGE).join("rocrtst64");
    Ok(Rocrtst { fetched, program })
}
