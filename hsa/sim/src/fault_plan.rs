//! Which calls fail, and with what status.

use crate::abi::NAMES;
use crate::status;
use core::fmt;
use core::str::FromStr;
use hsa_sys::hsa_status_t;

/// Calls that answer a status without being performed.
///
/// As text: `function:N:status`, several with `;` between them; `N` counts that function's calls
/// from 1, or is `*` for all of them; the status is a number or a name such as
/// `OUT_OF_RESOURCES`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    function: String,
    /// From 1; `None` is every call.
    call: Option<u64>,
    status: hsa_status_t,
}

impl FaultPlan {
    /// Nothing fails.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// This call of the function (the first is 1) fails, and what was planned already.
    #[must_use]
    pub fn fail(mut self, function: &str, call: u64, status: hsa_status_t) -> Self {
        self.rules.push(Rule { function: function.into(), call: Some(call), status });
        self
    }

    /// Every call of the function fails, and what was planned already.
    #[must_use]
    pub fn always(mut self, function: &str, status: hsa_status_t) -> Self {
        self.rules.push(Rule { function: function.into(), call: None, status });
        self
    }

    /// Whether nothing fails.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What this call of the function answers, if it is to fail.
    pub(crate) fn status(&self, function: &str, call: u64) -> Option<hsa_status_t> {
        let planned = |rule: &&Rule| {
            rule.function == function && rule.call.is_none_or(|number| number == call)
        };
        self.rules.iter().find(planned).map(|rule| rule.status)
    }

    /// A function of the plan that there is not.
    pub(crate) fn unknown_function(&self) -> Option<&str> {
        let unknown = |rule: &&Rule| !NAMES.contains(&rule.function.as_str());
        self.rules.iter().find(unknown).map(|rule| rule.function.as_str())
    }
}

/// A fault plan that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// Not three words with `:` between them.
    #[error("`{0}` is not of the form function:N:status (N counts from 1, or is *)")]
    Form(String),
    /// No such function.
    #[error("`{word}` is no function that can fail; those are: {valid}")]
    Function {
        /// What was not understood.
        word: String,
        /// The functions there are.
        valid: String,
    },
    /// Not a call's number.
    #[error("`{0}` is no number of a call: it must be 1 or more, or *")]
    Call(String),
    /// Not a status.
    #[error(
        "`{0}` is no status: it must be a number such as 0x1008 or a name such as OUT_OF_RESOURCES"
    )]
    Status(String),
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::none();
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            plan.rules.push(rule.parse()?);
        }
        Ok(plan)
    }
}

impl FromStr for Rule {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let words: Vec<&str> = text.split(':').map(str::trim).collect();
        let [function, call, status] = words[..] else {
            return Err(FaultPlanError::Form(text.into()));
        };
        if !NAMES.contains(&function) {
            return Err(FaultPlanError::Function {
                word: function.into(),
                valid: NAMES.join(", "),
            });
        }
        let call = match call {
            "*" => None,
            _ => match call.parse() {
                Ok(number) if number > 0 => Some(number),
                _ => return Err(FaultPlanError::Call(call.into())),
            },
        };
        let number = match status.strip_prefix("0x") {
            Some(digits) => hsa_status_t::from_str_radix(digits, 16).ok(),
            None => status.parse().ok(),
        };
        let status = number
            .or_else(|| status::by_name(status))
            .ok_or_else(|| FaultPlanError::Status(status.into()))?;
        Ok(Self { function: function.into(), call, status })
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Rule { function, call, status }) in self.rules.iter().enumerate() {
            if index > 0 {
                f.write_str(";")?;
            }
            match call {
                Some(call) => write!(f, "{function}:{call}:{status:#x}")?,
                None => write!(f, "{function}:*:{status:#x}")?,
            }
        }
        Ok(())
    }
}
