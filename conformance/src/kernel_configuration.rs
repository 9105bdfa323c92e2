//! Reads the options with which the running kernel was built.

use crate::known::kernel_release;
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// The options that matter when several GPUs use the same memory.
const OPTIONS: [&str; 3] = [MOVE_NOTIFY, P2PDMA, "HSA_AMD_P2P"];
pub(crate) const MOVE_NOTIFY: &str = "DMABUF_MOVE_NOTIFY";
pub(crate) const P2PDMA: &str = "PCI_P2PDMA";

/// The maximum size of a decompressed configuration, in bytes. Real configurations have less than 400 KiB.
const MAX_SIZE: u64 = 8 << 20;

/// The running kernel's build options that matter for memory of several GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelConfiguration {
    /// The file that lists the options; `None` if no such file can be read.
    pub file: Option<PathBuf>,
    /// The options; empty if no file can be read.
    pub options: Vec<KernelOption>,
}

/// A build option of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelOption {
    /// The name without `CONFIG_`.
    pub name: String,
    /// Whether the option is set to `y` or `m`.
    pub enabled: bool,
}

impl KernelConfiguration {
    /// Reads the configuration of the running kernel.
    #[must_use]
    pub fn read() -> Self {
        let readable = files().into_iter().find_map(|file| Some((read(&file)?, file)));
        readable.map_or_else(Self::default, |(text, file)| Self {
            file: Some(file),
            options: parse(&text),
        })
    }

    /// Returns whether an option is set; `None` if this is unknown.
    #[must_use]
    pub fn is_enabled(&self, name: &str) -> Option<bool> {
        self.options.iter().find(|option| option.name == name).map(|option| option.enabled)
    }

    /// Returns a warning for each of `DMABUF_MOVE_NOTIFY` and `PCI_P2PDMA` that is missing. The warning says what does
    /// not work without the option. A missing `HSA_AMD_P2P` gives no warning.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let missing = |name| self.is_enabled(name) == Some(false);
        let mut warnings = Vec::new();
        if missing(MOVE_NOTIFY) {
            warnings.push(format!(
                "this kernel was built without CONFIG_{MOVE_NOTIFY}: if a second GPU is granted \
                 access, the memory moves from VRAM to system memory, even if the GPUs are connected by XGMI"
            ));
        }
        if missing(P2PDMA) {
            warnings.push(format!(
                "this kernel was built without CONFIG_{P2PDMA}: GPUs that are connected by PCIe cannot \
                 access each other's VRAM"
            ));
        }
        warnings
    }
}

impl fmt::Display for KernelConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(file) = &self.file else {
            let files: Vec<_> = files().iter().map(|file| file.display().to_string()).collect();
            return write!(f, "unknown: none of {} can be read", files.join(", "));
        };
        for option in &self.options {
            let sign = if option.enabled { 'y' } else { 'n' };
            write!(f, "{}={sign} ", option.name)?;
        }
        write!(f, "({})", file.display())
    }
}

/// Returns the files that may contain the running kernel's configuration.
fn files() -> [PathBuf; 3] {
    let release = kernel_release();
    [
        PathBuf::from("/proc/config.gz"),
        PathBuf::from(format!("/boot/config-{release}")),
        PathBuf::from(format!("/lib/modules/{release}/config")),
    ]
}

fn read(file: &PathBuf) -> Option<String> {
    let mut text = String::new();
    if file.extension().is_some_and(|extension| extension == "gz") {
        let file = File::open(file).ok()?;
        GzDecoder::new(file).take(MAX_SIZE).read_to_string(&mut text).ok()?;
    } else {
        text = fs::read_to_string(file).ok()?;
    }
    // An empty file, or a file with other content, does not show that the options are missing.
    text.contains("CONFIG_").then_some(text)
}

fn parse(text: &str) -> Vec<KernelOption> {
    let is_enabled = |name: &str| {
        let mut settings = text.lines().filter_map(|line| line.strip_prefix("CONFIG_"));
        settings.any(|setting| {
            setting.strip_prefix(name).is_some_and(|value| matches!(value, "=y" | "=m"))
        })
    };
    let option = |name: &str| KernelOption { name: name.to_owned(), enabled: is_enabled(name) };
    OPTIONS.map(option).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_reads_enabled_options() {
        let text = "# CONFIG_DMABUF_MOVE_NOTIFY is not set\nCONFIG_PCI_P2PDMA=y\n\
                    CONFIG_HSA_AMD_P2P_OTHER=y\n";
        let configuration =
            KernelConfiguration { file: Some("/boot/config".into()), options: parse(text) };
        assert_eq!(
            configuration.to_string(),
            "DMABUF_MOVE_NOTIFY=n PCI_P2PDMA=y HSA_AMD_P2P=n (/boot/config)"
        );
        let warnings = configuration.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("CONFIG_DMABUF_MOVE_NOTIFY"), "{warnings:?}");
    }

    #[test]
    fn unknown_configuration_has_no_warnings() {
        let configuration = KernelConfiguration::default();
        assert_eq!(configuration.is_enabled(P2PDMA), None);
        assert!(configuration.warnings().is_empty());
        assert!(configuration.to_string().starts_with("unknown: none of /proc/config.gz, "));
    }
}
