//! Fault plans of the simulation.

use crate::abi::STATUS_NAMES;
use crate::status;
use core::fmt;
use core::str::FromStr;
use hsa_faults::{CallNumbers, Effect, FaultKind, Plan, PlanError, Target};
use hsa_sys::hsa_status_t;

/// A plan of calls that fail, take longer, misbehave or never return.
///
/// The text form is `function#3=OUT_OF_RESOURCES`; `;` or `,` separates rules. [`hsa_faults`]
/// documents the language. `*` matches the calls of all functions, and
/// counts them together. A status is a number or a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub(super) plan: Plan<Status>,
}

/// A status code in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) hsa_status_t);

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

impl FaultPlan {
    /// Creates an empty plan.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a failure of one call of a function. The first call has the number 1.
    #[must_use]
    pub fn fail(self, function: &str, call: u64, status: hsa_status_t) -> Self {
        self.with_failure(Some(function), CallNumbers::single(call), status)
    }

    /// Adds a failure of one call of any function. `call` is the call's number among the calls of
    /// all functions. The first call has the number 1.
    #[must_use]
    pub fn fail_any(self, call: u64, status: hsa_status_t) -> Self {
        self.with_failure(None, CallNumbers::single(call), status)
    }

    /// Adds failures of a call and all later calls of any function. `call` is the call's number among the calls of all
    /// functions. The first call has the number 1.
    #[must_use]
    pub fn fail_any_from(self, call: u64, status: hsa_status_t) -> Self {
        self.with_failure(None, CallNumbers::starting_at(call), status)
    }

    /// Adds a failure of every call of a function.
    #[must_use]
    pub fn always(self, function: &str, status: hsa_status_t) -> Self {
        self.with_failure(Some(function), CallNumbers::ALL, status)
    }

    fn with_failure(
        self,
        function: Option<&str>,
        calls: CallNumbers,
        status: hsa_status_t,
    ) -> Self {
        Self { plan: self.plan.with_rule(function, calls, Effect::Fail(Status(status))) }
    }

    /// Returns whether the plan is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// Returns the first unknown function of the plan.
    pub(crate) fn unknown_function(&self) -> Option<&str> {
        let mut functions = self.plan.rules.iter().filter_map(|rule| rule.call.as_deref());
        functions.find(|name| !STATUS_NAMES.contains(name))
    }
}

/// The simulation as the target of a plan.
struct SimulationTarget;

impl Target for SimulationTarget {
    type Code = Status;

    const CODES: Option<&'static str> = Some("an HSA status such as OUT_OF_RESOURCES");

    fn code(&self, word: &str) -> Option<Status> {
        let number = match word.strip_prefix("0x") {
            Some(digits) => hsa_status_t::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        number.or_else(|| status::by_name(word)).map(Status)
    }

    fn calls(&self) -> Vec<&str> {
        STATUS_NAMES.to_vec()
    }

    fn supports(&self, call: &str, fault: FaultKind) -> bool {
        const COPYING_CALLS: [&str; 3] =
            ["hsa_memory_copy", "hsa_amd_memory_fill", "hsa_amd_memory_async_copy"];
        const FREEING_CALLS: [&str; 4] = [
            "hsa_amd_vmem_address_free",
            "hsa_amd_vmem_handle_release",
            "hsa_amd_vmem_unmap",
            "hsa_amd_memory_pool_free",
        ];
        const EXPORTING_CALLS: [&str; 3] = [
            "hsa_amd_vmem_export_shareable_handle",
            "hsa_amd_portable_export_dmabuf",
            "hsa_amd_portable_export_dmabuf_v2",
        ];
        let (copies, exports) = (COPYING_CALLS.contains(&call), EXPORTING_CALLS.contains(&call));
        let reports_sizes = call == "hsa_amd_memory_pool_get_info" || call == "hsa_agent_get_info";
        let sets_access = call == "hsa_amd_vmem_set_access";
        match fault {
            FaultKind::Lost | FaultKind::Hang | FaultKind::Crash => true,
            FaultKind::Late(_) => super::supports_late(call),
            FaultKind::Wide | FaultKind::Narrow | FaultKind::Shifted => sets_access,
            FaultKind::WrongMemory => sets_access || exports,
            FaultKind::Leak => FREEING_CALLS.contains(&call) || exports,
            FaultKind::Garbled => copies,
            FaultKind::Half => {
                copies || reports_sizes || sets_access || call == "hsa_amd_vmem_unmap"
            }
            FaultKind::Double => reports_sizes,
            // Faults that the simulation does not implement.
            _ => false,
        }
    }
}

/// An invalid or unsupported rule of a fault plan.
pub type FaultPlanError = PlanError;

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        Ok(Self { plan: Plan::parse(text, &SimulationTarget)? })
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(formatter)
    }
}
