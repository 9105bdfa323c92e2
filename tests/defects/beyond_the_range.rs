//! `set_access` ignores the end of its range: a call for a part of a mapping changes the whole mapping.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{Fault, PAGE, RW, RawRuntime, SIZE};
use crate::machine::{Library, access, at};
use crate::table::{ACCESS_BEYOND_THE_RANGE, ACCESS_BEYOND_THE_SECOND};
use hsa_vmm::Access;
use hsa_vmm::error::Problem;

#[test]
fn end_of_range_is_ignored_on_the_runtime() {
    ACCESS_BEYOND_THE_RANGE.check_on_each_release(
        "beyond_the_range::end_of_range_is_ignored_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, _) = raw.map_new_memory(SIZE, &[]);
            raw.set_access(base, PAGE, &[(raw.gpus[0], RW)]).unwrap();
            raw.read_by(raw.gpus[0], base + SIZE - PAGE).is_ok()
        },
    );
}

#[test]
fn second_mapping_changes_on_the_runtime() {
    let test = "beyond_the_range::second_mapping_changes_on_the_runtime";
    ACCESS_BEYOND_THE_SECOND.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let base = raw.reserve(2 * SIZE).unwrap();
        for address in [base, base + SIZE] {
            raw.map(address, SIZE, 0, raw.create(SIZE).unwrap()).unwrap();
        }
        raw.set_access(base, SIZE + PAGE, &[(raw.gpus[0], RW)]).unwrap();
        raw.read_by(raw.gpus[0], base + 2 * SIZE - PAGE).is_ok()
    });
}

#[test]
fn partial_range_is_rejected_through_the_library() {
    on_each("beyond_the_range::partial_range_is_rejected_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let base = library.reserve(2 * SIZE);
        for address in [base, at(base, SIZE)] {
            library.map(address, SIZE, library.create(0, SIZE));
        }
        let (cpu, gpu) = (library.cpu(0), library.gpu(0));
        for size in [PAGE, SIZE - PAGE, SIZE + PAGE, 2 * SIZE - PAGE] {
            let requested = [cpu, gpu].map(|agent| access(agent, Access::ReadWrite));
            let error = library.vmm.set_access(base, size, &requested).unwrap_err();
            assert!(matches!(error.problem(), Some(Problem::SplitsMapping(_))), "{error}");
        }
        for address in [base, at(base, SIZE)] {
            assert_eq!(library.vmm.get_access(gpu, address).unwrap(), Access::None);
            crate::process::assert_inaccessible(address.get(), SIZE, "after rejected calls");
        }
        library.vmm.check().unwrap();
        let raw = RawRuntime::start(fixture);
        assert_eq!(raw.read_by(raw.gpus[0], base.get()), Err(Fault));
    });
}
