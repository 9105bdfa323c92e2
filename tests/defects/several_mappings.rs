//! Calls on several mappings fail or abort. A call revokes the access of agents that it does not name.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RO, RW, RawRuntime, SIZE, store};
use crate::machine::{Library, access, at};
use crate::process::assert_inaccessible;
use crate::table::{ACCESS_OF_SEVERAL_ABORTS, UNMAP_OF_SEVERAL_FAILS, UNNAMED_AGENTS_LOSE_ACCESS};
use hsa_vmm::Access;

#[test]
fn unmap_of_two_fails_on_the_runtime() {
    let test = "several_mappings::unmap_of_two_fails_on_the_runtime";
    UNMAP_OF_SEVERAL_FAILS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let base = raw.reserve(2 * SIZE).unwrap();
        for address in [base, base + SIZE] {
            raw.map(address, SIZE, 0, raw.create(SIZE).unwrap()).unwrap();
        }
        raw.unmap(base, 2 * SIZE).is_err()
    });
}

/// On a release without the defect, one call grants all agents access to two mappings. The agents can then access both
/// mappings, but not the addresses after them.
#[test]
fn set_access_of_two_aborts_on_the_runtime() {
    let test = "several_mappings::set_access_of_two_aborts_on_the_runtime";
    ACCESS_OF_SEVERAL_ABORTS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let base = raw.reserve(3 * SIZE).unwrap();
        for number in 0..2 {
            raw.map(base + number * SIZE, SIZE, 0, raw.create(SIZE).unwrap()).unwrap();
        }
        raw.set_access(base, 2 * SIZE, &[(raw.gpus[0], RW), (raw.gpus[1], RW), (raw.cpu, RW)])
            .unwrap();
        for number in 0..2 {
            store(base + number * SIZE, number as u64 + 7);
            for &gpu in &raw.gpus {
                assert_eq!(raw.read_by(gpu, base + number * SIZE), Ok(number as u64 + 7));
            }
        }
        assert_inaccessible(base + 2 * SIZE, SIZE, "after the mappings");
        false
    });
}

#[test]
fn unnamed_agents_lose_access_on_the_runtime() {
    let test = "several_mappings::unnamed_agents_lose_access_on_the_runtime";
    UNNAMED_AGENTS_LOSE_ACCESS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[0], RW), (raw.gpus[1], RW)]);
        raw.set_access(base, SIZE, &[(raw.gpus[1], RO)]).unwrap();
        raw.get_access(base, raw.gpus[0]) != Ok(RW) && raw.read_by(raw.gpus[0], base).is_err()
    });
}

#[test]
fn one_call_spans_mappings_through_the_library() {
    on_each("several_mappings::one_call_spans_mappings_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let base = library.reserve(3 * SIZE);
        for number in 0..3 {
            library.map(at(base, number * SIZE), SIZE, library.create(number % 2, SIZE));
        }
        let agents = [library.gpu(0), library.cpu(0), library.gpu(1)];
        // Grants one agent after the other, then changes the last agent's access. No agent loses access.
        for agent in agents {
            vmm.set_access(base, 3 * SIZE, &[access(agent, Access::ReadWrite)]).unwrap();
        }
        vmm.set_access(base, 3 * SIZE, &[access(agents[2], Access::Read)]).unwrap();
        let raw = RawRuntime::start(fixture);
        for number in 0..3 {
            let address = at(base, number * SIZE);
            vmm.write(address, &(number as u64).to_ne_bytes()).unwrap();
            assert_eq!(vmm.get_access(agents[0], address).unwrap(), Access::ReadWrite);
            for gpu in raw.gpus.clone() {
                assert_eq!(raw.read_by(gpu, address.get()), Ok(number as u64));
            }
        }
        vmm.unmap(base, 2 * SIZE).unwrap();
        assert_eq!(vmm.usage().mappings, 1);
        raw.get_access(base.get(), raw.gpus[0])
            .expect_err("the runtime has unmapped the first two");
        assert_eq!(raw.get_access(at(base, 2 * SIZE).get(), raw.gpus[0]), Ok(RW));
    });
}
