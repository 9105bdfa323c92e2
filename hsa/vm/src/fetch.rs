//! Fetches a kernel, and compiles this project's kernel modules for that kernel.

use crate::packages::{self, AvailableKernel, SERIES};
use crate::tool::{self, ToolError, file_error, ignore_missing};
use crate::{Kernel, NoSource, NotFetched, TreeError, build, folder, initramfs, qemu};
use hsa_sys::open_regular;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools that unpack the kernel, compile the modules and run the kernel, each with the package that contains the
/// tool.
pub(crate) const TOOLS: [(&str, &str); 6] = [
    ("gcc", "gcc"),
    ("make", "make"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
    (qemu::PROGRAM, qemu::PACKAGE),
];
const BUSYBOX: &str = "busybox-static";

/// Why a kernel could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A tool failed.
    #[error("cannot fetch a kernel: {0}")]
    Tool(#[from] ToolError),
    /// Tools are missing and this process cannot install them.
    #[error(
        "cannot fetch a kernel: {missing} not found; as root, run \
         `apt-get install --no-install-recommends {packages}`"
    )]
    NoTools {
        /// The missing programs.
        missing: String,
        /// The packages that contain the programs.
        packages: String,
    },
    /// The package sources have no such kernel.
    #[error(
        "cannot fetch a kernel: the package sources of this machine have no {requested} (available: {available}); \
         run `apt-get update`, or add a suite of Debian that has Linux {SERIES} (bookworm-security, trixie)"
    )]
    NoKernel {
        /// The requested kernel.
        requested: String,
        /// The available kernels.
        available: String,
    },
    /// The requested kernel is not of the series for which the module is written.
    #[error(
        "cannot fetch the kernel {requested}: only Linux {SERIES} is supported, because the software GPUs are written \
         for its amdgpu; without --kernel, `vm fetch` gets the newest one"
    )]
    OtherSeries {
        /// The requested kernel.
        requested: String,
    },
    /// The package sources lack some of the packages in the version of the kernel.
    #[error(
        "cannot fetch the kernel {release}: the package sources do not have {missing}, which must have the \
         kernel's version; run `apt-get update`, or choose another kernel with --kernel"
    )]
    Mismatch {
        /// The kernel.
        release: String,
        /// The missing packages.
        missing: String,
    },
    /// The module's source was not found.
    #[error(transparent)]
    NoSource(#[from] NoSource),
    /// The kernel of a source tree cannot be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The fetched kernel cannot be opened, for example because a file is missing.
    #[error("cannot use the fetched kernel: {0}")]
    Incomplete(#[from] NotFetched),
}

/// Downloads a kernel, its headers and its source from the host's package sources into `folder`, and compiles the
/// kernel module of the software GPUs. The kernel is `release`, or the newest of the supported series.
///
/// If this process is root, installs missing tools, including QEMU. Calls `report` with a text for each step.
/// If several processes fetch at once, one process fetches and the others report that they wait. A kernel that is
/// already in the folder is not downloaded again, but its module is compiled again.
///
/// # Errors
/// The message names the failed step, and a remedy if one is known.
pub fn fetch(
    folder: &Path,
    release: Option<&str>,
    report: &mut dyn FnMut(&str),
) -> Result<Kernel, FetchError> {
    let source = folder::module_source()?;
    let _lock = lock(folder, report)?;
    if let Some(release) = release.filter(|release| !packages::is_in_series(release)) {
        return Err(FetchError::OtherSeries { requested: release.to_owned() });
    }
    install_tools(&TOOLS, report)?;
    let version = |release: &str| fs::read_to_string(folder.join(release).join(Kernel::PACKAGES));
    // The package sources may no longer have a kernel that was fetched earlier.
    let fetched = release.and_then(|release| {
        let version = version(release).ok()?;
        Some(AvailableKernel { release: release.to_owned(), version })
    });
    let kernel = match fetched {
        Some(kernel) => kernel,
        None => {
            if rustix::process::geteuid().is_root() {
                report("getting the lists of packages");
                packages::update()?;
            }
            choose(release)?
        }
    };
    let target = folder.join(&kernel.release);
    let root = target.join("root");
    let amd = target.join("amd");
    if version(&kernel.release).is_ok_and(|text| text == kernel.version) {
        report(&format!("the kernel {} is already fetched", kernel.release));
    } else {
        report(&format!("getting the kernel {} ({})", kernel.release, kernel.version));
        replace(&kernel, &target)?;
    }
    let headers = root.join(format!("usr/src/linux-headers-{}", kernel.release));
    if let Some(compiler) = compiler(&headers) {
        install_tools(&[(&format!("x86_64-linux-gnu-{compiler}"), &compiler)], report)?;
    }
    report("compiling the kernel modules");
    let work = target.join("module");
    let initramfs = target.join(Kernel::INITRAMFS);
    // If the compilation fails, `vm` must not use the modules of an earlier compilation.
    ignore_missing(fs::remove_file(&initramfs)).map_err(file_error(&initramfs))?;
    ignore_missing(fs::remove_dir_all(&work)).map_err(file_error(&work))?;
    build::relocate(&headers.join("Makefile"), &root)?;
    build::build(&source, &headers, &amd, &work)?;
    report("writing the initial file system");
    let folders =
        ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder).join(&kernel.release));
    let modules_folder = folders.iter().find(|path| path.is_dir()).unwrap_or(&folders[0]);
    let configuration = root.join(format!("boot/config-{}", kernel.release));
    let modules = initramfs::find_modules(modules_folder)?;
    initramfs::write(&initramfs, &modules, &configuration, &busybox(&root), &work)?;
    Ok(Kernel::open(folder, Some(&kernel.release))?)
}

