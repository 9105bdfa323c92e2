//! Conditions on the values of HSA signals.

use derive_more::Display;

/// The condition on a signal's value under which a mapping can be retired.
///
/// The caller states whether the signal counts up or down. The library does not guess, because a wrong
/// guess could unmap memory that an agent still uses.
///
/// ```
/// use hsa_vmm::vmm::SignalCondition;
///
/// // A completion signal: an agent decrements it to 0, or sets it to a negative value after an error.
/// assert!(SignalCondition::AtMost(0).holds(0));
/// // A timeline, which counts finished work.
/// assert!(!SignalCondition::AtLeast(7).holds(6));
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignalCondition {
    /// The value is this number or less: completion signals, which count down.
    #[display("at most {_0}")]
    AtMost(i64),
    /// The value is this number or more: signals that count up.
    #[display("at least {_0}")]
    AtLeast(i64),
}

impl SignalCondition {
    /// Returns whether the condition holds for a value.
    pub const fn holds(self, value: i64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}
