//! The expected outcome of a case with a known failure: it fails, fails sometimes, or is not run.

use crate::Status;
use crate::known::KnownFailure;
use crate::run_case::CaseResult;
use serde::Deserialize;
use std::num::NonZeroU32;

/// The expected outcome of a case with a known failure.
///
/// ```
/// use hsa_vmm_conformance::{KnownFailures, ExpectedOutcome};
///
/// let list: KnownFailures = r#"
/// [[expect]]
/// case = "ipc.open.twice"
/// outcome = "flake(3)"
/// kernel = "6.12.*"
/// reason = "the server answers late under load"
/// source = "ticket 4711"
/// "#.parse()?;
/// assert_eq!(list.entries()[0].outcome, ExpectedOutcome::Flake(3.try_into().unwrap()));
/// # Ok::<(), hsa_vmm_conformance::ExpectationListError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ExpectedOutcome {
    /// `fail`: the case fails. The failure does not count, and the report names the case if it passes.
    #[default]
    Fail,
    /// `flake(3)`: if the case fails, it is run again, up to this number of runs in total.
    Flake(NonZeroU32),
    /// `skip`: the case is not run.
    Skip,
}

impl TryFrom<String> for ExpectedOutcome {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let times = text.strip_prefix("flake(").and_then(|rest| rest.strip_suffix(')'));
        match (text.as_str(), times.map(str::parse)) {
            ("fail", _) => Ok(Self::Fail),
            ("skip", _) => Ok(Self::Skip),
            (_, Some(Ok(times))) => Ok(Self::Flake(times)),
            _ => Err(format!("`{text}` is none of `fail`, `skip` and `flake(3)`")),
        }
    }
}

/// The known failure of a case on a runtime, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation<'a>(pub Option<&'a KnownFailure>);

impl<'a> Expectation<'a> {
    /// Returns the entry if the case is expected to fail.
    pub fn failure(self) -> Option<&'a KnownFailure> {
        self.0.filter(|known| known.outcome == ExpectedOutcome::Fail)
    }

    /// Runs a case once, not at all for `skip`, or up to the given number of times for `flake`.
    pub fn attempt<E>(
        self,
        mut run: impl FnMut() -> Result<CaseResult, E>,
    ) -> Result<CaseResult, E> {
        match self.0 {
            Some(KnownFailure { outcome: ExpectedOutcome::Skip, reason, source, .. }) => {
                Ok(CaseResult::skipped(format!("expected: {reason} ({source})")))
            }
            Some(KnownFailure {
                outcome: ExpectedOutcome::Flake(times), reason, source, ..
            }) => {
                let mut result = run()?;
                let mut runs = 1;
                while result.status == Status::Fail && runs < times.get() {
                    runs += 1;
                    result = run()?;
                }
                if runs > 1 && result.status == Status::Pass {
                    result.detail = format!("passed when run {runs} times: {reason} ({source})");
                }
                Ok(result)
            }
            _ => run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KnownFailures;

    fn attempt(outcome: &str, results: &[Status]) -> (CaseResult, usize) {
        let list: KnownFailures = format!(
            "[[known]]\ncase = \"map.flags.refused\"\noutcome = \"{outcome}\"\nreason = \"a\"\nsource = \"b\""
        )
        .parse()
        .unwrap();
        let mut runs = 0;
        let result = Expectation(list.entries().first()).attempt(|| {
            let status = results[runs];
            runs += 1;
            Ok::<_, ()>(CaseResult { status, ..CaseResult::skipped(String::new()) })
        });
        (result.unwrap(), runs)
    }

    #[test]
    fn outcome_limits_how_often_a_case_runs() {
        use Status::{Fail, Pass, Skip};
        for (outcome, results, status, runs) in [
            ("fail", &[Fail][..], Fail, 1),
            ("skip", &[], Skip, 0),
            ("flake(3)", &[Pass], Pass, 1),
            ("flake(3)", &[Fail, Fail, Pass], Pass, 3),
            ("flake(2)", &[Fail, Fail], Fail, 2),
            ("flake(2)", &[Fail, Skip], Skip, 2),
        ] {
            let (result, actual_runs) = attempt(outcome, results);
            assert_eq!((result.status, actual_runs), (status, runs), "{outcome}");
        }
        assert!(attempt("flake(2)", &[Fail, Pass]).0.detail.contains("2 times: a (b)"));
    }
}
