//! Mapping and unmapping.

use crate::fixture::*;
use crate::setup::*;
use core::ptr::without_provenance_mut;

#[test]
fn map_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let base = setup.reserve(4 * SIZE);
        let (first, second) = (setup.create(SIZE), setup.create(SIZE));
        version.check("a null address", setup.map(0, SIZE, first), INVALID_ARGUMENT);
        version.check("size 0", setup.map(base, 0, first), INVALID_ARGUMENT);
        version.check("handle 0", setup.map(base, SIZE, 0), INVALID_ARGUMENT);
        version.check("garbage handle", setup.map(base, SIZE, GARBAGE), INVALID_ARGUMENT);
        version.check(
            "an unreserved address",
            setup.map(0x1234_5000, SIZE, first),
            INVALID_ARGUMENT,
        );
        version.check(
            "beyond the reservation",
            setup.map(base + 3 * SIZE, 2 * SIZE, first),
            INVALID_ARGUMENT,
        );
        let too_large = [OUT_OF_RESOURCES, OUT_OF_RESOURCES, INVALID_ARGUMENT];
        version.check("larger than the handle", setup.map(base, 2 * SIZE, first), too_large);
        version.check("size 4095", setup.map(base, 4095, first), OK);
        version.check("unmap 4095 bytes", setup.unmap(base, 4095), OK);
        version.check(
            "an address that is not page-aligned",
            setup.map(base + 16, 4096, first),
            [OK, OK, ERROR],
        );
        let set = setup.set(base + 16, 4096, &version.gpu(0, RW));
        version.check("set_access at this address", set, [ERROR, ERROR, INVALID_ALLOCATION]);
        version.check(
            "unmap at this address",
            setup.unmap(base + 16, 4096),
            [OK, OK, INVALID_ALLOCATION],
        );
        version.check("map", setup.map(base, SIZE, first), OK);
        version.check("double map, same handle", setup.map(base, SIZE, first), INVALID_ARGUMENT);
        version.check("double map, other handle", setup.map(base, SIZE, second), INVALID_ARGUMENT);
        version.check(
            "a range that overlaps the end of a mapping",
            setup.map(base + SIZE / 2, SIZE, second),
            INVALID_ARGUMENT,
        );
        version.check(
            "the same handle at a second address",
            setup.map(base + SIZE, SIZE, first),
            OK,
        );
        version.check("set_access on both", setup.set(base, 2 * SIZE, &version.cpu(RW)), OK);
        write(base, 77);
        assert_eq!(read(base + SIZE), 77);
    });
}

#[test]
fn map_ignores_offset() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, handle) = (setup.reserve(4 * SIZE), setup.create(SIZE));
        version.check("the first half", setup.map(base, SIZE / 2, handle), OK);
        version.check("set_access", setup.set(base, SIZE / 2, &version.all()), OK);
        assert!(setup.simulation.page(0, base + SIZE / 2).is_none());
        version.check(
            "the second half",
            setup.map_at(base + SIZE / 2, SIZE / 2, SIZE / 2, handle),
            OK,
        );
        version.check("set_access", setup.set(base + SIZE / 2, SIZE / 2, &version.all()), OK);
        assert_eq!(setup.simulation.page(0, base + SIZE / 2).expect("mapped").offset, 0);
        write(base + SIZE / 2, 2);
        assert_eq!(read(base), 2, "the offset is ignored");
        version.check("unmap the second half", setup.unmap(base + SIZE / 2, SIZE / 2), OK);
        version.check("the offset 100 GiB", setup.map_at(base + SIZE, SIZE, 100 * GIB, handle), OK);
        version.check("unmap", setup.unmap(base + SIZE, SIZE), OK);
        version.check("the offset 3", setup.map_at(base + SIZE, SIZE, 3, handle), OK);
    });
}

