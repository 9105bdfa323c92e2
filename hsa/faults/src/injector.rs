//! Decides for each call which faults apply.

use crate::effect::{Effect, FaultKind};
use crate::plan::Plan;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

thread_local! {
    /// The index of the rule of the last call of this thread that misbehaves.
    static RULE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A plan with a counter of calls for each rule.
#[derive(Debug)]
pub struct Injector<C> {
    plan: Plan<C>,
    counters: Vec<AtomicU64>,
    reporter: Option<Reporter>,
}

/// Reports each rule once, when it first affects a call.
struct Reporter {
    report: Box<dyn Fn(usize) + Send + Sync>,
    reported: Vec<AtomicBool>,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("reported", &self.reported).finish_non_exhaustive()
    }
}

/// The faults of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection<C> {
    delay: Duration,
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
        let counters = plan.rules.iter().map(|_| AtomicU64::new(0)).collect();
        Self { plan, counters, reporter: None }
    }

    /// Sets the function that receives the number of each rule, counted from 1, when the rule first affects a call.
    #[must_use]
    pub fn with_reporter(mut self, report: impl Fn(usize) + Send + Sync + 'static) -> Self {
        let reported = self.plan.rules.iter().map(|_| AtomicBool::new(false)).collect();
        self.reporter = Some(Reporter { report: Box::new(report), reported });
        self
    }

    /// Returns whether the plan has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }
}

impl<C: Copy> Injector<C> {
    /// Counts a call of this name and returns its faults.
    #[must_use]
    pub fn count_call(&self, name: &str) -> Injection<C> {
        let mut injection = Injection { delay: Duration::ZERO, outcome: Ok(None) };
        for (index, (rule, counter)) in self.plan.rules.iter().zip(&self.counters).enumerate() {
            if !rule.call.as_deref().is_none_or(|call| applies_to(name, call)) {
                continue;
            }
            if !rule.occurrences.contains(counter.fetch_add(1, Ordering::Relaxed) + 1) {
                continue;
            }
            match rule.effect {
                Effect::Delay(delay) => injection.delay = injection.delay.saturating_add(delay),
                _ if !matches!(injection.outcome, Ok(None)) => continue,
                Effect::Fail(code) => injection.outcome = Err(code),
                Effect::Misbehave(fault) => {
                    injection.outcome = Ok(Some(fault));
                    RULE.set(Some(index));
                    if fault.is_conditional() {
                        continue;
                    }
                }
            }
            if let Some(reporter) = &self.reporter {
                reporter.report_once(index);
            }
        }
        injection
    }

    /// Reports that the fault of this thread's call has changed the call. Only for faults that change only some calls
    /// ([`FaultKind::is_conditional`]); others are reported when the call is counted.
    pub fn report_effect(&self) {
        if let (Some(reporter), Some(index)) = (&self.reporter, RULE.get()) {
            reporter.report_once(index);
        }
    }
}

impl Reporter {
    /// Reports a rule, unless it was reported before.
    fn report_once(&self, index: usize) {
        let Some(reported) = self.reported.get(index) else { return };
        if !reported.load(Ordering::Relaxed) && !reported.swap(true, Ordering::Relaxed) {
            (self.report)(index + 1);
        }
    }
}

