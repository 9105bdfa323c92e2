//! Reserving and freeing addresses.

use crate::fixture::*;
use crate::rig::*;

#[test]
fn reserve_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let reserve = |size, hint, align, flags| status(r.try_reserve(size, hint, align, flags));
        v.check("size 0", reserve(0, 0, 0, 0), INVALID_ARGUMENT);
        v.check("size 4095", reserve(4095, 0, 0, 0), OUT_OF_RESOURCES);
        v.check("size 4096", reserve(4096, 0, 0, 0), OK);
        assert!(
            r.reserve(3 * MIB).is_multiple_of(2 * MIB),
            "aligned without a requested alignment"
        );
        // 6.1.2 has no reserve_align: there the call ignores the alignment.
        let invalid_alignment = [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES];
        v.check("align 3000", reserve(N, 0, 3000, 0), invalid_alignment);
        v.check("align 12288", reserve(N, 0, 12288, 0), invalid_alignment);
        v.check("align 1024", reserve(N, 0, 1024, 0), invalid_alignment);
        let aligned = r.try_reserve(N, 0, GIB, 0).expect("align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        v.check("flags 0xfe", reserve(N, 0, 0, 0xfe), OK);
        v.check("64 TiB", reserve(64 << 40, 0, 0, 0), [OUT_OF_RESOURCES, OK, OK]);
        v.check("128 TiB", reserve(128 << 40, 0, 0, 0), OUT_OF_RESOURCES);
        let hint = 0x6000_0000_0000;
        assert_eq!(r.try_reserve(N, hint, 0, 0), Ok(hint), "a free hint");
        let ignored = r.try_reserve(N, hint, 0, 0).expect("a busy hint");
        assert_ne!(ignored, hint);
        let aligned = r.try_reserve(N, hint, GIB, 0).expect("a busy hint, align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        let odd = 0x6000_0400_1000;
        assert_eq!(
            r.try_reserve(N, odd, 2 * MIB, 0),
            Ok(odd),
            "the hint is used although misaligned"
        );
        let other =
            r.try_reserve(N, 0x6000_0800_0010, 0, 0).expect("a hint that is not page-aligned");
        assert!(other.is_multiple_of(2 * MIB));
        let expected = if v.index == 0 { "rw-p" } else { "---p" };
        assert_eq!(maps(hint, N), [(expected.to_owned(), N / KIB)]);
    });
}

#[test]
fn address_free_matches_amd() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(2 * N);
        v.check("NULL", r.free(0, N), INVALID_ARGUMENT);
        v.check("size 0", r.free(base, 0), INVALID_ARGUMENT);
        v.check("the wrong size", r.free(base, N), INVALID_ARGUMENT);
        v.check("from the middle", r.free(base + N, N), INVALID_ALLOCATION);
        v.check("an unreserved address", r.free(0x1234_5000, N), INVALID_ALLOCATION);
        let handle = r.create(N);
        assert_eq!(r.map(base, N, handle), OK);
        v.check("while mapped", r.free(base, 2 * N), RESOURCE_FREE);
        assert_eq!(r.unmap(base, N), OK);
        v.check("after unmap", r.free(base, 2 * N), OK);
        v.check("twice", r.free(base, 2 * N), INVALID_ALLOCATION);
    });
}

#[test]
fn calls_across_reservations_match_amd() {
    on_each(|v| {
        let r = &v.rig;
        let first = r.try_reserve(N, 0x6100_0000_0000, 0, 0).expect("free");
        let second = r.try_reserve(N, first + N, 0, 0).expect("free");
        assert_eq!(second, first + N);
        let handle = r.create(2 * N);
        v.check("one handle across both", r.map(first, 2 * N, handle), INVALID_ARGUMENT);
        v.check("one in each", r.map(first, N, handle), OK);
        v.check("one in each", r.map(second, N, handle), OK);
        v.check("set_access across", r.set(first, 2 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.check("unmap across", r.unmap(first, 2 * N), [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
    });
}
