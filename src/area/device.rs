//! Which GPU an area is for.

use crate::agent::{Agent, AgentId, AgentKind};
use crate::area::error::{Argument, Cause, Problem};
use crate::area::{AreaError, Operation};
use crate::runtime::Runtime;
use core::fmt;

/// Which GPU an area is for, or one `mmap` of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The current one (a number below zero in AML). There is no `hipSetDevice` here, so that it
    /// is the first, as it is in HIP before that is called.
    #[default]
    Current,
    /// The one of this number, in the order of [`Runtime::gpus`], which is HIP's; from 0.
    Number(usize),
    /// This one.
    Agent(AgentId),
}

impl From<usize> for Device {
    fn from(number: usize) -> Self {
        Self::Number(number)
    }
}

impl From<AgentId> for Device {
    fn from(agent: AgentId) -> Self {
        Self::Agent(agent)
    }
}

impl Device {
    /// The GPU that is meant.
    pub(super) fn find(self, runtime: &Runtime, operation: Operation) -> Result<&Agent, AreaError> {
        let refused = |problem| AreaError::refused(operation, Argument::Device, problem);
        match self {
            Self::Current => runtime
                .gpus()
                .next()
                .ok_or(AreaError::NotSupported { operation, cause: Cause::NoDevice }),
            Self::Number(number) => {
                let devices = runtime.gpus().count();
                let problem = Problem::NoSuchDevice { number, devices };
                runtime.gpus().nth(number).ok_or(refused(problem))
            }
            Self::Agent(id) => runtime
                .agent(id)
                .filter(|agent| agent.kind() == AgentKind::Gpu)
                .ok_or(refused(Problem::NotAGpu(id))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current => f.write_str("the current device"),
            Self::Number(number) => write!(f, "device {number}"),
            Self::Agent(agent) => write!(f, "{agent}"),
        }
    }
}
