//! Makes the kernel driver refuse each call of an operation on buffers in turn. Lists the calls whose refusal
//! aborts AMD's runtime.

use crate::amd_runtime::driver_calls::driver_calls;
use crate::amd_runtime::fail_driver_calls;
use crate::machine::Library;
use crate::process::{End, descriptors, in_child};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_vmm::Error;
use std::fmt::Debug;

/// Operations, each with a kernel call. If the kernel refuses this call in this operation, AMD's runtime aborts the
/// process: the runtime asserts that granting a GPU access succeeds (defect `GRANT_WITHOUT_DESCRIPTOR_ABORTS`).
///
/// The library can check beforehand that the process may open one more file descriptor. It cannot predict other
/// refusals.
pub const ABORTS: [(&str, &str); 12] = [
    ("grant", "EXPORT_DMABUF"),
    ("grant", "PRIME_FD_TO_HANDLE"),
    ("map many", "EXPORT_DMABUF"),
    ("map many", "PRIME_FD_TO_HANDLE"),
    ("change", "EXPORT_DMABUF"),
    ("change", "PRIME_FD_TO_HANDLE"),
    ("revoke", "EXPORT_DMABUF"),
    ("revoke", "PRIME_FD_TO_HANDLE"),
    // These map memory again, and so grant access again.
    ("exchange", "EXPORT_DMABUF"),
    ("exchange", "PRIME_FD_TO_HANDLE"),
    ("relocate", "EXPORT_DMABUF"),
    ("relocate", "PRIME_FD_TO_HANDLE"),
];

/// Returns the entry of [`ABORTS`] for this call of this operation.
pub fn may_abort(name: &str, call: &str) -> Option<(&'static str, &'static str)> {
    ABORTS
        .into_iter()
        .find(|(operation, asserted)| name.starts_with(operation) && call.starts_with(asserted))
}

/// The buffers of a test.
pub trait Setup: Sized {
    /// The state that must not change when a call is refused.
    type State: Debug + PartialEq;

    fn new(library: Library) -> Self;

    fn library(&self) -> &Library;

    fn state(&self) -> Self::State;

    fn assert_contents(&self, context: &str);

    /// Frees the buffers, in any state.
    fn close(self, context: &str) -> Library;
}

pub type Operation<S> = fn(&mut S) -> Result<(), Error>;

/// The name of an operation, its name in [`ABORTS`], and the operation.
pub type NamedOperation<S> = (&'static str, &'static str, Operation<S>);

/// Refuses each driver call of each operation, in a process of its own. Checks that the operation fails and changes
/// nothing, or succeeds anyway.
pub fn refuse_each_call<S: Setup>(test: &str, operations: &[NamedOperation<S>], min_calls: usize) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let (mut tried, mut aborts, mut failures) = (0, 0, Vec::new());
        for &(name, name_in_aborts, operation) in operations {
            let start = || S::new(Library::load(fixture.runtime()));
            for call in driver_calls(start, |setup| operation(setup).unwrap()) {
                let context = format!("{}: {name}, {call}", fixture.release());
                let end = in_child(|| {
                    fail_driver_calls(&format!("{call}=ENOMEM"));
                    check_outcome_of_refusal(start(), operation, &context, &call);
                });
                tried += 1;
                let aborted =
                    end == End::Signal(libc::SIGABRT) && may_abort(name_in_aborts, &call).is_some();
                aborts += usize::from(aborted);
                if end != End::Success && !aborted {
                    failures.push((context, end));
                }
            }
        }
        println!("{}: {tried} refused calls, {aborts} aborts", fixture.release());
        assert_eq!(failures, [], "failures among {tried} refused calls");
        assert!(tried >= min_calls, "only {tried} calls were refused");
    });
}

fn check_outcome_of_refusal<S: Setup>(
    mut setup: S,
    operation: Operation<S>,
    context: &str,
    call: &str,
) {
    setup.library().vmm.check().unwrap();
    let (before, open_before) = (setup.state(), descriptors());
    if let Err(error) = operation(&mut setup) {
        println!("{context}: {error}");
        setup.library().vmm.check().unwrap();
        // A defect of the runtime: a failed map leaks the dma-buf that the driver refused to import.
        let leaked = descriptors() - open_before;
        let may_leak = usize::from(call.starts_with("PRIME_FD_TO_HANDLE"));
        assert!(leaked <= may_leak, "{context}: {leaked} descriptors");
        assert_eq!(setup.state(), before, "{context}");
        setup.assert_contents(context);
        operation(&mut setup).unwrap();
    }
    setup.close(context).assert_everything_freed();
}
