//! Calls after the last `hsa_shut_down`, and in a forked child.

use crate::fixture::*;
use crate::setup::*;

#[test]
fn calls_after_shut_down_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, _) = setup.mapped(SIZE, &version.all());
        write(base, 1);
        let vram = setup.vram[0];
        // 6.4.3 crashes here.
        version.check("shut_down with live mappings", setup.shut_down(), OK);
        version.check("reserve", status(setup.try_reserve(SIZE, 0, 0, 0)), NOT_INITIALIZED);
        let create = setup.try_create(vram, SIZE, MEMORY_TYPE_PINNED, 0);
        version.check("create", status(create), NOT_INITIALIZED);
        // 6.1.2 and 6.4.3 do not check whether the runtime is initialised. 7.2.4 crashes.
        version.check(
            "import",
            status(setup.import(9999)),
            [INCOMPATIBLE, INCOMPATIBLE, NOT_INITIALIZED],
        );
        version.check("init again", setup.init(), OK);
        version.check("reserve", status(setup.try_reserve(SIZE, 0, 0, 0)), OK);
        assert_eq!(read(base), 1, "the CPU can still read the old mapping");
    });
}

#[test]
fn calls_in_forked_child_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, _) = setup.mapped(SIZE, &version.all());
        succeeds_in_child(|| {
            write(base, 2);
            version.check("reserve", status(setup.try_reserve(SIZE, 0, 0, 0)), OUT_OF_RESOURCES);
            // 6.1.2 returns SUCCESS. The simulation rejects every call of a child.
            let create = setup.try_create(setup.vram[0], SIZE, MEMORY_TYPE_PINNED, 0);
            version.check("create", status(create), OUT_OF_RESOURCES);
            version.check("init", setup.init(), OUT_OF_RESOURCES);
        });
        assert_eq!(read(base), 2, "virtual memory is shared with forked children");
    });
}
