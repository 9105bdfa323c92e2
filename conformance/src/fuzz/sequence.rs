//! A sequence of operations and the machine that it runs on.

use crate::operations::Operation;
use hsa_vmm::simulation::{Config, ConfigError, FaultPlan, FaultPlanError};
use hsa_vmm::{Error, Runtime};
use serde::{Deserialize, Serialize};

/// A sequence of operations that begins with an empty `Vmm`, and the machine that it runs on.
///
/// In JSON, the key `operations` distinguishes a sequence from a recorded trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// The seed of the generator.
    pub seed: u64,
    /// The number of the sequence. Seed and number identify the sequence.
    pub number: u64,
    /// The simulation's configuration, as in `HSA_SIM`; `None` for the loaded runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The fault plan of the simulation. The plan counts runtime calls from the first operation on. The library must
    /// tolerate the planned faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,
    /// The number of operations between complete comparisons; `None` to compare after each operation.
    /// A fault plan also counts the runtime calls of comparisons. If this number changes, the plan makes other calls
    /// fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// The failure of the sequence when it was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The operations, in order.
    pub operations: Vec<Operation>,
}

/// The error of a sequence whose machine or fault plan is invalid, or whose simulation does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The simulation's configuration is invalid.
    #[error("invalid machine `{machine}`: {why}")]
    Machine {
        /// The configuration.
        machine: String,
        /// The error of the parser.
        why: String,
    },
    /// The fault plan is invalid.
    #[error("invalid faults `{faults}`: {why}")]
    Faults {
        /// The fault plan.
        faults: String,
        /// The error of the parser.
        why: String,
    },
    /// The simulation does not start.
    #[error(transparent)]
    Runtime(#[from] Error),
}

impl Sequence {
    /// Starts the simulation of the sequence. Returns `None` if the sequence is for the loaded runtime.
    ///
    /// # Errors
    /// [`SequenceError`] if the configuration is invalid or the simulation does not start.
    pub fn simulation(&self) -> Result<Option<Runtime>, SequenceError> {
        Ok(self.config()?.map(Runtime::simulated).transpose()?)
    }

    /// Returns the configuration of the sequence's simulation. Returns `None` if the sequence is for the loaded runtime.
    ///
    /// # Errors
    /// [`SequenceError::Machine`] if the configuration is invalid.
    pub fn config(&self) -> Result<Option<Config>, SequenceError> {
        let parse = |machine: &String| {
            machine.parse().map_err(|error: ConfigError| SequenceError::Machine {
                machine: machine.clone(),
                why: error.to_string(),
            })
        };
        self.machine.as_ref().map(parse).transpose()
    }

    /// Checks that the machine and the fault plan can be parsed.
    ///
    /// # Errors
    /// [`SequenceError`] if the machine or the fault plan is invalid.
    pub fn check(&self) -> Result<(), SequenceError> {
        self.config()?;
        self.fault_plan()?;
        Ok(())
    }

    /// Returns the fault plan.
    ///
    /// # Errors
    /// [`SequenceError::Faults`] if the fault plan is invalid.
    pub fn fault_plan(&self) -> Result<Option<FaultPlan>, SequenceError> {
        let parse = |faults: &String| {
            faults.parse().map_err(|error: FaultPlanError| SequenceError::Faults {
                faults: faults.clone(),
                why: error.to_string(),
            })
        };
        self.faults.as_ref().map(parse).transpose()
    }
}
