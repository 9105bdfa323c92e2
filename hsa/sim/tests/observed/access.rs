//! Access of agents.

use crate::fixture::*;
use crate::rig::*;
use core::ptr::{null, null_mut, without_provenance_mut};

#[test]
fn set_access() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        v.says("before any map", r.set(base, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert_eq!(r.map(base, N, r.create(N)), OK);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        v.says("desc_cnt 0", r.set(base, N, &[]), INVALID_ARGUMENT);
        let set = r.vmem.hsa_amd_vmem_set_access;
        let nothing = unsafe { set(without_provenance_mut(base), N, null(), 1) };
        v.says("NULL desc", nothing, INVALID_ARGUMENT);
        let empty = [OK, INVALID_ARGUMENT, INVALID_ARGUMENT];
        v.says("size 0", r.set(base, 0, &v.gpu(0, RW)), empty);
        let agent = |handle| [(hsa_agent_t { handle }, RW)];
        v.says("agent 0", r.set(base, N, &agent(0)), INVALID_AGENT);
        // Crashed AMD's runtime.
        v.says("garbage agent", r.set(base, N, &agent(GARBAGE)), INVALID_AGENT);
        v.says("unreserved", r.set(0x1234_5000, N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("beyond", r.set(base, 5 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("inside", r.set(base + 4096, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert!(r.simulation.page(0, base).is_none());
        v.says("the first 4 KiB (GPU0)", r.set(base, 4096, &v.gpu(0, RW)), OK);
        assert!(r.simulation.page(0, base + N - 4096).is_some(), "the whole mapping");
        assert!(r.simulation.page(0, base + N).is_none(), "and no other");
        v.says("N + 4 KiB (GPU1)", r.set(base, N + 4096, &v.gpu(1, RW)), OK);
        assert!(r.simulation.page(1, base + 2 * N - 4096).is_some(), "both whole mappings");
        v.says("and a tail", r.set(base, 3 * N, &v.cpu(RW)), INVALID_ALLOCATION);
        assert_eq!(readable(base), [true, false, false][v.index], "6.1.2 reserves memory");
        v.says("both, all agents", r.set(base, 2 * N, &v.all()), OK);
        v.says("again", r.set(base, 2 * N, &v.all()), OK);
        let both = |permission| [(r.gpus[0], permission), (r.cpus[0], permission)];
        v.says("RO", r.set(base, N, &both(RO)), OK);
        assert!(r.simulation.page(0, base).expect("mapped").writable, "only recorded");
        assert_eq!(r.get(base, r.gpus[0]), Ok(RO));
        assert_eq!(maps(base, N), [("r--s".to_owned(), N / KIB)]);
        v.says("WO for GPU0", r.set(base, N, &v.gpu(0, WO)), OK);
        v.says("9 for GPU0", r.set(base, N, &v.gpu(0, 9)), OK);
        assert_eq!(r.get(base, r.gpus[0]), Ok(9));
        v.says("NONE", r.set(base, N, &both(NONE)), OK);
        assert!(r.simulation.page(0, base).is_some(), "NONE does not revoke a GPU's access");
        assert_eq!(r.get(base, r.gpus[0]), Ok(NONE));
        assert_eq!(maps(base, N), [("---s".to_owned(), N / KIB)]);
        let twice = [(r.gpus[1], RW), (r.gpus[1], RO)];
        v.says("GPU1 twice", r.set(base, N, &twice), OK);
        assert_eq!(r.get(base, r.gpus[1]), Ok(RO), "the last one counts");
        v.says("GPU0 only", r.set(base + N, N, &v.gpu(0, RW)), OK);
        if v.index > 0 {
            // According to the source, extensions before 1.7 drop agents that are not listed.
            assert_eq!(r.get(base + N, r.gpus[1]), Ok(RW), "GPU1 keeps its access");
        }
    });
}

#[test]
fn get_access() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let gpu = r.gpus[0];
        let get = |address, agent| status(r.get(address, agent));
        v.says("before map", get(base, gpu), INVALID_ALLOCATION);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        assert_eq!(r.get(base + N, gpu), Ok(NONE), "mapped, no set_access yet");
        assert_eq!(r.set(base + N, N, &v.all()), OK);
        v.says("CPU agent", get(base + N, r.cpus[0]), INVALID_AGENT);
        v.says("agent 0", get(base + N, hsa_agent_t { handle: 0 }), INVALID_AGENT);
        let ask = r.vmem.hsa_amd_vmem_get_access;
        let nowhere = unsafe { ask(without_provenance_mut(base + N), null_mut(), gpu) };
        v.says("NULL perms", nowhere, INVALID_ARGUMENT);
        assert_eq!(r.get(base + N + N / 2, gpu), Ok(RW), "in the middle");
        assert_eq!(r.get(base + 2 * N - 1, gpu), Ok(RW), "at the last byte");
        assert_eq!(r.get(base + 2 * N, gpu), Ok(RW), "at the END address");
        v.says("one further", get(base + 2 * N + 1, gpu), INVALID_ALLOCATION);
        v.says("below", get(base + N - 1, gpu), INVALID_ALLOCATION);
    });
}
