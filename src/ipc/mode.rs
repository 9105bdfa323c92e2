//! How the runtime shares memory for IPC.

use crate::runtime::Runtime;

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
        let (major, minor) = runtime.info().extension;
        match runtime.ipc_mode() {
            // ROCm up to 6.3 always uses the driver.
            _ if (major, minor) < (1, 7) => Self::Driver,
            Some(value) if value == "0" => Self::Server,
            Some(value) if value == "1" => Self::Driver,
            // The default of ROCm 6.4.
            _ if (major, minor) < (1, 9) => Self::Driver,
            // The default of ROCm 7.2.4.
            _ if (major, minor) >= (1, 15) => Self::Server,
            _ => Self::Unknown,
        }
    }
}
