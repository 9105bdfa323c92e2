//! AMD's runtime does not check the alignment of mappings, and does not always align reservations as requested.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{PAGE, RawRuntime, SIZE};
use crate::machine::{Library, MIB, at};
use crate::table::{HINT_OVERRIDES_ALIGNMENT, UNALIGNED_ADDRESS_MAPPED, UNALIGNED_SIZE_MAPPED};
use hsa_vmm::Reservation;
use hsa_vmm::error::{Argument, Problem};

#[test]
fn unaligned_address_is_mapped_on_the_runtime() {
    UNALIGNED_ADDRESS_MAPPED.check_on_each_release(
        "alignment::unaligned_address_is_mapped_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, memory) = (raw.reserve(2 * SIZE).unwrap(), raw.create(SIZE).unwrap());
            raw.map(base + 16, SIZE, 0, memory).is_ok()
        },
    );
}

#[test]
fn unaligned_size_is_mapped_on_the_runtime() {
    UNALIGNED_SIZE_MAPPED.check_on_each_release(
        "alignment::unaligned_size_is_mapped_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, memory) = (raw.reserve(SIZE).unwrap(), raw.create(SIZE).unwrap());
            raw.map(base, PAGE - 1, 0, memory).is_ok()
        },
    );
}

/// Returns the aligned start of a free range.
fn free_aligned_address(raw: &RawRuntime) -> usize {
    let base = raw.reserve(8 * MIB).unwrap();
    raw.free(base, 8 * MIB).unwrap();
    base.next_multiple_of(2 * MIB)
}

#[test]
fn hint_overrides_alignment_on_the_runtime() {
    HINT_OVERRIDES_ALIGNMENT.check_on_each_release(
        "alignment::hint_overrides_alignment_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let hint = free_aligned_address(&raw) + PAGE;
            let base = raw.reserve_near(SIZE, hint, 2 * MIB).unwrap();
            !base.is_multiple_of(2 * MIB)
        },
    );
}

#[test]
fn alignment_is_enforced_through_the_library() {
    on_each("alignment::alignment_is_enforced_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, memory) = (library.reserve(2 * SIZE), library.create(0, SIZE));
        let vmm = &library.vmm;
        let misaligned =
            [(at(base, 16), SIZE, Argument::Address), (base, PAGE - 1, Argument::Size)];
        for (address, size, argument) in misaligned {
            let error = vmm.map(address, size, 0, memory).unwrap_err();
            assert_eq!(error.argument(), Some(argument));
            assert!(matches!(error.problem(), Some(Problem::NotAligned { .. })), "{error}");
        }
        assert_eq!(vmm.mappings(), []);

        let free = free_aligned_address(&RawRuntime::start(fixture));
        let hint = hsa_vmm::Address::new(free + PAGE);
        for alignment in [2 * MIB, 64 * MIB] {
            let aligned = Reservation::builder(SIZE).aligned_to(alignment).near(hint).reserve(vmm);
            let address = aligned.unwrap().address().get();
            assert!(address.is_multiple_of(alignment), "{address:#x}");
        }
    });
}
