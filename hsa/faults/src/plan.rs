//! Plans, and their text form.

use crate::effect::{Effect, FaultKind, parse_time};
use std::fmt;

/// A fault plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan<C> {
    /// The rules, in the order of the text.
    pub rules: Vec<Rule<C>>,
}

/// A rule of a plan: an effect on some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule<C> {
    /// The name of the affected calls. `None` matches every call, with one common counter.
    pub call: Option<String>,
    /// The numbers of the affected calls, among the calls of this name.
    pub occurrences: CallNumbers,
    /// The effect on the calls.
    pub effect: Effect<C>,
}

/// The numbers of the affected calls: from `first` to `last`, both included. The first call of a name has the
/// number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNumbers {
    /// The first call.
    pub first: u64,
    /// The last call.
    pub last: u64,
}

impl CallNumbers {
    /// Every call.
    pub const ALL: Self = Self::starting_at(1);

    /// Selects a single call.
    #[must_use]
    pub const fn single(number: u64) -> Self {
        Self { first: number, last: number }
    }

    /// Selects a call and all later calls.
    #[must_use]
    pub const fn starting_at(first: u64) -> Self {
        Self { first, last: u64::MAX }
    }

    pub(crate) fn contains(self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let last =
            if last.is_empty() && !first.is_empty() { u64::MAX } else { last.parse().ok()? };
        let calls = Self { first: first.parse().ok()?, last };
        (calls.first > 0 && calls.first <= calls.last).then_some(calls)
    }
}

/// An invalid rule of a plan, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    rule: String,
    reason: String,
}

impl PlanError {
    /// Creates the error of a rule that a target rejects for a reason of its own.
    #[must_use]
    pub fn new(rule: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { rule: rule.into(), reason: reason.into() }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.rule, self.reason)
    }
}

impl std::error::Error for PlanError {}

/// The target of a plan: its calls, and the faults that each call supports.
pub trait Target {
    /// The type of the error codes that calls can return.
    type Code;

    /// Names the error codes that calls can return, with an example. `None` if calls return no error codes.
    const CODES: Option<&'static str>;

    /// Parses an error code, given by name or number.
    fn code(&self, word: &str) -> Option<Self::Code>;

    /// Returns the names of the calls, for messages.
    fn calls(&self) -> Vec<&str>;

    /// Returns whether a call supports a fault.
    fn supports(&self, call: &str, fault: FaultKind) -> bool;
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<C> Plan<C> {
    /// Parses a plan for a target.
    ///
    /// # Errors
    /// The first invalid rule and the reason: no `=`, invalid call numbers, unknown call, unknown effect, or an effect
    /// that the call does not support.
    pub fn parse(text: &str, target: &impl Target<Code = C>) -> Result<Self, PlanError> {
        let rules = text.split([',', ';']).map(str::trim).filter(|rule| !rule.is_empty());
        let rule =
            |text: &str| Rule::parse(text, target).map_err(|reason| PlanError::new(text, reason));
        Ok(Self { rules: rules.map(rule).collect::<Result<_, _>>()? })
    }

    /// Returns whether the plan has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds a rule.
    #[must_use]
    pub fn with_rule(
        mut self,
        call: Option<&str>,
        occurrences: CallNumbers,
        effect: Effect<C>,
    ) -> Self {
        self.rules.push(Rule { call: call.map(Into::into), occurrences, effect });
        self
    }
}

const INVALID_NUMBERS: &str =
    "invalid numbers of calls: expected CALL#3, CALL#3-5 or CALL#3-, counted from 1";

impl<C> Rule<C> {
    fn parse<T: Target<Code = C>>(text: &str, target: &T) -> Result<Self, String> {
        let (calls, effect) = text.split_once('=').ok_or("expected CALL=EFFECT")?;
        let (call, occurrences) = match calls.split_once('#') {
            Some((call, occurrences)) => {
                let occurrences = CallNumbers::parse(occurrences);
                (call, occurrences.ok_or(INVALID_NUMBERS)?)
            }
            None => (calls, CallNumbers::ALL),
        };
        let (call, effect) = (call.trim(), effect.trim());
        let named = Some(call).filter(|&call| call != "*");
        let all = target.calls();
        if named.is_some_and(|call| !all.contains(&call)) {
            return Err(format!("unknown call; the calls are: {}", all.join(", ")));
        }
        let is_supported = |fault: FaultKind| match named {
            Some(call) => target.supports(call, fault),
            None => {
                matches!(fault, FaultKind::Lost | FaultKind::Hang | FaultKind::Crash)
                    && all.iter().all(|call| target.supports(call, fault))
            }
        };
        let fault = FaultKind::from_name(effect);
        if let Some(fault) = fault
            && !is_supported(fault)
        {
            let word = fault.name();
            let is_supporting = |call: &&&str| target.supports(call, fault);
            let calls: Vec<_> = all.iter().filter(is_supporting).copied().collect();
            let others = match calls[..] {
                [] => "no call does".to_owned(),
                _ => format!("these calls do: {}", calls.join(", ")),
            };
            return Err(format!("{call} does not support `{word}`; {others}"));
        }
        let effect = fault
            .map(Effect::Misbehave)
            .or_else(|| parse_time(effect).map(Effect::Delay))
            .or_else(|| target.code(effect).map(Effect::Fail))
            .ok_or_else(|| {
                let supported = FaultKind::ALL.into_iter().filter(|fault| is_supported(*fault));
                let word = |fault: FaultKind| match fault {
                    FaultKind::Late(_) => "late:5ms",
                    FaultKind::Unseen(_) => "unseen:5ms",
                    FaultKind::Stale(_) => "stale:5ms",
                    fault => fault.name(),
                };
                let supported: Vec<_> = supported.map(word).collect();
                let codes = T::CODES.map(|codes| format!("{codes}, ")).unwrap_or_default();
                let supported = supported.join(", ");
                format!(
                    "unknown effect; {call} supports {codes}a time such as 20us, and: {supported}"
                )
            })?;
        Ok(Self { call: named.map(Into::into), occurrences, effect })
    }
}

impl<C: fmt::Display> fmt::Display for Rule<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.call.as_deref().unwrap_or("*"))?;
        match self.occurrences {
            CallNumbers::ALL => {}
            CallNumbers { first, last } if first == last => write!(formatter, "#{first}")?,
            CallNumbers { first, last: u64::MAX } => write!(formatter, "#{first}-")?,
            CallNumbers { first, last } => write!(formatter, "#{first}-{last}")?,
        }
        write!(formatter, "={}", self.effect)
    }
}

