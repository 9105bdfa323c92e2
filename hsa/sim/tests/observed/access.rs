//! Access of agents.

use crate::fixture::*;
use crate::rig::*;
use core::ptr::{null, null_mut, without_provenance_mut};

#[test]
fn set_access_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        v.check("before any map", r.set(base, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert_eq!(r.map(base, N, r.create(N)), OK);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        v.check("desc_cnt 0", r.set(base, N, &[]), INVALID_ARGUMENT);
        let set = r.vmem.hsa_amd_vmem_set_access;
        let null_list = unsafe { set(without_provenance_mut(base), N, null(), 1) };
        v.check("NULL desc", null_list, INVALID_ARGUMENT);
        let empty = [OK, INVALID_ARGUMENT, INVALID_ARGUMENT];
        v.check("size 0", r.set(base, 0, &v.gpu(0, RW)), empty);
        let agent = |handle| [(hsa_agent_t { handle }, RW)];
        v.check("agent 0", r.set(base, N, &agent(0)), INVALID_AGENT);
        // This crashed AMD's runtime.
        v.check("garbage agent", r.set(base, N, &agent(GARBAGE)), INVALID_AGENT);
        v.check("unreserved", r.set(0x1234_5000, N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.check("beyond", r.set(base, 5 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.check("inside", r.set(base + 4096, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert!(r.simulation.page(0, base).is_none());
        v.check("the first 4 KiB (GPU0)", r.set(base, 4096, &v.gpu(0, RW)), OK);
        assert!(r.simulation.page(0, base + N - 4096).is_some(), "the whole mapping is accessible");
        assert!(r.simulation.page(0, base + N).is_none(), "no other mapping is accessible");
        v.check("N + 4 KiB (GPU1)", r.set(base, N + 4096, &v.gpu(1, RW)), OK);
        assert!(
            r.simulation.page(1, base + 2 * N - 4096).is_some(),
            "both mappings are accessible"
        );
        v.check("and a tail", r.set(base, 3 * N, &v.cpu(RW)), INVALID_ALLOCATION);
        assert_eq!(readable(base), [true, false, false][v.index], "6.1.2 reserves memory");
        v.check("both, all agents", r.set(base, 2 * N, &v.all()), OK);
        v.check("again", r.set(base, 2 * N, &v.all()), OK);
        let both = |permission| [(r.gpus[0], permission), (r.cpus[0], permission)];
        v.check("RO", r.set(base, N, &both(RO)), OK);
        assert!(r.simulation.page(0, base).expect("mapped").writable, "only recorded");
        assert_eq!(r.get(base, r.gpus[0]), Ok(RO));
        assert_eq!(maps(base, N), [("r--s".to_owned(), N / KIB)]);
        v.check("WO for GPU0", r.set(base, N, &v.gpu(0, WO)), OK);
        v.check("9 for GPU0", r.set(base, N, &v.gpu(0, 9)), OK);
        assert_eq!(r.get(base, r.gpus[0]), Ok(9));
        v.check("NONE", r.set(base, N, &both(NONE)), OK);
        assert!(r.simulation.page(0, base).is_some(), "NONE does not revoke a GPU's access");
        assert_eq!(r.get(base, r.gpus[0]), Ok(NONE));
        assert_eq!(maps(base, N), [("---s".to_owned(), N / KIB)]);
        let twice = [(r.gpus[1], RW), (r.gpus[1], RO)];
        v.check("GPU1 twice", r.set(base, N, &twice), OK);
        assert_eq!(r.get(base, r.gpus[1]), Ok(RO), "the last one counts");
        v.check("GPU0 only", r.set(base + N, N, &v.gpu(0, RW)), OK);
        if v.index > 0 {
            // According to the source, extensions before 1.7 drop agents that are not listed.
            assert_eq!(r.get(base + N, r.gpus[1]), Ok(RW), "GPU1 keeps its access");
        }
    });
}

#[test]
fn get_access_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let gpu = r.gpus[0];
        let get = |address, agent| status(r.get(address, agent));
        v.check("before map", get(base, gpu), INVALID_ALLOCATION);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        assert_eq!(r.get(base + N, gpu), Ok(NONE), "mapped, no set_access yet");
        assert_eq!(r.set(base + N, N, &v.all()), OK);
        v.check("CPU agent", get(base + N, r.cpus[0]), INVALID_AGENT);
        v.check("agent 0", get(base + N, hsa_agent_t { handle: 0 }), INVALID_AGENT);
        let get_access = r.vmem.hsa_amd_vmem_get_access;
        let null_permissions =
            unsafe { get_access(without_provenance_mut(base + N), null_mut(), gpu) };
        v.check("NULL perms", null_permissions, INVALID_ARGUMENT);
        assert_eq!(r.get(base + N + N / 2, gpu), Ok(RW), "in the middle");
        assert_eq!(r.get(base + 2 * N - 1, gpu), Ok(RW), "at the last byte");
        assert_eq!(r.get(base + 2 * N, gpu), Ok(RW), "at the END address");
        v.check("one byte further", get(base + 2 * N + 1, gpu), INVALID_ALLOCATION);
        v.check("below", get(base + N - 1, gpu), INVALID_ALLOCATION);
    });
}
