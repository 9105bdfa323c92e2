//! A sequence of operations, and what it is performed on.

use crate::operations::Operation;
use hsa_vmm::simulation::{Config, ConfigError, FaultPlan, FaultPlanError};
use hsa_vmm::{Error, Runtime};
use serde::{Deserialize, Serialize};

/// A sequence of operations that begins with nothing, and what it is performed on.
///
/// As a line of JSON it is told from a recorded trace by its `operations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// The seed it was drawn with.
    pub seed: u64,
    /// Which of the seed's sequences it is.
    pub number: u64,
    /// The simulation, as `HSA_SIM` describes it; without one, whatever runtime there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Calls of the simulation that fail, as its fault plans are written; they are counted from the
    /// first operation on, and the library is to live with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<String>,
    /// After how many operations all is looked at; after each, if nothing is said. It changes which
    /// call of the runtime is the how manieth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// What was found when it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What is done, in order.
    pub operations: Vec<Operation>,
}

/// What a sequence is performed on cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The simulation is not understood.
    #[error("the machine `{machine}` is not understood: {why}")]
    Machine {
        /// What is written.
        machine: String,
        /// What is wrong with it.
        why: String,
    },
    /// The plan of faults is not understood.
    #[error("the faults `{faults}` are not understood: {why}")]
    Faults {
        /// What is written.
        faults: String,
        /// What is wrong with it.
        why: String,
    },
    /// The simulation does not start.
    #[error(transparent)]
    Runtime(#[from] Error),
}

impl Sequence {
    /// The simulation that it names, started; `None` if it names none.
    ///
    /// # Errors
    /// [`SequenceError`] if there cannot be such a simulation.
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

    /// Whether machine and faults are understood.
    ///
    /// # Errors
    /// [`SequenceError`] names what is not.
    pub fn check(&self) -> Result<(), SequenceError> {
        self.config()?;
        self.fault_plan()?;
        Ok(())
    }

    /// The calls that fail.
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
