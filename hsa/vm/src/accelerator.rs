//! QEMU's accelerators, which run the virtual machine's processors.

use core::fmt;
use std::fs::File;

/// The number of attempts to boot with emulation.
const TCG_ATTEMPTS: usize = 3;

/// How QEMU runs the virtual machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The CPU's hardware virtualisation.
    Kvm,
    /// Translation of instructions, in one thread for each emulated processor.
    Tcg,
}

impl Accelerator {
    /// Returns the argument of QEMU's option `-accel`.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }

    /// Returns the accelerators to try, best first.
    ///
    /// Emulation follows KVM, because a boot with KVM may fail if the host is itself a virtual machine. Emulation is in
    /// the list several times: on two emulated processors, Linux sometimes panics at boot, while it patches its own
    /// code (seen with QEMU 7.2).
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
