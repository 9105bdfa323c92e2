//! A plan as data, and as text.

use crate::effect::{Effect, FaultKind, time};
use std::fmt;

/// What is to go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan<C> {
    /// In the order in which they were written.
    pub rules: Vec<Rule<C>>,
}

/// What is to become of some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule<C> {
    /// The calls' name; `None` is any, and all are counted together.
    pub call: Option<String>,
    /// Which of them.
    pub which: Calls,
    /// What becomes of them.
    pub effect: Effect<C>,
}

/// Which calls of a name: from the first of these to the last, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl Calls {
    /// Every one.
    pub const ALL: Self = Self::from(1);

    /// One alone.
    #[must_use]
    pub const fn one(number: u64) -> Self {
        Self { first: number, last: number }
    }

    /// One and all that follow.
    #[must_use]
    pub const fn from(first: u64) -> Self {
        Self { first, last: u64::MAX }
    }

    pub(crate) fn contain(self, number: u64) -> bool {
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

/// A part of a plan that is not understood, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    rule: String,
    wrong: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.rule, self.wrong)
    }
}

impl std::error::Error for PlanError {}

/// What a plan is for: which calls there are, and what can become of them.
pub trait Target {
    /// What a call answers when it is refused.
    type Code;

    /// The answer of a name or number.
    fn code(&self, word: &str) -> Option<Self::Code>;

    /// The calls' names, as a list for people.
    fn calls(&self) -> Vec<&str>;

    /// Whether a call can go wrong so, beyond what any call can: being lost, late, for ever, or
    /// the end.
    fn can(&self, call: &str, wrong: FaultKind) -> bool;
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<C> Plan<C> {
    /// Reads a plan, every part of which must be for that target.
    ///
    /// # Errors
    /// The first part that is not understood, and why: no such call, no such effect, or one that
    /// this call cannot have.
    pub fn parse(text: &str, target: &impl Target<Code = C>) -> Result<Self, PlanError> {
        let rules = text.split([',', ';']).map(str::trim).filter(|rule| !rule.is_empty());
        let rule = |text: &str| {
            let named = |wrong| PlanError { rule: text.to_owned(), wrong };
            Rule::parse(text, target).map_err(named)
        };
        Ok(Self { rules: rules.map(rule).collect::<Result<_, _>>()? })
    }

    /// Whether nothing goes wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// One rule more.
    #[must_use]
    pub fn and(mut self, call: Option<&str>, which: Calls, effect: Effect<C>) -> Self {
        self.rules.push(Rule { call: call.map(Into::into), which, effect });
        self
    }
}

impl<C> Rule<C> {
    fn parse(text: &str, target: &impl Target<Code = C>) -> Result<Self, String> {
        let (calls, effect) = text.split_once('=').ok_or("it must be CALL=EFFECT")?;
        let (call, which) = match calls.split_once('#') {
            Some((call, which)) => {
                let which = Calls::parse(which);
                (call, which.ok_or("calls are counted from 1: CALL#3, CALL#3-5 or CALL#3-")?)
            }
            None => (calls, Calls::ALL),
        };
        let (call, effect) = (call.trim(), effect.trim());
        let named = Some(call).filter(|&call| call != "*");
        let all = target.calls();
        if named.is_some_and(|call| !all.contains(&call)) {
            return Err(format!("there is no such call; there are: {}", all.join(", ")));
        }
        let wrong = FaultKind::from_name(effect);
        if let Some(wrong) = wrong {
            let any = matches!(wrong, FaultKind::Lost | FaultKind::Hang | FaultKind::Crash);
            if !any && !named.is_some_and(|call| target.can(call, wrong)) {
                let word = wrong.name();
                let can = |call: &&&str| target.can(call, wrong);
                let those: Vec<_> = all.iter().filter(can).copied().collect();
                return Err(format!("{call} cannot be {word}; these can: {}", those.join(", ")));
            }
        }
        let effect = wrong
            .map(Effect::Misbehave)
            .or_else(|| time(effect).map(Effect::Delay))
            .or_else(|| target.code(effect).map(Effect::Fail))
            .ok_or(
                "the effect is neither an error, nor a time as 20us, nor a word of the plan's",
            )?;
        Ok(Self { call: named.map(Into::into), which, effect })
    }
}

impl<C: fmt::Display> fmt::Display for Rule<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.call.as_deref().unwrap_or("*"))?;
        match self.which {
            Calls::ALL => {}
            Calls { first, last } if first == last => write!(formatter, "#{first}")?,
            Calls { first, last: u64::MAX } => write!(formatter, "#{first}-")?,
            Calls { first, last } => write!(formatter, "#{first}-{last}")?,
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

    struct Calls3;

    impl Target for Calls3 {
        type Code = u32;

        fn code(&self, word: &str) -> Option<u32> {
            word.parse().ok()
        }

        fn calls(&self) -> Vec<&str> {
            vec!["MAP", "FREE", "COPY"]
        }

        fn can(&self, call: &str, wrong: FaultKind) -> bool {
            match wrong {
                FaultKind::Late(_) => call == "MAP",
                FaultKind::Leak => call == "FREE",
                _ => false,
            }
        }
    }

    fn parse(text: &str) -> Result<Plan<u32>, PlanError> {
        Plan::parse(text, &Calls3)
    }

    #[test]
    fn plan_round_trips_through_text() {
        let text = "MAP=12;MAP#3=5ms, FREE#2-4=leak,MAP=late:1s;*#7-=hang,,COPY = crash";
        let plan = parse(text).unwrap();
        let expected = Plan::default()
            .and(Some("MAP"), Calls::ALL, Effect::Fail(12))
            .and(Some("MAP"), Calls::one(3), Effect::Delay(Duration::from_millis(5)))
            .and(Some("FREE"), Calls { first: 2, last: 4 }, Effect::Misbehave(FaultKind::Leak))
            .and(
                Some("MAP"),
                Calls::ALL,
                Effect::Misbehave(FaultKind::Late(Duration::from_secs(1))),
            )
            .and(None, Calls::from(7), Effect::Misbehave(FaultKind::Hang))
            .and(Some("COPY"), Calls::ALL, Effect::Misbehave(FaultKind::Crash));
        assert_eq!(plan, expected);
        let written = "MAP=12;MAP#3=5000us;FREE#2-4=leak;MAP=late:1000000us;*#7-=hang;COPY=crash";
        assert_eq!(plan.to_string(), written);
        assert_eq!(parse(written).unwrap(), plan);
        assert!(parse(" ; ").unwrap().is_empty());
    }

    #[test]
    fn parse_rejects_invalid_rules() {
        for (rule, why) in [
            ("MAP", "CALL=EFFECT"),
            ("MAP#0=1", "counted from 1"),
            ("MAP#5-3=1", "counted from 1"),
            ("MAP#=1", "counted from 1"),
            ("MAP#-=1", "counted from 1"),
            ("MAPS=1", "MAP, FREE, COPY"),
            ("MAP=often", "neither an error"),
            ("MAP=late", "neither an error"),
            ("MAP=late:5", "neither an error"),
            ("MAP=us", "neither an error"),
            ("MAP=leak", "these can: FREE"),
            ("*=leak", "these can: FREE"),
            ("COPY=late:5ms", "these can: MAP"),
        ] {
            let error = parse(&format!("MAP=1,{rule}")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{rule:?}: ")), "{error}");
            assert!(error.contains(why), "{error}");
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
