//! Reserving and freeing addresses.

use crate::fixture::*;
use crate::rig::*;

#[test]
fn reserve() {
    on_each(|v| {
        let r = &v.rig;
        let reserve = |size, hint, align, flags| status(r.try_reserve(size, hint, align, flags));
        v.says("size 0", reserve(0, 0, 0, 0), INVALID_ARGUMENT);
        v.says("size 4095", reserve(4095, 0, 0, 0), OUT_OF_RESOURCES);
        v.says("size 4096", reserve(4096, 0, 0, 0), OK);
        assert!(r.reserve(3 * MIB).is_multiple_of(2 * MIB), "aligned unasked");
        // 6.1.2 has no reserve_align; the probe ignored the alignment there.
        let refused = [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES];
        v.says("align 3000", reserve(N, 0, 3000, 0), refused);
        v.says("align 12288", reserve(N, 0, 12288, 0), refused);
        v.says("align 1024", reserve(N, 0, 1024, 0), refused);
        let aligned = r.try_reserve(N, 0, GIB, 0).expect("align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        v.says("flags 0xff", reserve(N, 0, 0, 0xfe), OK);
        v.says("64 TiB", reserve(64 << 40, 0, 0, 0), [OUT_OF_RESOURCES, OK, OK]);
        v.says("128 TiB", reserve(128 << 40, 0, 0, 0), OUT_OF_RESOURCES);
        let hint = 0x6000_0000_0000;
        assert_eq!(r.try_reserve(N, hint, 0, 0), Ok(hint), "a free hint");
        let elsewhere = r.try_reserve(N, hint, 0, 0).expect("a busy hint");
        assert_ne!(elsewhere, hint);
        let aligned = r.try_reserve(N, hint, GIB, 0).expect("a busy hint, align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        let odd = 0x6000_0400_1000;
        assert_eq!(r.try_reserve(N, odd, 2 * MIB, 0), Ok(odd), "misaligned, but the hint wins");
        let other =
            r.try_reserve(N, 0x6000_0800_0010, 0, 0).expect("a hint that is not page-aligned");
        assert!(other.is_multiple_of(2 * MIB));
        let expected = if v.index == 0 { "rw-p" } else { "---p" };
        assert_eq!(maps(hint, N), [(expected.to_owned(), N / KIB)]);
    });
}

#[test]
fn address_free() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(2 * N);
        v.says("NULL", r.free(0, N), INVALID_ARGUMENT);
        v.says("size 0", r.free(base, 0), INVALID_ARGUMENT);
        v.says("the wrong size", r.free(base, N), INVALID_ARGUMENT);
        v.says("from the middle", r.free(base + N, N), INVALID_ALLOCATION);
        v.says("an unreserved address", r.free(0x1234_5000, N), INVALID_ALLOCATION);
        let handle = r.create(N);
        assert_eq!(r.map(base, N, handle), OK);
        v.says("while mapped", r.free(base, 2 * N), RESOURCE_FREE);
        assert_eq!(r.unmap(base, N), OK);
        v.says("after unmap", r.free(base, 2 * N), OK);
        v.says("twice", r.free(base, 2 * N), INVALID_ALLOCATION);
    });
}

#[test]
fn adjacent_reservations() {
    on_each(|v| {
        let r = &v.rig;
        let one = r.try_reserve(N, 0x6100_0000_0000, 0, 0).expect("free");
        let two = r.try_reserve(N, one + N, 0, 0).expect("free");
        assert_eq!(two, one + N);
        let handle = r.create(2 * N);
        v.says("one handle across both", r.map(one, 2 * N, handle), INVALID_ARGUMENT);
        v.says("one in each", r.map(one, N, handle), OK);
        v.says("one in each", r.map(two, N, handle), OK);
        v.says("set_access across", r.set(one, 2 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("unmap across", r.unmap(one, 2 * N), [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
    });
}
