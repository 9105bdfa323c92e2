//! Reserving and freeing addresses.

use crate::fixture::*;
use crate::setup::*;

#[test]
fn reserve_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let reserve =
            |size, hint, align, flags| status(setup.try_reserve(size, hint, align, flags));
        version.check("size 0", reserve(0, 0, 0, 0), INVALID_ARGUMENT);
        version.check("size 4095", reserve(4095, 0, 0, 0), OUT_OF_RESOURCES);
        version.check("size 4096", reserve(4096, 0, 0, 0), OK);
        assert!(
            setup.reserve(3 * MIB).is_multiple_of(2 * MIB),
            "reserve aligns to 2 MiB without a requested alignment"
        );
        // 6.1.2 has no hsa_amd_vmem_address_reserve_align. Without that function, `try_reserve`
        // ignores the alignment.
        let invalid_alignment = [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES];
        version.check("align 3000", reserve(SIZE, 0, 3000, 0), invalid_alignment);
        version.check("align 12288", reserve(SIZE, 0, 12288, 0), invalid_alignment);
        version.check("align 1024", reserve(SIZE, 0, 1024, 0), invalid_alignment);
        let aligned = setup.try_reserve(SIZE, 0, GIB, 0).expect("align 1 GiB");
        assert!(version.index == 0 || aligned.is_multiple_of(GIB));
        version.check("flags 0xfe", reserve(SIZE, 0, 0, 0xfe), OK);
        version.check("64 TiB", reserve(64 << 40, 0, 0, 0), [OUT_OF_RESOURCES, OK, OK]);
        version.check("128 TiB", reserve(128 << 40, 0, 0, 0), OUT_OF_RESOURCES);
        let hint = 0x6000_0000_0000;
        assert_eq!(
            setup.try_reserve(SIZE, hint, 0, 0),
            Ok(hint),
            "free addresses at a hint must be used"
        );
        let elsewhere = setup
            .try_reserve(SIZE, hint, 0, 0)
            .expect("a reservation elsewhere, because the hint is in use");
        assert_ne!(elsewhere, hint);
        let aligned =
            setup.try_reserve(SIZE, hint, GIB, 0).expect("an aligned reservation elsewhere");
        assert!(version.index == 0 || aligned.is_multiple_of(GIB));
        let misaligned = 0x6000_0400_1000;
        assert_eq!(
            setup.try_reserve(SIZE, misaligned, 2 * MIB, 0),
            Ok(misaligned),
            "a misaligned hint must be used"
        );
        let other = setup
            .try_reserve(SIZE, 0x6000_0800_0010, 0, 0)
            .expect("a reservation elsewhere, because the hint is not page-aligned");
        assert!(other.is_multiple_of(2 * MIB));
        // 6.1.2 maps reserved addresses readable and writable.
        let expected = if version.index == 0 { "rw-p" } else { "---p" };
        assert_eq!(maps(hint, SIZE), [(expected.to_owned(), SIZE / KIB)]);
    });
}

#[test]
fn address_free_matches_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let base = setup.reserve(2 * SIZE);
        version.check("a null address", setup.free(0, SIZE), INVALID_ARGUMENT);
        version.check("size 0", setup.free(base, 0), INVALID_ARGUMENT);
        version.check("the wrong size", setup.free(base, SIZE), INVALID_ARGUMENT);
        version.check("from the middle", setup.free(base + SIZE, SIZE), INVALID_ALLOCATION);
        version.check("an unreserved address", setup.free(0x1234_5000, SIZE), INVALID_ALLOCATION);
        let handle = setup.create(SIZE);
        assert_eq!(setup.map(base, SIZE, handle), OK);
        version.check("while mapped", setup.free(base, 2 * SIZE), RESOURCE_FREE);
        assert_eq!(setup.unmap(base, SIZE), OK);
        version.check("after unmap", setup.free(base, 2 * SIZE), OK);
        version.check("free a second time", setup.free(base, 2 * SIZE), INVALID_ALLOCATION);
    });
}

#[test]
fn calls_across_reservations_match_amd() {
    run_on_versions(|version| {
        let setup = &version.setup;
        let first =
            setup.try_reserve(SIZE, 0x6100_0000_0000, 0, 0).expect("a reservation at the hint");
        let second =
            setup.try_reserve(SIZE, first + SIZE, 0, 0).expect("a reservation at the hint");
        assert_eq!(second, first + SIZE);
        let handle = setup.create(2 * SIZE);
        version.check(
            "one handle across both",
            setup.map(first, 2 * SIZE, handle),
            INVALID_ARGUMENT,
        );
        version.check("one in the first reservation", setup.map(first, SIZE, handle), OK);
        version.check("one in the second reservation", setup.map(second, SIZE, handle), OK);
        version.check(
            "set_access across both",
            setup.set(first, 2 * SIZE, &version.gpu(0, RW)),
            INVALID_ARGUMENT,
        );
        version.check(
            "unmap across both",
            setup.unmap(first, 2 * SIZE),
            [INVALID_ARGUMENT, INVALID_ARGUMENT, OK],
        );
    });
}
