//! A fetched kernel.

use crate::{folder, initramfs};
use std::fs;
use std::path::{Path, PathBuf};

const FETCH_COMMAND: &str = "hsa-vmm vm fetch";

/// A kernel with AMD's driver and the software GPUs, ready to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    release: String,
    folder: PathBuf,
}

/// The kernel was not fetched, or another version of `hsa-vmm` fetched it, or the module's source files differ from
/// those that were compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} in {folder}; run `{command}`", folder = folder.display())]
pub struct NotFetched {
    problem: String,
    folder: PathBuf,
    command: String,
}

impl Kernel {
    // The names of files in the kernel's folder.

    /// The initial file system. `vm fetch` writes this file last.
    pub(crate) const INITRAMFS: &str = "initramfs";
    /// The compressed kernel.
    pub(crate) const IMAGE: &str = "vmlinuz";
    /// A copy of the file `init` that the initial file system contains.
    pub(crate) const INIT: &str = "init";
    /// A file with the version of Debian's packages, which exists only after a complete download.
    pub(crate) const PACKAGES: &str = "packages";
    /// A file with the path of the source tree, for a kernel that is not Debian's.
    pub(crate) const TREE: &str = "tree";

    /// Opens a fetched kernel by its name, such as `6.12.117+deb12-amd64`. Without a name, opens
    /// the last fetched kernel.
    ///
    /// # Errors
    /// The kernel was not fetched, or another version of `hsa-vmm` fetched it, or a source file of its module has
    /// changed since the module was compiled. The message contains the command to run.
    pub fn open(folder: &Path, release: Option<&str>) -> Result<Self, NotFetched> {
        let not_fetched = |problem: String, command: String| NotFetched {
            problem,
            folder: folder.to_owned(),
            command,
        };
        let found = match release {
            Some(release) => Self::try_open(folder, release),
            None => Self::last_fetched(folder),
        };
        let kernel = found.ok_or_else(|| {
            let problem = release.map_or("a kernel was not found".into(), |release| {
                format!("the kernel {release} was not found")
            });
            not_fetched(problem, fetch_command(folder, release))
        })?;
        let command = fetch_command(folder, Some(&kernel.release));
        // The host and `init` must agree on the files that they exchange.
        if fs::read(kernel.folder.join(Self::INIT)).ok().as_deref() != Some(initramfs::INIT) {
            let problem = format!("{} was fetched by another version of hsa-vmm", kernel.release);
            return Err(not_fetched(problem, command));
        }
        let source = folder::module_source().ok();
        match source.and_then(|source| changed_file(&source, &kernel.module_folder())) {
            Some(name) => {
                let problem = format!(
                    "{name} has changed since the module of {} was compiled",
                    kernel.release
                );
                Err(not_fetched(problem, command))
            }
            None => Ok(kernel),
        }
    }

    fn last_fetched(folder: &Path) -> Option<Self> {
        let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        let kernels =
            entries.filter_map(|entry| Self::try_open(folder, entry.file_name().to_str()?));
        kernels.max_by_key(|kernel| {
            fs::metadata(kernel.initramfs()).and_then(|status| status.modified()).ok()
        })
    }

    /// Opens a kernel without checking its module. Returns `None` if the image or the initial file system is missing.
    pub(crate) fn try_open(folder: &Path, release: &str) -> Option<Self> {
        let kernel = Self { release: release.to_owned(), folder: folder.join(release) };
        (kernel.initramfs().is_file() && kernel.image().is_file()).then_some(kernel)
    }

    /// Returns the kernel's name, such as `6.12.117+deb12-amd64`.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Returns the kernel's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder in which the module was compiled, with a copy of its source files.
    pub(crate) fn module_folder(&self) -> PathBuf {
        self.folder.join("module")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(Self::IMAGE)
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.folder.join(Self::INITRAMFS)
    }
}

/// Returns the command that fetches a kernel, or compiles its module again.
fn fetch_command(folder: &Path, release: Option<&str>) -> String {
    let Some(release) = release else { return FETCH_COMMAND.to_owned() };
    match fs::read_to_string(folder.join(release).join(Kernel::TREE)) {
        Ok(tree) => format!("{FETCH_COMMAND} --tree {tree}"),
        Err(_) if release.ends_with("-amd64") => format!("{FETCH_COMMAND} --kernel {release}"),
        // The package sources have no such kernel.
        Err(_) => FETCH_COMMAND.to_owned(),
    }
}

/// Returns the path of a source file that differs from its copy, if any.
fn changed_file(source: &Path, copy: &Path) -> Option<String> {
    let files = fs::read_dir(source).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let mut changed = files.filter(|file| file.is_file()).filter(|file| {
        let copy = copy.join(file.file_name().unwrap_or_default());
        let length = |file: &Path| fs::metadata(file).map(|found| found.len()).ok();
        // Compare the lengths first, so that a huge file is not read.
        length(file) != length(&copy) || fs::read(file).ok() != fs::read(copy).ok()
    });
    changed.next().map(|file| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::{Kernel, changed_file};
    use std::fs;

    #[test]
    fn changed_source_is_found() {
        let [source, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for folder in [&source, &copy] {
            fs::write(folder.path().join("main.c"), "int a;").unwrap();
        }
        fs::write(copy.path().join("main.o"), "compiled").unwrap();
        assert_eq!(changed_file(source.path(), copy.path()), None);
        fs::write(source.path().join("main.c"), "int b;").unwrap();
        let changed = changed_file(source.path(), copy.path()).unwrap();
        assert!(changed.ends_with("main.c"), "{changed}");
    }

    #[test]
    fn missing_kernel_error_suggests_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let error = Kernel::open(folder.path(), None).unwrap_err().to_string();
        assert!(error.ends_with("run `hsa-vmm vm fetch`"), "{error}");
        let open_release =
            |release| Kernel::open(folder.path(), Some(release)).unwrap_err().to_string();
        let error = open_release("6.12.9-amd64");
        assert!(error.ends_with("run `hsa-vmm vm fetch --kernel 6.12.9-amd64`"), "{error}");
        let open = || open_release("6.12.9");
        assert!(open().ends_with("run `hsa-vmm vm fetch`"), "{}", open());
        // Compiling the module for a kernel of a source tree has failed.
        fs::create_dir(folder.path().join("6.12.9")).unwrap();
        fs::write(folder.path().join("6.12.9").join(Kernel::TREE), "/linux").unwrap();
        assert!(open().ends_with("run `hsa-vmm vm fetch --tree /linux`"), "{}", open());
    }
}
