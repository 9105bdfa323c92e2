//! A sequence of operations and the machine it runs on.

use crate::operations::Operation;
use hsa_vmm::simulation::{Config, ConfigError, FaultPlan, FaultPlanError};
use hsa_vmm::{Error, Runtime};
use serde::{Deserialize, Serialize};

/// A sequence of operations that begins with an empty `Vmm`, and the machine it runs on.
///
/// In JSON, the key `operations` distinguishes it from a recorded trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// The seed it was drawn with.
    pub seed: u64,
    /// Its number among the sequences of the seed.
    pub number: u64,
    /// The simulation's configuration, as in `HSA_SIM`; `None` for the loaded runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The fault plan of the simulation, counted from the first operation on. The library must tolerate
    /// these faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,
    /// The number of operations between complete comparisons; `None` for one after each operation.
    /// Comparisons make calls of the runtime, too, so that this changes the call numbers of fault plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// The failure when it was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The operations, in order.
    pub operations: Vec<Operation>,
}

/// The machine of a sequence is invalid or does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The simulation's configuration is invalid.
    #[error("invalid machine `{machine}`: {why}")]
    Machine {
        /// The text.
        machine: String,
        /// What is wrong with it.
        why: String,
    },
    /// The fault plan is invalid.
    #[error("invalid faults `{faults}`: {why}")]
    Faults {
        /// The text.
        faults: String,
        /// What is wrong with it.
        why: String,
    },
    /// The simulation does not start.
    #[error(transparent)]
    Runtime(#[from] Error),
}

impl Sequence {
    /// Starts the simulation of the sequence; returns `None` if it has none.
    ///
    /// # Errors
    /// [`SequenceError`] if the configuration is invalid.
    pub fn simulation(&self) -> Result<Option<Runtime>, SequenceError> {
        Ok(self.config()?.map(Runtime::simulated).transpose()?)
    }

    fn config(&self) -> Result<Option<Config>, SequenceError> {
        let read = |machine: &String| {
            machine.parse().map_err(|error: ConfigError| SequenceError::Machine {
                machine: machine.clone(),
                why: error.to_string(),
            })
        };
        self.machine.as_ref().map(read).transpose()
    }

    /// Checks machine and faults.
    ///
    /// # Errors
    /// [`SequenceError`] if one of them is invalid.
    pub fn check(&self) -> Result<(), SequenceError> {
        self.config()?;
        self.fault_plan()?;
        Ok(())
    }

    /// Returns the fault plan.
    ///
    /// # Errors
    /// [`SequenceError::Faults`].
    pub fn fault_plan(&self) -> Result<Option<FaultPlan>, SequenceError> {
        let read = |faults: &String| {
            faults.parse().map_err(|error: FaultPlanError| SequenceError::Faults {
                faults: faults.clone(),
                why: error.to_string(),
            })
        };
        self.faults.as_ref().map(read).transpose()
    }
}
