//! Mapping and unmapping.

use crate::fixture::*;
use crate::rig::*;
use core::ptr::without_provenance_mut;

#[test]
fn map() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let (one, other) = (r.create(N), r.create(N));
        v.says("NULL va", r.map(0, N, one), INVALID_ARGUMENT);
        v.says("size 0", r.map(base, 0, one), INVALID_ARGUMENT);
        v.says("handle 0", r.map(base, N, 0), INVALID_ARGUMENT);
        v.says("garbage handle", r.map(base, N, GARBAGE), INVALID_ARGUMENT);
        v.says("unreserved", r.map(0x1234_5000, N, one), INVALID_ARGUMENT);
        v.says("beyond the reservation", r.map(base + 3 * N, 2 * N, one), INVALID_ARGUMENT);
        let too_large = [OUT_OF_RESOURCES, OUT_OF_RESOURCES, INVALID_ARGUMENT];
        v.says("larger than the handle", r.map(base, 2 * N, one), too_large);
        v.says("size 4095", r.map(base, 4095, one), OK);
        v.says("unmap it", r.unmap(base, 4095), OK);
        v.says("va + 16", r.map(base + 16, 4096, one), [OK, OK, ERROR]);
        let set = r.set(base + 16, 4096, &v.gpu(0, RW));
        v.says("set_access there", set, [ERROR, ERROR, INVALID_ALLOCATION]);
        v.says("unmap it", r.unmap(base + 16, 4096), [OK, OK, INVALID_ALLOCATION]);
        v.says("map", r.map(base, N, one), OK);
        v.says("double map, same handle", r.map(base, N, one), INVALID_ARGUMENT);
        v.says("double map, other handle", r.map(base, N, other), INVALID_ARGUMENT);
        v.says("overlap the tail", r.map(base + N / 2, N, other), INVALID_ARGUMENT);
        v.says("same handle at a second va", r.map(base + N, N, one), OK);
        v.says("set_access on both", r.set(base, 2 * N, &v.cpu(RW)), OK);
        write(base, 77);
        assert_eq!(read(base + N), 77);
    });
}

#[test]
fn map_ignores_offset() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = (r.reserve(4 * N), r.create(N));
        v.says("the first half", r.map(base, N / 2, handle), OK);
        v.says("set_access", r.set(base, N / 2, &v.all()), OK);
        assert!(r.simulation.page(0, base + N / 2).is_none());
        v.says("behind it", r.map_at(base + N / 2, N / 2, N / 2, handle), OK);
        v.says("set_access", r.set(base + N / 2, N / 2, &v.all()), OK);
        assert_eq!(r.simulation.page(0, base + N / 2).expect("mapped").offset, 0);
        write(base + N / 2, 2);
        assert_eq!(read(base), 2, "in_offset is ignored");
        v.says("unmap second", r.unmap(base + N / 2, N / 2), OK);
        v.says("in_offset 100 GiB", r.map_at(base + N, N, 100 * GIB, handle), OK);
        v.says("unmap", r.unmap(base + N, N), OK);
        v.says("in_offset 3", r.map_at(base + N, N, 3, handle), OK);
    });
}

#[test]
fn unmap() {
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
        v.says("half a mapping", r.unmap(base, N / 2), half);
        v.says("from the middle", r.unmap(base + N / 2, N / 2), INVALID_ALLOCATION);
        let two = r.unmap(base, 2 * N);
        v.says("two mappings", two, [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
        if two == OK {
            map(base);
            map(base + N);
        }
        v.says("an unmapped part", r.unmap(base + 2 * N, N), INVALID_ALLOCATION);
        v.says("size 0", r.unmap(base, 0), INVALID_ARGUMENT);
        v.says("NULL", r.unmap(0, N), INVALID_ARGUMENT);
        assert_eq!(r.set(base + N, N, &v.cpu(RW)), OK);
        v.says("GPU0 only", r.unmap(base, N), OK);
        assert_eq!(kib_present(base, N), N / KIB, "still reserved");
        v.says("the CPU too", r.unmap(base + N, N), OK);
        v.says("twice", r.unmap(base + N, N), INVALID_ALLOCATION);
        // 7.2.4 keeps the addresses; earlier versions leave a hole, in which a foreign mapping can
        // be created.
        let left = [0, 0, N / KIB][v.index];
        assert_eq!(kib_present(base + N, N), left);
        if left == 0 {
            foreign(v, base);
        }
    });
}

/// Shows the effect of generation A's hole on a foreign mapping.
fn foreign(v: &Version, base: usize) {
    let r = &v.rig;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let hint = without_provenance_mut(base + N);
    let foreign = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + N, "inside the reservation");
    write(foreign, 5);
    let again = r.try_reserve(N, base + N, 0, 0).expect("somewhere");
    assert_ne!(again, base + N);
    v.says("map over the foreign", r.map(base + N, N, r.create(N)), OK);
    v.says("set_access CPU", r.set(base + N, N, &v.cpu(RW)), OK);
    assert_eq!(read(foreign), 0, "it was 5");
    assert_eq!(r.unmap(base + N, N), OK);
    let foreign = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(foreign, base + N);
    v.says("address_free", r.free(base, 4 * N), OK);
    assert_eq!(kib_present(foreign, N), 0, "the foreign mapping's memory is lost");
}

#[test]
fn remap() {
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
        assert_eq!(read(base), 1, "contents kept by the handle");
    });
}
