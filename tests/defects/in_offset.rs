//! The runtime accepts `in_offset`, but ignores the value, and always maps the start of the memory.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE, load, store};
use crate::machine::{Library, at};
use crate::table::IN_OFFSET_IGNORED;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::Feature;

#[test]
fn in_offset_is_ignored_on_the_runtime() {
    IN_OFFSET_IGNORED.check_on_each_release(
        "in_offset::in_offset_is_ignored_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, memory) = (raw.reserve(SIZE).unwrap(), raw.create(SIZE).unwrap());
            let (half, second_address) = (SIZE / 2, base + SIZE / 2);
            raw.map(base, half, 0, memory).unwrap();
            raw.map(second_address, half, half, memory).unwrap();
            for address in [base, second_address] {
                raw.set_access(address, half, &[(raw.cpu, RW)]).unwrap();
            }
            store(second_address, 7);
            load(base) == 7
        },
    );
}

#[test]
fn in_offset_is_rejected_through_the_library() {
    on_each("in_offset::in_offset_is_rejected_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, memory) = (library.reserve(SIZE), library.create(0, SIZE));
        let half = SIZE / 2;
        library.map(base, half, memory);
        let before = (library.vmm.usage(), library.vmm.mappings());
        let error = library.vmm.map(at(base, half), half, half, memory).unwrap_err();
        let expected = ErrorKind::NotSupported(Feature::MapAtOffset(half));
        assert_eq!(*error.kind(), expected);
        assert_eq!((library.vmm.usage(), library.vmm.mappings()), before);
        library.vmm.check().unwrap();
    });
}
