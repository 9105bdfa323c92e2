//! QEMU's accelerators, which run the machine's processors.

use core::fmt;
use std::fs::File;

/// The number of attempts to boot with emulation.
const TCG_ATTEMPTS: usize = 3;

/// How QEMU runs the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The CPU's hardware virtualisation.
    Kvm,
    /// Translation of instructions, in one thread for each emulated processor.
    Tcg,
}

impl Accelerator {
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }

    /// Returns the accelerators to try, best first. A nested machine may have a `/dev/kvm` that
    /// does not work. Emulation is in the list several times, because Linux sometimes panics at
    /// boot on two emulated processors, while it patches its own code (seen with QEMU 7.2).
    pub fn candidates() -> Vec<Self> {
        let has_kvm = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        has_kvm.then_some(Self::Kvm).into_iter().chain([Self::Tcg; TCG_ATTEMPTS]).collect()
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}
