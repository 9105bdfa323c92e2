//! The scenes: what is done, and what may go wrong in it.

use clap::ValueEnum;
use hsa_vmm::Error;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::Problem;
use serde::{Deserialize, Serialize};

/// What is done.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scene {
    /// Everything, in small: reserve, map, grant, write, read, share, revoke, give back
    Mixed,
    /// Memory of the GPUs, nearly all of it held
    Vram,
    /// Exported descriptors, nearly as many as the process may open
    Descriptors,
    /// Mappings, nearly as many as the process may have (vm.max_map_count)
    Mappings,
}

impl Scene {
    /// All, in their order.
    pub const ALL: [Self; 4] = [Self::Mixed, Self::Vram, Self::Descriptors, Self::Mappings];

    /// Its name, as an argument.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether an error is what the scene is about.
    pub fn expects(self, error: &Error) -> bool {
        match self {
            Self::Mixed | Self::Mappings => false,
            Self::Vram => matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            // Runtimes have no status for it, and the library asks the kernel whether a descriptor
            // is to be had: by then another thread may have closed one.
            Self::Descriptors => matches!(
                error.kind(),
                ErrorKind::OutOfDescriptors
                    | ErrorKind::OutOfMemory { .. }
                    | ErrorKind::InvalidArgument { problem: Problem::NotImportable, .. }
            ),
        }
    }
}
