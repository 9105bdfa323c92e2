//! If the runtime fails at a later descriptor of a list, the earlier descriptors stay in effect. A failed change of
//! access revokes the existing access.

use crate::amd_runtime::raw::{Fault, RO, RW, RawRuntime, SIZE};
use crate::amd_runtime::{fail_driver_calls, on_each};
use crate::machine::{Library, access};
use crate::process::{End, assert_inaccessible, in_child};
use crate::table::{FAILED_CHANGE_REVOKES_ACCESS, LIST_PARTLY_APPLIED};
use hsa_rocr::test::Fixture;
use hsa_vmm::vmm::{Probing, VmmOptions};
use hsa_vmm::{Access, Runtime};

/// Makes one change of a page table fail: `change` is its number in this process, counted from 1.
fn fail_page_table_change(change: u64) {
    fail_driver_calls(&format!("GEM_VA#{change}=ENOMEM"));
}

/// The number of page-table changes of `RawRuntime::start`, whose scratch memory is mapped for two GPUs.
const CHANGES_AT_START: u64 = 2;

#[test]
fn failed_list_is_partly_applied_on_the_runtime() {
    LIST_PARTLY_APPLIED.check_on_each_release(
        "partly_applied::failed_list_is_partly_applied_on_the_runtime",
        |fixture| {
            fail_page_table_change(CHANGES_AT_START + 2);
            let raw = RawRuntime::start(fixture);
            let (base, _) = raw.map_new_memory(SIZE, &[]);
            let list = [raw.gpus[0], raw.gpus[1]].map(|gpu| (gpu, RW));
            raw.set_access(base, SIZE, &list).unwrap_err();
            raw.read_by(raw.gpus[0], base).is_ok()
        },
    );
}

#[test]
fn failed_change_revokes_access_on_the_runtime() {
    let test = "partly_applied::failed_change_revokes_access_on_the_runtime";
    FAILED_CHANGE_REVOKES_ACCESS.check_on_each_release(test, |fixture| {
        // The first change grants access. The second change revokes this access. The third change, which fails, would
        // grant the access again.
        fail_page_table_change(CHANGES_AT_START + 3);
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[0], RW)]);
        raw.set_access(base, SIZE, &[(raw.gpus[0], RO)]).unwrap_err();
        raw.read_by(raw.gpus[0], base) == Err(Fault)
    });
}

/// `set_access` for the CPU and two GPUs changes two page tables. Each of these changes fails in turn. After the
/// failure, no agent has access.
#[test]
fn failed_list_is_rolled_back_through_the_library() {
    on_each("partly_applied::failed_list_is_rolled_back_through_the_library", |fixture| {
        for (change, gpu) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            let end = in_child(|| {
                fail_page_table_change(change);
                check_failing_list(fixture, gpu);
            });
            assert_eq!(end, End::Success, "change {change}, GPU {gpu}");
        }
    });
}

/// Opens the library without probes, whose driver calls would change the numbers of the test's own calls.
fn load_without_probes(fixture: &Fixture) -> Library {
    // SAFETY: the file is a fetched release of AMD's runtime.
    let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
    Library::open(runtime, VmmOptions::new().with_probing(Probing::Never))
}

/// Fails unless no agent has access after `set_access` has failed. Reads by only one GPU, because the runtime reports
/// only the first fault of a process.
fn check_failing_list(fixture: &Fixture, gpu: usize) {
    let library = load_without_probes(fixture);
    let (base, _) = library.map_new_memory(0, SIZE);
    let all_agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let list = all_agents.map(|agent| access(agent, Access::ReadWrite));
    library.vmm.set_access(base, SIZE, &list).unwrap_err();
    for agent in all_agents {
        assert_eq!(library.vmm.get_access(agent, base).unwrap(), Access::None);
    }
    assert_inaccessible(base.get(), SIZE, "after a failure");
    library.vmm.check().unwrap();
    assert_eq!(library.vmm.quarantined_ranges(), []);
    let raw = RawRuntime::start(fixture);
    assert_eq!(raw.read_by(raw.gpus[gpu], base.get()), Err(Fault));
    // The fault plan contains no further failure.
    library.vmm.set_access(base, SIZE, &list).unwrap();
}

/// Changes read-write access to read-only. The runtime revokes the old access, and then fails to grant the new access.
#[test]
fn failed_change_keeps_access_through_the_library() {
    on_each("partly_applied::failed_change_keeps_access_through_the_library", |fixture| {
        fail_page_table_change(3);
        let library = load_without_probes(fixture);
        let (base, _) = library.map_new_memory(0, SIZE);
        library.grant(base, SIZE, library.gpu(0), Access::ReadWrite);
        let read_only = [access(library.gpu(0), Access::Read)];
        library.vmm.set_access(base, SIZE, &read_only).unwrap_err();
        assert_eq!(library.vmm.get_access(library.gpu(0), base).unwrap(), Access::ReadWrite);
        library.vmm.check().unwrap();
        let raw = RawRuntime::start(fixture);
        raw.write_by(raw.gpus[0], base.get(), 7).expect("the GPU still has write access");
    });
}
