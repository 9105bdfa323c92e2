//! Calls after the last `hsa_shut_down`, and in a forked child.

use crate::fixture::*;
use crate::rig::*;

#[test]
fn calls_after_shut_down_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        let (base, _) = r.mapped(N, &v.all());
        write(base, 1);
        let vram = r.vram[0];
        // 6.4.3 crashed here.
        v.check("shut_down with live mappings", r.shut_down(), OK);
        v.check("reserve", status(r.try_reserve(N, 0, 0, 0)), NOT_INITIALIZED);
        let create = r.try_create(vram, N, MEMORY_TYPE_PINNED, 0);
        v.check("create", status(create), NOT_INITIALIZED);
        // The older releases do not check, and 7.2.4 crashed.
        v.check("import", status(r.import(9999)), [INCOMPATIBLE, INCOMPATIBLE, NOT_INITIALIZED]);
        v.check("init again", r.init(), OK);
        v.check("reserve", status(r.try_reserve(N, 0, 0, 0)), OK);
        assert_eq!(read(base), 1, "the CPU can still read the old mapping");
    });
}

#[test]
fn calls_in_forked_child_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        let (base, _) = r.mapped(N, &v.all());
        succeeds_in_child(|| {
            write(base, 2);
            v.check("reserve", status(r.try_reserve(N, 0, 0, 0)), OUT_OF_RESOURCES);
            // 6.1.2 returned SUCCESS; the simulation rejects every call of a child.
            let create = r.try_create(r.vram[0], N, MEMORY_TYPE_PINNED, 0);
            v.check("create", status(create), OUT_OF_RESOURCES);
            v.check("init", r.init(), OUT_OF_RESOURCES);
        });
        assert_eq!(read(base), 2, "virtual memory is shared with forked children");
    });
}
