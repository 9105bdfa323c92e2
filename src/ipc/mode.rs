//! How the runtime shares memory for IPC.

use crate::runtime::Runtime;
use std::ffi::OsStr;

/// How the runtime shares memory for IPC.
///
/// `HSA_ENABLE_IPC_MODE_LEGACY` selects the mode from ROCm 6.4 on (rocr, flag.h). The runtime reads the variable when it
/// starts. This library reads the variable when it opens the runtime. The mode can be wrong if other code started the
/// runtime earlier, and the variable has changed since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpcMode {
    /// Through the kernel driver alone.
    Driver,
    /// By dma-buf, which a server of the exporting process sends.
    Server,
    /// One of the two: the default has changed several times between ROCm 7.0 and 7.2, also without a new version of
    /// the extension.
    Unknown,
}

impl IpcMode {
    pub fn of(runtime: &Runtime) -> Self {
        Self::of_version(runtime.info().extension, runtime.ipc_mode())
    }

    /// Returns the mode of a runtime with this version of the extension. `legacy` is the value of
    /// `HSA_ENABLE_IPC_MODE_LEGACY`.
    fn of_version(extension: (u16, u16), legacy: Option<&OsStr>) -> Self {
        match legacy {
            // ROCm up to 6.3 always uses the driver.
            _ if extension < (1, 7) => Self::Driver,
            Some(value) if value == "0" => Self::Server,
            Some(value) if value == "1" => Self::Driver,
            // The default of ROCm 6.4.
            _ if extension < (1, 9) => Self::Driver,
            // The default of ROCm 7.2.4.
            _ if extension >= (1, 15) => Self::Server,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_depends_on_version_and_variable() {
        use IpcMode::{Driver, Server, Unknown};
        for (extensions, [by_default, with_0, with_1, with_other]) in [
            ([(1, 0), (1, 6)], [Driver, Driver, Driver, Driver]),
            ([(1, 7), (1, 8)], [Driver, Server, Driver, Driver]),
            ([(1, 9), (1, 14)], [Unknown, Server, Driver, Unknown]),
            ([(1, 15), (2, 0)], [Server, Server, Driver, Server]),
        ] {
            for extension in extensions {
                let mode =
                    |legacy: Option<&str>| IpcMode::of_version(extension, legacy.map(OsStr::new));
                assert_eq!(mode(None), by_default, "{extension:?}");
                assert_eq!(mode(Some("0")), with_0, "{extension:?}");
                assert_eq!(mode(Some("1")), with_1, "{extension:?}");
                assert_eq!(mode(Some("yes")), with_other, "{extension:?}");
            }
        }
    }
}
