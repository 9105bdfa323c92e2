//! Makes each driver call of an operation on buffers fail in turn, except the calls that [`driver_calls`] leaves out.
//! Lists the driver calls whose failure makes AMD's runtime abort.

use crate::amd_runtime::driver_calls::driver_calls;
use crate::amd_runtime::fail_driver_calls;
use crate::machine::Library;
use crate::process::{End, descriptors, in_child};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_vmm::Error;
use std::fmt::Debug;

/// Pairs of an operation and a driver call. If the call fails during the operation, AMD's runtime aborts the process,
/// because the runtime asserts that granting a GPU access succeeds (defect `GRANT_WITHOUT_DESCRIPTOR_ABORTS`).
///
/// The library checks beforehand that the process may open one more file descriptor. The library cannot predict other
/// failures.
pub const ABORTS: [(&str, &str); 12] = [
    ("grant", "EXPORT_DMABUF"),
    ("grant", "PRIME_FD_TO_HANDLE"),
    ("map many", "EXPORT_DMABUF"),
    ("map many", "PRIME_FD_TO_HANDLE"),
    ("change", "EXPORT_DMABUF"),
    ("change", "PRIME_FD_TO_HANDLE"),
    ("revoke", "EXPORT_DMABUF"),
    ("revoke", "PRIME_FD_TO_HANDLE"),
    // `exchange` and `relocate` map memory again, and therefore grant access again.
    ("exchange", "EXPORT_DMABUF"),
    ("exchange", "PRIME_FD_TO_HANDLE"),
    ("relocate", "EXPORT_DMABUF"),
    ("relocate", "PRIME_FD_TO_HANDLE"),
];

/// Returns the entry of [`ABORTS`] for a driver call of an operation, if there is one.
pub fn may_abort(name: &str, call: &str) -> Option<(&'static str, &'static str)> {
    ABORTS
        .into_iter()
        .find(|(operation, asserted)| name.starts_with(operation) && call.starts_with(asserted))
}

/// The buffers of a test.
pub trait Setup: Sized {
    /// The state that must not change when a driver call fails.
    type State: Debug + PartialEq;

    fn new(library: Library) -> Self;

    fn library(&self) -> &Library;

    fn state(&self) -> Self::State;

    fn assert_contents(&self, context: &str);

    /// Frees the buffers, whatever state the operation has left.
    fn close(self, context: &str) -> Library;
}

pub type Operation<S> = fn(&mut S) -> Result<(), Error>;

/// The name of an operation, its name in [`ABORTS`], and the operation.
pub type NamedOperation<S> = (&'static str, &'static str, Operation<S>);

/// Makes each driver call of each operation fail, each in a process of its own. Checks that the operation fails and
/// changes nothing, succeeds anyway, or aborts where [`ABORTS`] lists the call.
pub fn fail_each_driver_call<S: Setup>(
    test: &str,
    operations: &[NamedOperation<S>],
    min_calls: usize,
) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let (mut tried, mut aborts, mut failures) = (0, 0, Vec::new());
        for &(name, name_in_aborts, operation) in operations {
            let start = || S::new(Library::load(fixture.runtime()));
            for call in driver_calls(start, |setup| operation(setup).unwrap()) {
                let context = format!("{}: {name}, {call}", fixture.release());
                let end = in_child(|| {
                    fail_driver_calls(&format!("{call}=ENOMEM"));
                    check_failed_call(start(), operation, &context, &call);
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
        println!("{}: {tried} failed calls, {aborts} aborts", fixture.release());
        assert_eq!(failures, [], "failures among {tried} failed calls");
        assert!(tried >= min_calls, "only {tried} calls failed");
    });
}

fn check_failed_call<S: Setup>(mut setup: S, operation: Operation<S>, context: &str, call: &str) {
    setup.library().vmm.check().unwrap();
    let (before, open_before) = (setup.state(), descriptors());
    if let Err(error) = operation(&mut setup) {
        println!("{context}: {error}");
        setup.library().vmm.check().unwrap();
        // A defect of the runtime: a failed map leaks the dma-buf that the driver has not imported.
        let leaked = descriptors() - open_before;
        let may_leak = usize::from(call.starts_with("PRIME_FD_TO_HANDLE"));
        assert!(leaked <= may_leak, "{context}: {leaked} descriptors");
        assert_eq!(setup.state(), before, "{context}");
        setup.assert_contents(context);
        operation(&mut setup).unwrap();
    }
    setup.close(context).assert_everything_freed();
}
