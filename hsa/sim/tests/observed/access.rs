//! Access of agents.

use crate::fixture::*;
use crate::setup::*;
use core::ptr::{null, null_mut, without_provenance_mut};

#[test]
fn set_access_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let base = setup.reserve(4 * SIZE);
        version.check(
            "before any map",
            setup.set(base, SIZE, &version.gpu(0, RW)),
            INVALID_ALLOCATION,
        );
        assert_eq!(setup.map(base, SIZE, setup.create(SIZE)), OK);
        assert_eq!(setup.map(base + SIZE, SIZE, setup.create(SIZE)), OK);
        version.check("no requests", setup.set(base, SIZE, &[]), INVALID_ARGUMENT);
        let set = setup.vmem.hsa_amd_vmem_set_access;
        let null_list = unsafe { set(without_provenance_mut(base), SIZE, null(), 1) };
        version.check("a null list of requests", null_list, INVALID_ARGUMENT);
        let empty = [OK, INVALID_ARGUMENT, INVALID_ARGUMENT];
        version.check("size 0", setup.set(base, 0, &version.gpu(0, RW)), empty);
        let agent = |handle| [(hsa_agent_t { handle }, RW)];
        version.check("agent 0", setup.set(base, SIZE, &agent(0)), INVALID_AGENT);
        // The next call crashes AMD's runtime.
        version.check(
            "an invalid agent handle",
            setup.set(base, SIZE, &agent(GARBAGE)),
            INVALID_AGENT,
        );
        version.check(
            "an unreserved address",
            setup.set(0x1234_5000, SIZE, &version.gpu(0, RW)),
            INVALID_ARGUMENT,
        );
        version.check(
            "beyond the reservation",
            setup.set(base, 5 * SIZE, &version.gpu(0, RW)),
            INVALID_ARGUMENT,
        );
        version.check(
            "from the middle of a mapping",
            setup.set(base + 4096, SIZE, &version.gpu(0, RW)),
            INVALID_ALLOCATION,
        );
        assert!(setup.simulation.page(0, base).is_none());
        version.check("the first 4 KiB (GPU0)", setup.set(base, 4096, &version.gpu(0, RW)), OK);
        assert!(
            setup.simulation.page(0, base + SIZE - 4096).is_some(),
            "the whole mapping is accessible"
        );
        assert!(setup.simulation.page(0, base + SIZE).is_none(), "no other mapping is accessible");
        version.check("SIZE + 4 KiB (GPU1)", setup.set(base, SIZE + 4096, &version.gpu(1, RW)), OK);
        assert!(
            setup.simulation.page(1, base + 2 * SIZE - 4096).is_some(),
            "both mappings are accessible"
        );
        version.check(
            "two mappings and an unmapped tail",
            setup.set(base, 3 * SIZE, &version.cpu(RW)),
            INVALID_ALLOCATION,
        );
        assert_eq!(
            readable(base),
            [true, false, false][version.index],
            "in 6.1.2, a reservation is readable memory"
        );
        version.check("both mappings, all agents", setup.set(base, 2 * SIZE, &version.all()), OK);
        version.check("the same access again", setup.set(base, 2 * SIZE, &version.all()), OK);
        let both = |permission| [(setup.gpus[0], permission), (setup.cpus[0], permission)];
        version.check("read-only for GPU0 and the CPU", setup.set(base, SIZE, &both(RO)), OK);
        assert!(setup.simulation.page(0, base).expect("mapped").writable, "only recorded");
        assert_eq!(setup.get(base, setup.gpus[0]), Ok(RO));
        assert_eq!(maps(base, SIZE), [("r--s".to_owned(), SIZE / KIB)]);
        version.check("write-only for GPU0", setup.set(base, SIZE, &version.gpu(0, WO)), OK);
        version.check(
            "the unknown permission 9 for GPU0",
            setup.set(base, SIZE, &version.gpu(0, 9)),
            OK,
        );
        assert_eq!(setup.get(base, setup.gpus[0]), Ok(9));
        version.check("no access for GPU0 and the CPU", setup.set(base, SIZE, &both(NONE)), OK);
        assert!(setup.simulation.page(0, base).is_some(), "NONE does not revoke a GPU's access");
        assert_eq!(setup.get(base, setup.gpus[0]), Ok(NONE));
        assert_eq!(maps(base, SIZE), [("---s".to_owned(), SIZE / KIB)]);
        let twice = [(setup.gpus[1], RW), (setup.gpus[1], RO)];
        version.check("GPU1 named twice", setup.set(base, SIZE, &twice), OK);
        assert_eq!(setup.get(base, setup.gpus[1]), Ok(RO), "the last request counts");
        version.check("GPU0 only", setup.set(base + SIZE, SIZE, &version.gpu(0, RW)), OK);
        if version.index > 0 {
            // Extensions before 1.7 revoke the access of agents that are not listed, if the call
            // changes a permission.
            assert_eq!(setup.get(base + SIZE, setup.gpus[1]), Ok(RW), "GPU1 keeps its access");
        }
    });
}

#[test]
fn get_access_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let base = setup.reserve(4 * SIZE);
        let gpu = setup.gpus[0];
        let get = |address, agent| status(setup.get(address, agent));
        version.check("before map", get(base, gpu), INVALID_ALLOCATION);
        assert_eq!(setup.map(base + SIZE, SIZE, setup.create(SIZE)), OK);
        assert_eq!(setup.get(base + SIZE, gpu), Ok(NONE), "mapped, no set_access yet");
        assert_eq!(setup.set(base + SIZE, SIZE, &version.all()), OK);
        version.check("CPU agent", get(base + SIZE, setup.cpus[0]), INVALID_AGENT);
        version.check("agent 0", get(base + SIZE, hsa_agent_t { handle: 0 }), INVALID_AGENT);
        let get_access = setup.vmem.hsa_amd_vmem_get_access;
        let null_permissions =
            unsafe { get_access(without_provenance_mut(base + SIZE), null_mut(), gpu) };
        version.check("a null pointer for the permission", null_permissions, INVALID_ARGUMENT);
        assert_eq!(setup.get(base + SIZE + SIZE / 2, gpu), Ok(RW), "in the middle");
        assert_eq!(setup.get(base + 2 * SIZE - 1, gpu), Ok(RW), "at the last byte");
        assert_eq!(setup.get(base + 2 * SIZE, gpu), Ok(RW), "at the address after the mapping");
        version.check("one byte further", get(base + 2 * SIZE + 1, gpu), INVALID_ALLOCATION);
        version.check("the byte before the mapping", get(base + SIZE - 1, gpu), INVALID_ALLOCATION);
    });
}