/// Returns whether `name` is `call` or an operation of `call`, such as `GEM_VA.MAP` of `GEM_VA`.
fn applies_to(name: &str, call: &str) -> bool {
    name.strip_prefix(call).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl<C> Injection<C> {
    /// Returns the planned error of the call, if any.
    #[must_use]
    pub fn error(&self) -> Option<&C> {
        self.outcome.as_ref().err()
    }

    /// Returns the planned delay of the call.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns whether the call returns. A call with the planned fault `hang` or `crash` does not.
    #[must_use]
    pub fn returns(&self) -> bool {
        !matches!(self.outcome, Ok(Some(FaultKind::Hang | FaultKind::Crash)))
    }

    /// Sleeps for the planned delay, then returns the planned misbehaviour. Does not return for
    /// `hang` and `crash`.
    ///
    /// # Errors
    /// The planned error code.
    pub fn apply(self) -> Result<Option<FaultKind>, C> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
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
    use crate::plan::CallNumbers;

    fn injector_of(rules: &[(Option<&str>, CallNumbers, Effect<u32>)]) -> Injector<u32> {
        let plan = Plan::default();
        Injector::new(rules.iter().fold(plan, |plan, rule| plan.with_rule(rule.0, rule.1, rule.2)))
    }

    #[test]
    fn each_rule_counts_its_own_calls() {
        let second_and_third = CallNumbers { first: 2, last: 3 };
        let injector = injector_of(&[
            (Some("MAP"), CallNumbers { first: 1, last: 2 }, Effect::Fail(5)),
            (Some("MAP"), second_and_third, Effect::Fail(7)),
            (Some("FREE"), CallNumbers::starting_at(2), Effect::Misbehave(FaultKind::Leak)),
            (None, CallNumbers::single(7), Effect::Misbehave(FaultKind::Lost)),
        ]);
        let maps = [(); 4].map(|()| injector.count_call("MAP").apply());
        assert_eq!(maps, [Err(5), Err(5), Err(7), Ok(None)]);
        let frees = [(); 2].map(|()| injector.count_call("FREE").apply());
        assert_eq!(frees, [Ok(None), Ok(Some(FaultKind::Leak))]);
        assert_eq!(
            injector.count_call("COPY").apply(),
            Ok(Some(FaultKind::Lost)),
            "the seventh of all calls"
        );
        assert_eq!(injector.count_call("COPY").apply(), Ok(None));
    }

    #[test]
    fn rule_for_call_applies_to_its_operations() {
        let rule = |call, code| (Some(call), CallNumbers::starting_at(2), Effect::Fail(code));
        let injector = injector_of(&[rule("VA.MAP", 1), rule("VA", 2)]);
        let calls = ["VA.MAP", "VA.UNMAP", "VAST", "VA.MAP"];
        let results = calls.map(|call| injector.count_call(call).apply());
        assert_eq!(results, [Ok(None), Err(2), Ok(None), Err(1)]);
    }

    #[test]
    fn each_effective_rule_is_reported_once() {
        let fail = Effect::Fail(5);
        let injector = injector_of(&[
            (Some("FREE"), CallNumbers::ALL, fail),
            (Some("MAP"), CallNumbers::starting_at(2), fail),
            (Some("MAP"), CallNumbers::starting_at(2), Effect::Fail(6)),
        ]);
        let reported = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let list = reported.clone();
        let injector = injector.with_reporter(move |rule| list.lock().unwrap().push(rule));
        for _ in 0..3 {
            let _ = injector.count_call("MAP");
        }
        assert_eq!(
            *reported.lock().unwrap(),
            [2],
            "the first rule matches no call, and the second overrides the third"
        );
    }

    #[test]
    fn conditional_fault_is_reported_by_its_code() {
        let rule = |fault| (Some("MAP"), CallNumbers::single(1), Effect::Misbehave(fault));
        let injector = injector_of(&[rule(FaultKind::Wide), rule(FaultKind::Lost)]);
        let (sender, reported) = std::sync::mpsc::channel();
        let injector = injector.with_reporter(move |rule| sender.send(rule).unwrap());
        let _ = injector.count_call("MAP");
        assert!(reported.try_recv().is_err(), "the call may be unchanged");
        injector.report_effect();
        injector.report_effect();
        assert_eq!(reported.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn delays_add_up() {
        let delay = |micros| Effect::Delay(Duration::from_micros(micros));
        let injector = injector_of(&[
            (Some("MAP"), CallNumbers::single(2), delay(20_000)),
            (None, CallNumbers::starting_at(2), delay(5)),
        ]);
        let delays = [0, 20_005, 5].map(Duration::from_micros);
        assert_eq!([(); 3].map(|()| injector.count_call("MAP").delay), delays);
        let longest = (None, CallNumbers::ALL, Effect::Delay(Duration::MAX));
        assert_eq!(
            injector_of(&[longest, longest]).count_call("MAP").delay,
            Duration::MAX,
            "no overflow"
        );
        let began = std::time::Instant::now();
        assert_eq!(
            injector_of(&[(None, CallNumbers::ALL, delay(20_000))]).count_call("MAP").apply(),
            Ok(None)
        );
        assert!(began.elapsed() >= Duration::from_millis(20));
    }
}
