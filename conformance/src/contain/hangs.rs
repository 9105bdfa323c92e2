//! Native functions that hang repeatedly. After several hangs in a function, a shorter time limit applies to the
//! function.

use crate::run_case::Lost;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of hangs after which a function is known to hang.
const THRESHOLD: usize = 3;

/// The time limit of a case while it is in a function that is known to hang.
pub(super) const REDUCED_LIMIT: Duration = Duration::from_secs(1);

/// The number of hangs in each function.
#[derive(Debug, Default)]
pub(super) struct Hangs(BTreeMap<String, usize>);

impl Hangs {
    /// Counts a hang; ignores a crash. Returns the function if this hang reaches the threshold.
    pub fn count<'a>(&mut self, lost: &'a Lost) -> Option<&'a str> {
        if !lost.is_hang() {
            return None;
        }
        let function = running_function(lost.last_call.as_deref()?)?;
        let times = self.0.entry(function.to_owned()).or_default();
        *times += 1;
        (*times == THRESHOLD).then_some(function)
    }

    /// Returns whether any function is known to hang.
    pub fn has_known_function(&self) -> bool {
        self.0.values().any(|times| *times >= THRESHOLD)
    }

    /// Returns whether the last native call is still running, in a function that is known to hang.
    pub fn is_known_to_hang(&self, last_call: Option<&str>) -> bool {
        let times = last_call.and_then(running_function).and_then(|function| self.0.get(function));
        times.is_some_and(|times| *times >= THRESHOLD)
    }
}

/// The function that starts a copy. The library waits for the copy itself, outside any function.
const COPY: &str = "hsa_amd_memory_async_copy";

/// Returns the function of the last call, if the call or the copy that it has started is still running.
fn running_function(last_call: &str) -> Option<&str> {
    let started = || last_call.strip_prefix("after ")?.split(' ').next();
    last_call.strip_prefix("in ").or_else(|| started().filter(|function| *function == COPY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_case::Ended;

    fn lost(how: Ended, last_call: &str) -> Lost {
        Lost { how, last_call: Some(last_call.to_owned()) }
    }

    #[test]
    fn copies_are_known_to_hang_after_their_call() {
        let mut hangs = Hangs::default();
        let after = "after hsa_amd_memory_async_copy (HSA_STATUS_SUCCESS (0x0))";
        let hung = lost(Ended::TimeLimit(1000), after);
        assert_eq!([(); 3].map(|()| hangs.count(&hung)), [None, None, Some(COPY)]);
        assert!(hangs.is_known_to_hang(Some(after)));
    }

    #[test]
    fn function_is_known_after_three_hangs() {
        let mut hangs = Hangs::default();
        let hung = |call| lost(Ended::TimeLimit(1000), call);
        for unreported in [
            lost(Ended::Signal("SIGSEGV".to_owned()), "in map"),
            hung("after map (HSA_STATUS_SUCCESS)"),
            Lost { how: Ended::TimeLimit(1), last_call: None },
            hung("in unmap"),
            hung("in map"),
            hung("in unmap"),
            hung("in map"),
        ] {
            assert_eq!(hangs.count(&unreported), None);
        }
        assert!(!hangs.has_known_function() && !hangs.is_known_to_hang(Some("in map")));
        assert_eq!(hangs.count(&hung("in map")), Some("map"));
        assert_eq!(hangs.count(&hung("in map")), None, "reported once");
        assert!(hangs.has_known_function() && hangs.is_known_to_hang(Some("in map")));
        for last_call in [None, Some("in unmap"), Some("after map (HSA_STATUS_SUCCESS)")] {
            assert!(!hangs.is_known_to_hang(last_call), "{last_call:?}");
        }
    }
}