impl<C: fmt::Display> fmt::Display for Plan<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            if index > 0 {
                formatter.write_str(";")?;
            }
            rule.fmt(formatter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct TestTarget;

    impl Target for TestTarget {
        type Code = u32;

        const CODES: Option<&'static str> = Some("a number such as 12");

        fn code(&self, word: &str) -> Option<u32> {
            word.parse().ok()
        }

        fn calls(&self) -> Vec<&str> {
            vec!["MAP", "FREE", "COPY"]
        }

        fn supports(&self, call: &str, fault: FaultKind) -> bool {
            match fault {
                FaultKind::Late(_) | FaultKind::Unseen(_) | FaultKind::Stale(_) => call == "MAP",
                FaultKind::Leak => call == "FREE",
                FaultKind::Lost | FaultKind::Hang | FaultKind::Crash => true,
                _ => false,
            }
        }
    }

    fn parse(text: &str) -> Result<Plan<u32>, PlanError> {
        Plan::parse(text, &TestTarget)
    }

    #[test]
    fn plan_round_trips_through_text() {
        let text = "MAP=12;MAP#3=5ms, FREE#2-4=leak,MAP=late:1s;*#7-=hang,,COPY = crash";
        let plan = parse(text).unwrap();
        let expected = Plan::default()
            .with_rule(Some("MAP"), CallNumbers::ALL, Effect::Fail(12))
            .with_rule(Some("MAP"), CallNumbers::single(3), Effect::Delay(Duration::from_millis(5)))
            .with_rule(
                Some("FREE"),
                CallNumbers { first: 2, last: 4 },
                Effect::Misbehave(FaultKind::Leak),
            )
            .with_rule(
                Some("MAP"),
                CallNumbers::ALL,
                Effect::Misbehave(FaultKind::Late(Duration::from_secs(1))),
            )
            .with_rule(None, CallNumbers::starting_at(7), Effect::Misbehave(FaultKind::Hang))
            .with_rule(Some("COPY"), CallNumbers::ALL, Effect::Misbehave(FaultKind::Crash));
        assert_eq!(plan, expected);
        let written = "MAP=12;MAP#3=5000us;FREE#2-4=leak;MAP=late:1000000us;*#7-=hang;COPY=crash";
        assert_eq!(plan.to_string(), written);
        assert_eq!(parse(written).unwrap(), plan);
        assert!(parse(" ; ").unwrap().is_empty());
    }

    #[test]
    fn parse_rejects_invalid_rules() {
        for (rule, reason) in [
            ("MAP", "CALL=EFFECT"),
            ("MAP#0=1", "counted from 1"),
            ("MAP#5-3=1", "counted from 1"),
            ("MAP#=1", "counted from 1"),
            ("MAP#-=1", "counted from 1"),
            ("MAPS=1", "MAP, FREE, COPY"),
            ("MAP=often", "and: late:5ms, unseen:5ms, stale:5ms"),
            (
                "MAP=late",
                "unknown effect; MAP supports a number such as 12, a time such as 20us, and: ",
            ),
            ("MAP=late:5", "unknown effect"),
            ("MAP=us", "unknown effect"),
            ("MAP=leak", "these calls do: FREE"),
            ("*=leak", "these calls do: FREE"),
            ("COPY=late:5ms", "these calls do: MAP"),
        ] {
            let error = parse(&format!("MAP=1,{rule}")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{rule:?}: ")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn fault_names_round_trip() {
        let words = "lost hang crash wide narrow shifted other leak garbled half double late:3us";
        for word in words.split(' ') {
            assert_eq!(FaultKind::from_name(word).unwrap().to_string(), word);
        }
    }
}
