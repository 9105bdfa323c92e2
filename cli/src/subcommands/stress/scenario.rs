//! The scenarios and the errors that each expects.

use clap::ValueEnum;
use hsa_vmm::Error;
use hsa_vmm::ErrorKind;
use serde::{Deserialize, Serialize};

/// A scenario.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Small mappings: reserve, map, grant, write, read, share, revoke, release
    Mixed,
    /// Nearly all memory of the GPUs
    Vram,
    /// Nearly as many exported descriptors as the kernel lets the process open
    Descriptors,
    /// Nearly as many mappings as the kernel lets the process create (vm.max_map_count)
    Mappings,
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Mixed, Self::Vram, Self::Descriptors, Self::Mappings];

    /// Returns the name as it is written on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the scenario provokes this error.
    pub fn expects(self, error: &Error) -> bool {
        match self {
            Self::Mixed | Self::Mappings => false,
            Self::Vram => matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            // Runtimes have no status for "no free descriptor". After a failure, the library checks whether the process
            // has a free descriptor. If another thread has closed one by then, the library returns another error.
            Self::Descriptors => matches!(
                error.kind(),
                ErrorKind::OutOfDescriptors
                    | ErrorKind::OutOfMemory { .. }
                    | ErrorKind::Runtime { call: "hsa_amd_vmem_import_shareable_handle", .. }
            ),
        }
    }
}
