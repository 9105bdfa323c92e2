//! Every effect of every call that a fault plan can name. The calls are read from error messages: the message about an
//! unknown call, or about an effect that a call does not support, lists the valid calls.

use crate::table::Target;
use crate::{RunResult, run};
use hsa_faults::FaultKind;

/// The targets for which docs/detection.md lists every effect of every call.
pub const TARGETS: [Target; 2] = [Target::Release("7.2.4"), Target::Simulation("")];

/// A call, and an effect that a planned fault has on this call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallFault {
    pub call: String,
    pub effect: String,
}

impl CallFault {
    /// Parses a fault plan of one call, such as `GEM_VA=EIO`.
    pub fn parse(plan: &str) -> Option<Self> {
        let (call, effect) = plan.split_once('=')?;
        Some(Self { call: call.to_owned(), effect: effect.to_owned() })
    }

    /// Returns the fault plan, such as `GEM_VA=EIO`.
    pub fn plan(&self) -> String {
        format!("{}={}", self.call, self.effect)
    }
}

/// Runs a subcommand with an invalid plan. Returns the names that follow `prefix` in the error message. Returns no
/// names if the message says that no call supports the effect.
fn listed_names(target: Target, plan: &str, prefix: &str) -> Vec<String> {
    let RunResult { stdout, stderr, .. } = run(target, plan, &["info"]).expect("`info` ends");
    let output = format!("{stdout}{stderr}");
    if output.contains("; no call does") {
        return Vec::new();
    }
    let list = output.split(prefix).nth(1).unwrap_or_else(|| panic!("{plan}: {output}"));
    let list = list.lines().next().unwrap_or_default();
    list.split(", ").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Returns an error that calls of a target can return.
fn error_name(target: Target) -> &'static str {
    match target {
        Target::Release(_) | Target::Machine(_) => "EIO",
        Target::Simulation(_) => "ERROR",
    }
}

/// Returns every effect of every call of a target. One error represents all errors, and one delay represents all delays
/// of an effect such as `late`.
pub fn all_of(target: Target) -> Vec<CallFault> {
    let all_calls = listed_names(target, "?=lost", "the calls are: ");
    assert!(all_calls.len() > 30, "{all_calls:?}");
    let mut call_faults = Vec::new();
    let mut add = |calls: &[String], effect: &str| {
        let call_fault =
            |call: &String| CallFault { call: call.clone(), effect: effect.to_owned() };
        call_faults.extend(calls.iter().map(call_fault));
    };
    add(&all_calls, error_name(target));
    for kind in FaultKind::ALL {
        let effect = match kind {
            FaultKind::Late(_) => "late:5ms".to_owned(),
            // Long enough for the first level that uses the mapping, even on a busy machine.
            FaultKind::Unseen(_) => "unseen:200ms".to_owned(),
            kind => kind.to_string(),
        };
        match kind {
            FaultKind::Lost | FaultKind::Hang | FaultKind::Crash => add(&all_calls, &effect),
            _ => add(&listed_names(target, &format!("*={effect}"), "these calls do:"), &effect),
        }
    }
    call_faults.sort();
    call_faults
}
