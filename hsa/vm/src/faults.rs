//! Planned faults of the software GPUs' engines. The kernel module causes these faults (`module/faults.c`).

use hsa_faults::{FaultKind, Plan, PlanError, Target};
use std::convert::Infallible;

/// The operations of the engines that a plan can name.
const OPERATIONS: [&str; 7] =
    ["COPY", "FILL", "KERNEL_COPY", "KERNEL_FILL", "PTE_WRITE", "TLB_FLUSH", "INTERRUPT"];

/// The engines as the target of a plan.
struct Engines;

impl Target for Engines {
    /// Operations of the engines return no error codes.
    type Code = Infallible;

    const HAS_CODES: bool = false;

    fn code(&self, _word: &str) -> Option<Infallible> {
        None
    }

    fn calls(&self) -> Vec<&str> {
        OPERATIONS.to_vec()
    }

    fn supports(&self, call: &str, fault: FaultKind) -> bool {
        let moves_data = call.ends_with("COPY") || call.ends_with("FILL");
        match fault {
            FaultKind::Lost | FaultKind::Late(_) => true,
            FaultKind::Garbled | FaultKind::Half => moves_data,
            FaultKind::Hang => call == "COPY" || call == "FILL",
            _ => false,
        }
    }
}

/// A checked fault plan for the engines of the software GPUs, in the language of
/// [`hsa-faults`](https://docs.rs/hsa-faults).
///
/// | operation | |
/// |---|---|
/// | `COPY`, `FILL` | a copy or fill by a user queue (SDMA, or AMD's copy and fill kernels) |
/// | `KERNEL_COPY`, `KERNEL_FILL` | a copy or fill by the kernel's SDMA engine, for eviction or clearing |
/// | `PTE_WRITE` | a job of the kernel's SDMA engine that writes page tables (`amdgpu.vm_update_mode=0`) |
/// | `TLB_FLUSH` | a TLB flush |
/// | `INTERRUPT` | the interrupt of an event |
///
/// All operations support a time (the operation takes this much longer), `late:` with a time, and `lost`. Copies and
/// fills also support `garbled` and `half`. `COPY` and `FILL` also support `hang`, which stops the user queue.
#[derive(Clone, Debug)]
pub struct EngineFaults {
    plan: Plan<Infallible>,
}

impl std::str::FromStr for EngineFaults {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Ok(Self { plan: Plan::parse(text, &Engines)? })
    }
}

impl EngineFaults {
    /// Returns the plan in the form that the kernel module reads.
    pub(crate) fn text(&self) -> String {
        self.plan.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::EngineFaults;

    #[test]
    fn plan_is_checked_and_normalised() {
        let plan: EngineFaults = "COPY=garbled, TLB_FLUSH#2-=late:5ms;*=1ms".parse().unwrap();
        assert_eq!(plan.text(), "COPY=garbled;TLB_FLUSH#2-=late:5000us;*=1000us");
        for (rule, reason) in [
            ("COPIES=lost", "the calls are: COPY, FILL"),
            ("TLB_FLUSH=garbled", "these calls do: COPY, FILL, KERNEL_COPY, KERNEL_FILL"),
            ("KERNEL_COPY=hang", "KERNEL_COPY does not support `hang`; these calls do: COPY, FILL"),
            ("COPY=crash", "COPY does not support `crash`; no call does"),
            ("*=hang", "these calls do: COPY, FILL"),
            (
                "COPY=EIO",
                "COPY supports a time such as 20us, and: late:5ms, lost, hang, garbled, half",
            ),
        ] {
            let error = rule.parse::<EngineFaults>().unwrap_err().to_string();
            assert!(error.contains(reason), "{rule}: {error}");
        }
    }
}
