//! Which calls fail, and with what status.

use crate::abi::NAMES;
use crate::status;
use core::fmt;
use core::str::FromStr;
use hsa_sys::hsa_status_t;

/// Calls that answer a status without being performed.
///
/// As text: `function:N:status`, several with `;` between them; `N` counts that function's calls
/// from 1, `N-` is that one and every later one, `*` all of them; a function `*` is any, and its
/// calls are counted together; the status is a number or a name such as `OUT_OF_RESOURCES`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// `None` is any, and their calls are counted together.
    function: Option<String>,
    calls: Calls,
    status: hsa_status_t,
}

/// Which calls, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    All,
    One(u64),
    From(u64),
}

impl Calls {
    fn contain(self, call: u64) -> bool {
        match self {
            Self::All => true,
            Self::One(number) => call == number,
            Self::From(first) => call >= first,
        }
    }
}

impl FaultPlan {
    /// Nothing fails.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// This call of the function (the first is 1) fails, and what was planned already.
    #[must_use]
    pub fn fail(self, function: &str, call: u64, status: hsa_status_t) -> Self {
        self.and(Some(function), Calls::One(call), status)
    }

    /// This call fails, counted over all functions together from 1, and what was planned already.
    #[must_use]
    pub fn fail_any(self, call: u64, status: hsa_status_t) -> Self {
        self.and(None, Calls::One(call), status)
    }

    /// This call and every later one fails, counted over all functions together from 1, and what
    /// was planned already.
    #[must_use]
    pub fn fail_any_from(self, call: u64, status: hsa_status_t) -> Self {
        self.and(None, Calls::From(call), status)
    }

    /// Every call of the function fails, and what was planned already.
    #[must_use]
    pub fn always(self, function: &str, status: hsa_status_t) -> Self {
        self.and(Some(function), Calls::All, status)
    }

    fn and(mut self, function: Option<&str>, calls: Calls, status: hsa_status_t) -> Self {
        self.rules.push(Rule { function: function.map(Into::into), calls, status });
        self
    }

    /// Whether nothing fails.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What this call answers, if it is to fail: the function's `call`th, of all the `nth`.
    pub(crate) fn status(&self, function: &str, call: u64, nth: u64) -> Option<hsa_status_t> {
        let planned = |rule: &&Rule| match &rule.function {
            Some(named) => named == function && rule.calls.contain(call),
            None => rule.calls.contain(nth),
        };
        self.rules.iter().find(planned).map(|rule| rule.status)
    }

    /// A function of the plan that there is not.
    pub(crate) fn unknown_function(&self) -> Option<&str> {
        let mut named = self.rules.iter().filter_map(|rule| rule.function.as_deref());
        named.find(|name| !NAMES.contains(name))
    }
}

/// A fault plan that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// Not three words with `:` between them.
    #[error("`{0}` is not of the form function:N:status (N counts from 1, or is N- or *)")]
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
    #[error("`{0}` is no number of a call: it must be 1 or more, such with a -, or *")]
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
        let function = Some(function).filter(|&function| function != "*");
        if let Some(function) = function.filter(|function| !NAMES.contains(function)) {
            return Err(FaultPlanError::Function {
                word: function.into(),
                valid: NAMES.join(", "),
            });
        }
        let number = |digits: &str| match digits.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(FaultPlanError::Call(call.into())),
        };
        let calls = match call.strip_suffix('-') {
            _ if call == "*" => Calls::All,
            Some(first) => Calls::From(number(first)?),
            None => Calls::One(number(call)?),
        };
        let number = match status.strip_prefix("0x") {
            Some(digits) => hsa_status_t::from_str_radix(digits, 16).ok(),
            None => status.parse().ok(),
        };
        let status = number
            .or_else(|| status::by_name(status))
            .ok_or_else(|| FaultPlanError::Status(status.into()))?;
        Ok(Self { function: function.map(Into::into), calls, status })
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Rule { function, calls, status }) in self.rules.iter().enumerate() {
            if index > 0 {
                f.write_str(";")?;
            }
            let function = function.as_deref().unwrap_or("*");
            match calls {
                Calls::All => write!(f, "{function}:*:{status:#x}")?,
                Calls::One(call) => write!(f, "{function}:{call}:{status:#x}")?,
                Calls::From(call) => write!(f, "{function}:{call}-:{status:#x}")?,
            }
        }
        Ok(())
    }
}
