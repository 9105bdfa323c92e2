//! The runtime's `get_access` succeeds for the first address after a mapping, and fails for a CPU.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE};
use crate::machine::{Library, access, at};
use crate::table::{ACCESS_OF_CPU_NOT_REPORTED, ACCESS_PAST_THE_END};
use hsa_vmm::Access;
use hsa_vmm::error::Problem;

#[test]
fn access_past_the_end_is_found_on_the_runtime() {
    ACCESS_PAST_THE_END.check_on_each_release(
        "past_the_end::access_past_the_end_is_found_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let base = raw.reserve(2 * SIZE).unwrap();
            raw.map(base, SIZE, 0, raw.create(SIZE).unwrap()).unwrap();
            raw.set_access(base, SIZE, &[(raw.gpus[0], RW)]).unwrap();
            raw.get_access(base + SIZE + 1, raw.gpus[0]).expect_err("the address is not mapped");
            raw.get_access(base + SIZE, raw.gpus[0]) == Ok(RW)
        },
    );
}

#[test]
fn cpu_access_is_not_reported_on_the_runtime() {
    ACCESS_OF_CPU_NOT_REPORTED.check_on_each_release(
        "past_the_end::cpu_access_is_not_reported_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, _) = raw.map_new_memory(SIZE, &[(raw.cpu, RW)]);
            raw.get_access(base, raw.cpu).is_err()
        },
    );
}

#[test]
fn access_past_the_end_fails_through_the_library() {
    on_each("past_the_end::access_past_the_end_fails_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let base = library.reserve(2 * SIZE);
        library.map(base, SIZE, library.create(0, SIZE));
        let (cpu, gpu) = (library.cpu(0), library.gpu(0));
        let requested = [access(cpu, Access::Read), access(gpu, Access::ReadWrite)];
        library.vmm.set_access(base, SIZE, &requested).unwrap();
        let end = at(base, SIZE);
        for agent in [cpu, gpu] {
            let error = library.vmm.get_access(agent, end).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::NotMapped(end)));
        }
        let last = at(base, SIZE - 1);
        assert_eq!(library.vmm.get_access(cpu, last).unwrap(), Access::Read);
        assert_eq!(library.vmm.get_access(gpu, last).unwrap(), Access::ReadWrite);
    });
}
