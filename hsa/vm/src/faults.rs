//! Planned faults of the software GPUs' engines. The kernel module causes these faults (`module/faults.c`).

use hsa_faults::{Effect, FaultKind, Plan, PlanError, Rule, Target};
use std::convert::Infallible;
use std::time::Duration;

/// The operations of the engines that a plan can name.
const OPERATIONS: [&str; 7] =
    ["COPY", "FILL", "KERNEL_COPY", "KERNEL_FILL", "PTE_WRITE", "TLB_FLUSH", "INTERRUPT"];

/// The engines as the target of a plan.
struct Engines;

impl Target for Engines {
    /// Operations of the engines return no error codes.
    type Code = Infallible;

    const CODES: Option<&'static str> = None;

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
/// fills also support `garbled` and `half`. `COPY` and `FILL` also support `hang`, which stops the user queue. A plan
/// has at most 32 rules, and a time is at most 4294 seconds.
#[derive(Clone, Debug)]
pub struct EngineFaults {
    plan: Plan<Infallible>,
}

/// The maximum number of rules in `module/faults.c`.
const MAX_RULES: usize = 32;
/// The maximum time in `module/faults.c`. Within this limit, each rule and each plan is short enough for the module.
const MAX_TIME: Duration = Duration::from_micros(u32::MAX as u64);

impl std::str::FromStr for EngineFaults {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let plan = Plan::parse(text, &Engines)?;
        if let Some(rule) = plan.rules.get(MAX_RULES) {
            let reason = format!("the plan has more than {MAX_RULES} rules");
            return Err(PlanError::new(rule.to_string(), reason));
        }
        let time = |rule: &Rule<Infallible>| match rule.effect {
            Effect::Delay(time) | Effect::Misbehave(FaultKind::Late(time)) => time,
            _ => Duration::ZERO,
        };
        if let Some(rule) = plan.rules.iter().find(|rule| time(rule) > MAX_TIME) {
            let reason = format!("the time is longer than {} s", MAX_TIME.as_secs());
            return Err(PlanError::new(rule.to_string(), reason));
        }
        Ok(Self { plan })
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

    #[test]
    fn plan_has_the_limits_of_the_module() {
        let longest = "KERNEL_COPY#18446744073709551613-18446744073709551614=late:4294967295us";
        let plan: EngineFaults = vec![longest; 32].join(",").parse().unwrap();
        assert!(plan.text().len() <= 4096 && longest.len() <= 95);
        let error = |text: &str| text.parse::<EngineFaults>().unwrap_err().to_string();
        let message = error(&vec!["COPY=lost"; 33].join(","));
        assert!(message.ends_with("more than 32 rules"), "{message}");
        for rule in ["COPY=late:5000s", "COPY=5000s"] {
            assert!(error(rule).ends_with("longer than 4294 s"), "{}", error(rule));
        }
    }
}