/// Adds the remedy to the error of a folder in which this user cannot write.
fn name_remedy(error: io::Error) -> io::Error {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        kind @ (PermissionDenied | ReadOnlyFilesystem) => io::Error::new(
            kind,
            format!(
                "{error}; set HSA_VMM_VM to a folder that only you can write to. To use a kernel that another user \
                 has fetched here, run `vm` without `fetch`"
            ),
        ),
        _ => error,
    }
}

/// Creates and locks a folder. If another process holds the lock, reports this and waits.
pub(crate) fn lock(folder: &Path, report: &mut dyn FnMut(&str)) -> Result<File, ToolError> {
    fs::create_dir_all(folder).map_err(|error| file_error(folder)(name_remedy(error)))?;
    let path = folder.join("lock");
    let mut options = File::options();
    // Other users get no permissions, because a user who can read the file can lock it.
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let lock =
        open_regular(&path, options).map_err(|error| file_error(&path)(name_remedy(error)))?;
    // If an earlier version of this program created the file, other users may have permissions. Only the owner of the
    // file can change the permissions, so ignore an error.
    let _ = lock.set_permissions(fs::Permissions::from_mode(0o600));
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        report(&format!("waiting for another process, which has locked {}", path.display()));
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| file_error(&path)(error.into()))?;
    }
    Ok(lock)
}

/// Downloads busybox and unpacks it into `root`, unless `root` contains busybox.
pub(crate) fn download_busybox(root: &Path, report: &mut dyn FnMut(&str)) -> Result<(), ToolError> {
    if busybox(root).is_file() {
        return Ok(());
    }
    report(&format!("getting {BUSYBOX}"));
    if rustix::process::geteuid().is_root() {
        packages::update()?;
    }
    let target = root.join("bin");
    fs::create_dir_all(&target).map_err(file_error(&target))?;
    let work = tempfile::tempdir_in(root).map_err(file_error(root))?;
    let unpacked = work.path().join("unpacked");
    for package in packages::download(&[BUSYBOX.to_owned()], work.path())? {
        packages::unpack(&package, &unpacked)?;
    }
    // Rename the complete file: an interrupted call must not leave a part of the program.
    fs::rename(busybox(&unpacked), target.join("busybox")).map_err(file_error(&target))
}

/// Returns the path of busybox in a folder into which its package was unpacked.
pub(crate) fn busybox(root: &Path) -> PathBuf {
    let paths = ["bin/busybox", "usr/bin/busybox"].map(|path| root.join(path));
    paths.iter().find(|path| path.is_file()).unwrap_or(&paths[0]).clone()
}

