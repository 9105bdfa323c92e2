//! AMD's runtime on the emulated kernel driver, in child processes that may crash.

#![allow(dead_code, reason = "each test binary uses a different part")]

pub mod driver_calls;
pub mod raw;

use crate::process::{Child, End, in_child};
use hsa_rocr::test::{Fixture, run_on_releases, run_on_with_timeout, uses_machine_driver};
use hsa_rocr::{Emulation, Release};
use std::time::Duration;

/// Calls `function` on one release, or on each release with `HSA_VMM_LONG=1`. The function runs with two emulated GPUs,
/// in a child that has no runtime yet. Fails unless the child succeeds.
pub fn on_each(test: &str, function: impl Fn(&Fixture)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        assert_eq!(in_child(|| function(fixture)), End::Success, "{}", fixture.release());
    });
}

/// Does the same as [`on_each`], with a longer time limit.
pub fn on_each_within(test: &str, time_limit: Duration, function: impl Fn(&Fixture)) {
    run_on_with_timeout(&Release::ALL, test, &Emulation::with_gpus(2), time_limit, |fixture| {
        let child = Child::start(|| {
            function(fixture);
            0
        });
        assert_eq!(child.wait_for(time_limit), End::Success, "{}", fixture.release());
    });
}

/// Modes of the emulated driver. In the first, changes of page tables take effect at once. In the second, the driver
/// never flushes the TLB by itself. In the third, in addition, the driver does not write page-table entries until the
/// library waits by the barrier. `split_bug` emulates a defect of amdgpu that `docs/kernel/forgotten_entries.c` shows.
pub const PAGE_TABLE_MODES: [&str; 3] =
    ["", "tlb=on,split_bug=on", "pte_delay=600s,tlb=on,split_bug=on"];

/// Returns the modes in which to test: all modes, or only the first if the tests use this machine's own driver.
pub fn page_table_modes() -> &'static [&'static str] {
    if uses_machine_driver() { &PAGE_TABLE_MODES[..1] } else { &PAGE_TABLE_MODES }
}

/// Sets an environment variable of this child. The child must not have opened a runtime yet.
pub fn set_variable(variable: &str, value: &str) {
    // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
    unsafe { std::env::set_var(variable, value) };
}

/// Makes calls of the kernel driver fail. With the plan `GEM_VA#3=ENOMEM`, the third `GEM_VA` call fails. With
/// `GEM_VA=ENOMEM`, every `GEM_VA` call fails.
pub fn fail_driver_calls(plan: &str) {
    set_variable("HSA_KFD_FAULTS", plan);
}
