//! Which of QEMU's accelerators runs the machine's processors.

use core::fmt;
use std::fs::File;

/// How often an emulated machine may fail to boot.
const BOOTS: usize = 3;

/// How QEMU runs the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The processor's own virtualisation.
    Kvm,
    /// Translation of the instructions, one thread for each processor.
    Tcg,
}

impl Accelerator {
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }

    /// Returns the accelerators to try, best first. A nested machine may have a `/dev/kvm` that does not work.
    /// With two emulated processors, Linux sometimes panics at boot, when it changes its own code (seen with
    /// QEMU 7.2), so that emulation is tried more than once.
    pub fn candidates() -> Vec<Self> {
        let has_kvm = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        has_kvm.then_some(Self::Kvm).into_iter().chain([Self::Tcg; BOOTS]).collect()
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
