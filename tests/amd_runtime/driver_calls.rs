//! Lists the calls of the kernel driver that a function makes, so that a test can make each of them fail in turn.

use super::set_variable;
use crate::process::{End, in_child};
use std::collections::BTreeMap;
use std::path::Path;

/// The number of calls of each function of the driver, by name.
type Calls = BTreeMap<String, u64>;

/// Counts the calls in the driver's log, whose lines are `process:thread time device CALL arguments`.
fn count_calls(log: &Path) -> Calls {
    let mut calls = Calls::new();
    for line in std::fs::read_to_string(log).unwrap().lines() {
        let call = line.split(' ').nth(3).unwrap_or_default();
        *calls.entry(call.to_owned()).or_default() += 1;
    }
    calls
}

/// Returns whether tests leave out a call, because it has no effect on operations, or because no driver rejects it.
fn is_irrelevant(call: &str) -> bool {
    let irrelevant =
        ["GET_CLOCK_COUNTERS", "SET_EVENT", "WAIT_EVENTS", "FREE_MEMORY_OF_GPU", "MUNMAP"];
    irrelevant.contains(&call)
}

/// Calls `start` and then `function` in a child. Returns the relevant driver calls of `function`, as `CALL#n`: the n-th
/// call of that name in the process.
pub fn driver_calls<T>(start: impl Fn() -> T, function: impl Fn(&mut T)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (log, list) = (folder.path().join("log"), folder.path().join("list"));
    let end = in_child(|| {
        set_variable("HSA_KFD_LOG", log.to_str().unwrap());
        let mut state = start();
        let before = count_calls(&log);
        function(&mut state);
        let mut lines = String::new();
        for (call, count) in count_calls(&log) {
            for number in before.get(&call).unwrap_or(&0) + 1..=count {
                if !is_irrelevant(&call) {
                    lines += &format!("{call}#{number}\n");
                }
            }
        }
        std::fs::write(&list, lines).unwrap();
    });
    assert_eq!(end, End::Success, "the operation succeeds when nothing fails");
    std::fs::read_to_string(&list).unwrap().lines().map(str::to_owned).collect()
}