#[test]
fn unmap_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let base = setup.reserve(4 * SIZE);
        let map = |address| {
            assert_eq!(setup.map(address, SIZE, setup.create(SIZE)), OK);
            assert_eq!(setup.set(address, SIZE, &version.gpu(0, RW)), OK);
        };
        map(base);
        map(base + SIZE);
        let half = [INVALID_ARGUMENT, INVALID_ARGUMENT, INVALID_ALLOCATION];
        version.check("half a mapping", setup.unmap(base, SIZE / 2), half);
        version.check(
            "from the middle",
            setup.unmap(base + SIZE / 2, SIZE / 2),
            INVALID_ALLOCATION,
        );
        let both = setup.unmap(base, 2 * SIZE);
        version.check("two mappings", both, [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
        if both == OK {
            map(base);
            map(base + SIZE);
        }
        version.check("an unmapped part", setup.unmap(base + 2 * SIZE, SIZE), INVALID_ALLOCATION);
        version.check("size 0", setup.unmap(base, 0), INVALID_ARGUMENT);
        version.check("a null address", setup.unmap(0, SIZE), INVALID_ARGUMENT);
        assert_eq!(setup.set(base + SIZE, SIZE, &version.cpu(RW)), OK);
        version.check("a mapping that only GPU 0 can access", setup.unmap(base, SIZE), OK);
        assert_eq!(mapped_kib(base, SIZE), SIZE / KIB, "still reserved");
        version.check("a mapping that the CPU can access, too", setup.unmap(base + SIZE, SIZE), OK);
        version.check("the same range again", setup.unmap(base + SIZE, SIZE), INVALID_ALLOCATION);
        // 7.2.4 keeps the addresses reserved. Earlier versions leave a hole, in which other code
        // can create a mapping.
        let mapped = [0, 0, SIZE / KIB][version.index];
        assert_eq!(mapped_kib(base + SIZE, SIZE), mapped);
        if mapped == 0 {
            foreign_mapping_is_lost(version, base);
        }
    });
}

/// Shows that other code loses a mapping that it creates in a hole: `set_access` overwrites the
/// mapping, and `address_free` unmaps it.
fn foreign_mapping_is_lost(version: &Version, base: usize) {
    let setup = &version.setup;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let hint = without_provenance_mut(base + SIZE);
    let foreign = unsafe { libc::mmap(hint, SIZE, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + SIZE, "inside the reservation");
    write(foreign, 5);
    let elsewhere = setup.try_reserve(SIZE, base + SIZE, 0, 0).expect("other addresses");
    assert_ne!(elsewhere, base + SIZE);
    version.check(
        "map over the foreign mapping",
        setup.map(base + SIZE, SIZE, setup.create(SIZE)),
        OK,
    );
    version.check("set_access for the CPU", setup.set(base + SIZE, SIZE, &version.cpu(RW)), OK);
    assert_eq!(read(foreign), 0, "the value 5 is overwritten");
    assert_eq!(setup.unmap(base + SIZE, SIZE), OK);
    let foreign = unsafe { libc::mmap(hint, SIZE, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + SIZE);
    version.check("address_free", setup.free(base, 4 * SIZE), OK);
    assert_eq!(mapped_kib(foreign, SIZE), 0, "the foreign mapping's memory is lost");
}

#[test]
fn remapped_memory_keeps_contents() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let (base, first) = setup.mapped(SIZE, &version.all());
        write(base, 1);
        assert_eq!(setup.unmap(base, SIZE), OK);
        let second = setup.create(SIZE);
        assert_eq!(setup.map(base, SIZE, second), OK);
        assert_eq!(setup.set(base, SIZE, &version.all()), OK);
        assert_eq!(read(base), 0, "fresh memory");
        assert_eq!(setup.unmap(base, SIZE), OK);
        assert_eq!(setup.map(base, SIZE, first), OK);
        assert_eq!(setup.set(base, SIZE, &version.all()), OK);
        assert_eq!(read(base), 1, "the handle keeps the contents");
    });
}
