//! Decides for each call which faults apply.

use crate::effect::{Effect, FaultKind};
use crate::plan::Plan;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A plan, and a counter of calls for each rule.
#[derive(Debug)]
pub struct Injector<C> {
    plan: Plan<C>,
    seen: Vec<AtomicU64>,
    record: Option<Record>,
}

/// What is called for each rule that has affected a call.
struct Record {
    note: Box<dyn Fn(usize) + Send + Sync>,
    happened: Vec<AtomicBool>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("happened", &self.happened).finish_non_exhaustive()
    }
}

/// The faults of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection<C> {
    time: Duration,
    outcome: Result<Option<FaultKind>, C>,
}

impl<C> Default for Injector<C> {
    fn default() -> Self {
        Self::new(Plan::default())
    }
}

impl<C> Injector<C> {
    /// Creates an injector with all counters at zero.
    #[must_use]
    pub fn new(plan: Plan<C>) -> Self {
        let seen = plan.rules.iter().map(|_| AtomicU64::new(0)).collect();
        Self { plan, seen, record: None }
    }

    /// Calls `note` with the number of a rule, counted from 1, when the rule affects a call for the first
    /// time.
    #[must_use]
    pub fn noting(mut self, note: impl Fn(usize) + Send + Sync + 'static) -> Self {
        let happened = self.plan.rules.iter().map(|_| AtomicBool::new(false)).collect();
        self.record = Some(Record { note: Box::new(note), happened });
        self
    }

    /// Returns whether the plan has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }
}

impl<C: Copy> Injector<C> {
    /// Counts a call of that name and returns its faults.
    #[must_use]
    pub fn count(&self, name: &str) -> Injection<C> {
        let mut injection = Injection { time: Duration::ZERO, outcome: Ok(None) };
        for (index, (rule, seen)) in self.plan.rules.iter().zip(&self.seen).enumerate() {
            if !rule.call.as_deref().is_none_or(|call| applies_to(name, call)) {
                continue;
            }
            if !rule.which.contain(seen.fetch_add(1, Ordering::Relaxed) + 1) {
                continue;
            }
            match rule.effect {
                Effect::Delay(more) => injection.time = injection.time.saturating_add(more),
                _ if !matches!(injection.outcome, Ok(None)) => continue,
                Effect::Fail(code) => injection.outcome = Err(code),
                Effect::Misbehave(wrong) => injection.outcome = Ok(Some(wrong)),
            }
            if let Some(record) = &self.record {
                record.add(index);
            }
        }
        injection
    }
}

impl Record {
    /// Notes a rule, once.
    fn add(&self, index: usize) {
        let Some(happened) = self.happened.get(index) else { return };
        if !happened.load(Ordering::Relaxed) && !happened.swap(true, Ordering::Relaxed) {
            (self.note)(index + 1);
        }
    }
}

/// Returns whether `name` is `call` or an operation of it: `GEM_VA.MAP` is one of `GEM_VA`.
fn applies_to(name: &str, call: &str) -> bool {
    name.strip_prefix(call).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl<C> Injection<C> {
    /// Returns the error of the call, if it is to fail.
    #[must_use]
    pub fn refused(&self) -> Option<&C> {
        self.outcome.as_ref().err()
    }

    /// Sleeps for the planned delay, then returns the planned misbehaviour. Does not return for
    /// `hang` and `crash`.
    ///
    /// # Errors
    /// The planned error code.
    pub fn apply(self) -> Result<Option<FaultKind>, C> {
        if !self.time.is_zero() {
            std::thread::sleep(self.time);
        }
        match self.outcome {
            Ok(Some(FaultKind::Hang)) => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            Ok(Some(FaultKind::Crash)) => std::process::abort(),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Calls;

    fn rules(rules: &[(Option<&str>, Calls, Effect<u32>)]) -> Injector<u32> {
        let plan = Plan::default();
        Injector::new(rules.iter().fold(plan, |plan, rule| plan.and(rule.0, rule.1, rule.2)))
    }

    #[test]
    fn each_rule_counts_its_own_calls() {
        let two = Calls { first: 2, last: 3 };
        let injector = rules(&[
            (Some("MAP"), Calls { first: 1, last: 2 }, Effect::Fail(5)),
            (Some("MAP"), two, Effect::Fail(7)),
            (Some("FREE"), Calls::from(2), Effect::Misbehave(FaultKind::Leak)),
            (None, Calls::one(7), Effect::Misbehave(FaultKind::Lost)),
        ]);
        let maps = [(); 4].map(|()| injector.count("MAP").apply());
        assert_eq!(maps, [Err(5), Err(5), Err(7), Ok(None)]);
        let frees = [(); 2].map(|()| injector.count("FREE").apply());
        assert_eq!(frees, [Ok(None), Ok(Some(FaultKind::Leak))]);
        assert_eq!(injector.count("COPY").apply(), Ok(Some(FaultKind::Lost)), "the seventh of all");
        assert_eq!(injector.count("COPY").apply(), Ok(None));
    }

    #[test]
    fn rule_for_call_applies_to_its_operations() {
        let all = |call, code| (Some(call), Calls::from(2), Effect::Fail(code));
        let injector = rules(&[all("VA.MAP", 1), all("VA", 2)]);
        let met = ["VA.MAP", "VA.UNMAP", "VAST", "VA.MAP"].map(|it| injector.count(it).apply());
        assert_eq!(met, [Ok(None), Err(2), Ok(None), Err(1)]);
    }

    #[test]
    fn each_rule_that_has_happened_is_noted_once() {
        let fail = Effect::Fail(5);
        let injector = rules(&[
            (Some("FREE"), Calls::ALL, fail),
            (Some("MAP"), Calls::from(2), fail),
            (Some("MAP"), Calls::from(2), Effect::Fail(6)),
        ]);
        let noted = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = noted.clone();
        let injector = injector.noting(move |rule| to.lock().unwrap().push(rule));
        for _ in 0..3 {
            let _ = injector.count("MAP");
        }
        assert_eq!(*noted.lock().unwrap(), [2], "not the first, and the third has no effect");
    }

    #[test]
    fn times_add_up() {
        let time = |micros| Effect::Delay(Duration::from_micros(micros));
        let injector =
            rules(&[(Some("MAP"), Calls::one(2), time(20_000)), (None, Calls::from(2), time(5))]);
        let times = [0, 20_005, 5].map(Duration::from_micros);
        assert_eq!([(); 3].map(|()| injector.count("MAP").time), times);
        let ever = (None, Calls::ALL, Effect::Delay(Duration::MAX));
        assert_eq!(rules(&[ever, ever]).count("MAP").time, Duration::MAX, "and no more");
        let began = std::time::Instant::now();
        assert_eq!(rules(&[(None, Calls::ALL, time(20_000))]).count("MAP").apply(), Ok(None));
        assert!(began.elapsed() >= Duration::from_millis(20));
    }
}