/// Installs missing tools. Fails if tools are missing and this process is not root.
pub(crate) fn install_tools(
    tools: &[(&str, &str)],
    report: &mut dyn FnMut(&str),
) -> Result<(), FetchError> {
    let missing: Vec<_> = tools.iter().filter(|(program, _)| !qemu::is_on_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    if rustix::process::geteuid().is_root() {
        report(&format!("installing {}", packages.join(", ")));
        packages::update()?;
        packages::install(&packages)?;
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    Err(FetchError::NoTools { missing: programs.join(", "), packages: packages.join(" ") })
}

/// Returns the requested kernel, or else the newest. Fails if the package sources lack a package of this kernel.
fn choose(release: Option<&str>) -> Result<AvailableKernel, FetchError> {
    let kernels = packages::available_kernels()?;
    let releases =
        || kernels.iter().map(|kernel| kernel.release.clone()).collect::<Vec<_>>().join(", ");
    let kernel = match release {
        Some(release) => kernels.iter().find(|kernel| kernel.release == release),
        None => kernels.first(),
    };
    let Some(kernel) = kernel else {
        let requested = release.map_or(format!("kernel of the series {SERIES}"), |release| {
            format!("kernel {release}")
        });
        let available = if kernels.is_empty() { "none".to_owned() } else { releases() };
        return Err(FetchError::NoKernel { requested, available });
    };
    let missing = packages::missing(kernel)?;
    if missing.is_empty() {
        return Ok(kernel.clone());
    }
    Err(FetchError::Mismatch { release: kernel.release.clone(), missing: missing.join(", ") })
}

/// Returns the name of the compiler that compiled a kernel, such as `gcc-12`, from Debian's headers of the kernel.
fn compiler(headers: &Path) -> Option<String> {
    let text = fs::read_to_string(headers.join(".kernelvariables")).ok()?;
    text.lines().find_map(|line| {
        let (_, compiler) = line.strip_prefix("CC = ")?.rsplit_once("$(CROSS_COMPILE)")?;
        compiler.strip_prefix("gcc-")?.parse::<u32>().ok()?;
        Some(compiler.to_owned())
    })
}

/// Downloads a kernel, and replaces the folder `target` with it. If the download fails, `target` does not change.
fn replace(kernel: &AvailableKernel, target: &Path) -> Result<(), ToolError> {
    let partial = target.with_file_name("partial");
    ignore_missing(fs::remove_dir_all(&partial)).map_err(file_error(&partial))?;
    unpack(kernel, &partial)?;
    let version = partial.join(Kernel::PACKAGES);
    fs::write(&version, &kernel.version).map_err(file_error(&version))?;
    ignore_missing(fs::remove_dir_all(target)).map_err(file_error(target))?;
    fs::rename(&partial, target).map_err(file_error(target))
}

/// Downloads the packages of a kernel, and busybox, and unpacks them into `target`.
fn unpack(kernel: &AvailableKernel, target: &Path) -> Result<(), ToolError> {
    let root = target.join("root");
    let amd = target.join("amd");
    for folder in [&root, &amd] {
        fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    let work = tempfile::Builder::new()
        .prefix(".packages-")
        .tempdir_in(target)
        .map_err(file_error(target))?;
    let versioned = kernel.packages().map(|package| format!("{package}={}", kernel.version));
    let mut names = versioned.to_vec();
    names.push(BUSYBOX.to_owned());
    for package in packages::download(&names, work.path())? {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("linux-source") {
            unpack_source(&package, work.path(), &amd)?;
        } else {
            packages::unpack(&package, &root)?;
        }
    }
    let image = root.join(format!("boot/vmlinuz-{}", kernel.release));
    fs::rename(&image, target.join(Kernel::IMAGE)).map_err(file_error(&image))
}

/// Unpacks the headers of AMD's driver into `amd`, except for the lists of registers.
fn unpack_source(package: &Path, work: &Path, amd: &Path) -> Result<(), ToolError> {
    let unpacked = work.join("source");
    packages::unpack(package, &unpacked)?;
    let tarball = unpacked.join(format!("usr/src/linux-source-{SERIES}.tar.xz"));
    let mut command = Command::new("tar");
    command.arg("--extract").arg("--xz").arg("--file").arg(&tarball).arg("--directory").arg(amd);
    // linux-source-6.12/drivers/gpu/drm/amd/…
    command.args(["--strip-components=5", "--wildcards", "--exclude=*/asic_reg/*"]);
    command.arg("*/drivers/gpu/drm/amd/*.h");
    tool::run(command, "tar").map(drop)
}

#[cfg(test)]
mod tests {
    use super::{compiler, lock};
    use std::path::Path;

    #[test]
    fn compiler_is_read_from_the_headers() {
        let headers = tempfile::tempdir().unwrap();
        assert_eq!(compiler(headers.path()), None);
        let text = "CCACHE = ccache\n\
                    CC = $(if $(DEBIAN_KERNEL_USE_CCACHE),$(CCACHE)) $(CROSS_COMPILE)gcc-12\n\
                    override CROSS_COMPILE = x86_64-linux-gnu-\n";
        std::fs::write(headers.path().join(".kernelvariables"), text).unwrap();
        assert_eq!(compiler(headers.path()).as_deref(), Some("gcc-12"));
    }

    #[test]
    fn lock_in_a_foreign_folder_names_the_remedy() {
        // No user can create files there.
        let error = lock(Path::new("/sys/hsa-vmm"), &mut |step| panic!("{step}")).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("/sys/hsa-vmm: "), "{error}");
        assert!(
            error.contains("; set HSA_VMM_VM to a folder that only you can write to"),
            "{error}"
        );
    }

    #[test]
    fn lock_reports_that_it_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Some(lock(folder.path(), &mut |_| panic!("the lock is free")).unwrap());
        let mut steps = Vec::new();
        let mut report = |step: &str| {
            steps.push(step.to_owned());
            first = None;
        };
        lock(folder.path(), &mut report).unwrap();
        let path = folder.path().join("lock");
        let expected = format!("waiting for another process, which has locked {}", path.display());
        assert_eq!(steps, [expected]);
    }
}
