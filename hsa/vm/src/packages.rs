//! Finds, downloads and installs Debian's packages from the package sources of the host.

use crate::tool::{self, ToolError, file_error};
use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The series of kernels for which `hsa/vm/module` is written.
pub(crate) const SERIES: &str = "6.12";
// The packages that contain `apt-get` and `dpkg-deb`. Error messages name these packages.
const APT: &str = "apt";
const DPKG: &str = "dpkg";

/// A kernel of the package sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AvailableKernel {
    /// The kernel's own name, such as `6.12.117+deb12-amd64`.
    pub release: String,
    /// The version of the kernel's packages, such as `6.12.117-1~deb12u1`.
    pub version: String,
}

impl AvailableKernel {
    /// Returns the names of the required packages, which all must have the kernel's version.
    pub fn packages(&self) -> [String; 5] {
        let release = &self.release;
        let abi = release.trim_end_matches("-amd64");
        [
            format!("linux-image-{release}"),
            format!("linux-headers-{release}"),
            format!("linux-headers-{abi}-common"),
            format!("linux-kbuild-{abi}"),
            format!("linux-source-{SERIES}"),
        ]
    }
}

/// Returns the kernels of [`SERIES`] in the package sources, newest first.
pub(crate) fn available_kernels() -> Result<Vec<AvailableKernel>, ToolError> {
    let mut command = Command::new("apt-cache");
    command.args(["search", "--names-only", "^linux-image-[0-9].*-amd64$"]);
    let names = String::from_utf8_lossy(&tool::run(command, APT)?).into_owned();
    let mut kernels = Vec::new();
    for release in releases(&names) {
        let mut command = Command::new("apt-cache");
        command.args(["madison", &format!("linux-image-{release}")]);
        let table = String::from_utf8_lossy(&tool::run(command, APT)?).into_owned();
        let version = table.lines().next().and_then(|line| line.split('|').nth(1));
        if let Some(version) = version {
            kernels.push(AvailableKernel { release, version: version.trim().to_owned() });
        }
    }
    kernels.sort_by(|a, b| compare_numbers(&b.release, &a.release));
    Ok(kernels)
}

/// Returns the names of the kernels of [`SERIES`] in the output of `apt-cache search`. Skips the variants `rt` and
/// `cloud`.
fn releases(names: &str) -> Vec<String> {
    let release = |line: &str| {
        let release = line.split_whitespace().next()?.strip_prefix("linux-image-")?;
        let abi = release.strip_suffix("-amd64")?;
        let is_variant = ["-rt", "-cloud"].iter().any(|suffix| abi.ends_with(suffix));
        (is_in_series(release) && !is_variant).then(|| release.to_owned())
    };
    names.lines().filter_map(release).collect()
}

/// Returns whether a kernel, such as `6.12.117+deb12-amd64`, is of [`SERIES`].
pub(crate) fn is_in_series(release: &str) -> bool {
    release.strip_prefix(SERIES).is_some_and(|rest| rest.starts_with('.'))
}

/// Compares two names by the numbers in them.
fn compare_numbers(a: &str, b: &str) -> Ordering {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|letter: char| !letter.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    numbers(a).cmp(&numbers(b))
}

/// Returns the packages that the package sources do not have in the kernel's version.
pub(crate) fn missing(kernel: &AvailableKernel) -> Result<Vec<String>, ToolError> {
    let mut missing = Vec::new();
    for package in kernel.packages() {
        let mut command = Command::new("apt-cache");
        command.args(["madison", &package]);
        let table = String::from_utf8_lossy(&tool::run(command, APT)?).into_owned();
        let versions = table.lines().filter_map(|line| line.split('|').nth(1));
        if !versions.map(str::trim).any(|version| version == kernel.version) {
            missing.push(format!("{package} {}", kernel.version));
        }
    }
    Ok(missing)
}

/// Updates the host's lists of packages. Requires root.
pub(crate) fn update() -> Result<(), ToolError> {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "Acquire::Retries=3", "update"]);
    tool::run(command, APT).map(drop)
}

/// Installs packages on the host. Requires root.
pub(crate) fn install(packages: &[&str]) -> Result<(), ToolError> {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"]);
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    tool::run(command, APT).map(drop)
}

/// Downloads packages into a folder. Returns the paths of all packages in the folder. `apt-get` checks the packages
/// against the signed lists of the archive.
pub(crate) fn download(packages: &[String], folder: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "Acquire::Retries=3", "-o", "APT::Get::AllowUnauthenticated=false"]);
    // Disable the sandbox of `apt-get`, because the sandbox's user cannot write to the folder.
    command.args(["-o", "APT::Sandbox::User=", "download"]).args(packages).current_dir(folder);
    tool::run(command, APT)?;
    let entries = fs::read_dir(folder).map_err(file_error(folder))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}

/// Unpacks a package into a folder, without installing the package.
pub(crate) fn unpack(package: &Path, folder: &Path) -> Result<(), ToolError> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(folder);
    tool::run(command, DPKG).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{AvailableKernel, compare_numbers, releases};
    use std::cmp::Ordering;

    #[test]
    fn releases_skips_variants_and_other_series() {
        let names = "linux-image-6.1.0-55-amd64 - Linux 6.1\n\
            linux-image-6.12.117+deb12-amd64 - Linux 6.12\n\
            linux-image-6.12.117+deb12-rt-amd64 - real time\n\
            linux-image-6.12.117+deb12-cloud-amd64 - cloud\n\
            linux-image-6.12.9+deb13-amd64 - Linux 6.12\n";
        assert_eq!(releases(names), ["6.12.117+deb12-amd64", "6.12.9+deb13-amd64"]);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(compare_numbers("6.12.117+deb12", "6.12.99+deb13"), Ordering::Greater);
    }

    #[test]
    fn common_packages_omit_the_architecture() {
        let kernel = AvailableKernel {
            release: "6.12.117+deb12-amd64".into(),
            version: "6.12.117-1".into(),
        };
        assert_eq!(kernel.packages()[2], "linux-headers-6.12.117+deb12-common");
        assert_eq!(kernel.packages()[3], "linux-kbuild-6.12.117+deb12");
    }
}
