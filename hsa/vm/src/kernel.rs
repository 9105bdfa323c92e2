//! A fetched kernel.

use std::fs;
use std::path::{Path, PathBuf};

/// A kernel with AMD's driver and the software GPUs, ready to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    release: String,
    folder: PathBuf,
}

/// The kernel was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missing} not found in {folder}; run `hsa-vmm vm fetch`", folder = folder.display())]
pub struct NotFetched {
    missing: String,
    folder: PathBuf,
}

impl Kernel {
    /// The file that is written last.
    pub(crate) const INITRAMFS: &str = "initramfs";
    pub(crate) const IMAGE: &str = "vmlinuz";

    /// Opens a fetched kernel by its name, such as `6.12.117+deb12-amd64`; without a name, the last fetched kernel.
    ///
    /// # Errors
    /// The kernel was not fetched; the message contains the command that fetches it.
    pub fn open(folder: &Path, release: Option<&str>) -> Result<Self, NotFetched> {
        let not_fetched = |missing: String| NotFetched { missing, folder: folder.to_owned() };
        let found = match release {
            Some(release) => Self::in_folder(folder, release),
            None => Self::last_fetched(folder),
        };
        found.ok_or_else(|| {
            not_fetched(
                release.map_or("a kernel".into(), |release| format!("the kernel {release}")),
            )
        })
    }

    fn last_fetched(folder: &Path) -> Option<Self> {
        let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        let kernels =
            entries.filter_map(|entry| Self::in_folder(folder, entry.file_name().to_str()?));
        kernels.max_by_key(|kernel| {
            fs::metadata(kernel.initramfs()).and_then(|status| status.modified()).ok()
        })
    }

    pub(crate) fn in_folder(folder: &Path, release: &str) -> Option<Self> {
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

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(Self::IMAGE)
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.folder.join(Self::INITRAMFS)
    }
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    #[test]
    fn missing_kernel_error_suggests_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let error = Kernel::open(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains("vm fetch"), "{error}");
    }
}
