//! Mapping and unmapping.

use crate::fixture::*;
use crate::rig::*;
use core::ptr::without_provenance_mut;

#[test]
fn map_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let (first, second) = (r.create(N), r.create(N));
        v.check("NULL va", r.map(0, N, first), INVALID_ARGUMENT);
        v.check("size 0", r.map(base, 0, first), INVALID_ARGUMENT);
        v.check("handle 0", r.map(base, N, 0), INVALID_ARGUMENT);
        v.check("garbage handle", r.map(base, N, GARBAGE), INVALID_ARGUMENT);
        v.check("unreserved", r.map(0x1234_5000, N, first), INVALID_ARGUMENT);
        v.check("beyond the reservation", r.map(base + 3 * N, 2 * N, first), INVALID_ARGUMENT);
        let too_large = [OUT_OF_RESOURCES, OUT_OF_RESOURCES, INVALID_ARGUMENT];
        v.check("larger than the handle", r.map(base, 2 * N, first), too_large);
        v.check("size 4095", r.map(base, 4095, first), OK);
        v.check("unmap it", r.unmap(base, 4095), OK);
        v.check("va + 16", r.map(base + 16, 4096, first), [OK, OK, ERROR]);
        let set = r.set(base + 16, 4096, &v.gpu(0, RW));
        v.check("set_access at va + 16", set, [ERROR, ERROR, INVALID_ALLOCATION]);
        v.check("unmap it", r.unmap(base + 16, 4096), [OK, OK, INVALID_ALLOCATION]);
        v.check("map", r.map(base, N, first), OK);
        v.check("double map, same handle", r.map(base, N, first), INVALID_ARGUMENT);
        v.check("double map, other handle", r.map(base, N, second), INVALID_ARGUMENT);
        v.check("overlap the tail", r.map(base + N / 2, N, second), INVALID_ARGUMENT);
        v.check("same handle at a second va", r.map(base + N, N, first), OK);
        v.check("set_access on both", r.set(base, 2 * N, &v.cpu(RW)), OK);
        write(base, 77);
        assert_eq!(read(base + N), 77);
    });
}

#[test]
fn map_ignores_offset() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = (r.reserve(4 * N), r.create(N));
        v.check("the first half", r.map(base, N / 2, handle), OK);
        v.check("set_access", r.set(base, N / 2, &v.all()), OK);
        assert!(r.simulation.page(0, base + N / 2).is_none());
        v.check("the second half", r.map_at(base + N / 2, N / 2, N / 2, handle), OK);
        v.check("set_access", r.set(base + N / 2, N / 2, &v.all()), OK);
        assert_eq!(r.simulation.page(0, base + N / 2).expect("mapped").offset, 0);
        write(base + N / 2, 2);
        assert_eq!(read(base), 2, "in_offset is ignored");
        v.check("unmap second", r.unmap(base + N / 2, N / 2), OK);
        v.check("in_offset 100 GiB", r.map_at(base + N, N, 100 * GIB, handle), OK);
        v.check("unmap", r.unmap(base + N, N), OK);
        v.check("in_offset 3", r.map_at(base + N, N, 3, handle), OK);
    });
}

#[test]
fn unmap_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let map = |address| {
            assert_eq!(r.map(address, N, r.create(N)), OK);
            assert_eq!(r.set(address, N, &v.gpu(0, RW)), OK);
        };
        map(base);
        map(base + N);
        let half = [INVALID_ARGUMENT, INVALID_ARGUMENT, INVALID_ALLOCATION];
        v.check("half a mapping", r.unmap(base, N / 2), half);
        v.check("from the middle", r.unmap(base + N / 2, N / 2), INVALID_ALLOCATION);
        let both = r.unmap(base, 2 * N);
        v.check("two mappings", both, [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
        if both == OK {
            map(base);
            map(base + N);
        }
        v.check("an unmapped part", r.unmap(base + 2 * N, N), INVALID_ALLOCATION);
        v.check("size 0", r.unmap(base, 0), INVALID_ARGUMENT);
        v.check("NULL", r.unmap(0, N), INVALID_ARGUMENT);
        assert_eq!(r.set(base + N, N, &v.cpu(RW)), OK);
        v.check("GPU0 only", r.unmap(base, N), OK);
        assert_eq!(mapped_kib(base, N), N / KIB, "still reserved");
        v.check("the CPU too", r.unmap(base + N, N), OK);
        v.check("twice", r.unmap(base + N, N), INVALID_ALLOCATION);
        // 7.2.4 keeps the addresses; earlier versions leave a hole, in which a foreign mapping can
        // be created.
        let mapped = [0, 0, N / KIB][v.index];
        assert_eq!(mapped_kib(base + N, N), mapped);
        if mapped == 0 {
            foreign_mapping_is_lost(v, base);
        }
    });
}

/// Shows that a foreign mapping in a hole is overwritten by `set_access` and unmapped by
/// `address_free`.
fn foreign_mapping_is_lost(v: &Version, base: usize) {
    let r = &v.rig;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let hint = without_provenance_mut(base + N);
    let foreign = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + N, "inside the reservation");
    write(foreign, 5);
    let elsewhere = r.try_reserve(N, base + N, 0, 0).expect("other addresses");
    assert_ne!(elsewhere, base + N);
    v.check("map over the foreign", r.map(base + N, N, r.create(N)), OK);
    v.check("set_access CPU", r.set(base + N, N, &v.cpu(RW)), OK);
    assert_eq!(read(foreign), 0, "the value 5 is overwritten");
    assert_eq!(r.unmap(base + N, N), OK);
    let foreign = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + N);
    v.check("address_free", r.free(base, 4 * N), OK);
    assert_eq!(mapped_kib(foreign, N), 0, "the foreign mapping's memory is lost");
}

#[test]
fn remapped_memory_keeps_contents() {
    on_each(|v| {
        let r = &v.rig;
        let (base, first) = r.mapped(N, &v.all());
        write(base, 1);
        assert_eq!(r.unmap(base, N), OK);
        let second = r.create(N);
        assert_eq!(r.map(base, N, second), OK);
        assert_eq!(r.set(base, N, &v.all()), OK);
        assert_eq!(read(base), 0, "fresh memory");
        assert_eq!(r.unmap(base, N), OK);
        assert_eq!(r.map(base, N, first), OK);
        assert_eq!(r.set(base, N, &v.all()), OK);
        assert_eq!(read(base), 1, "the handle keeps the contents");
    });
}
