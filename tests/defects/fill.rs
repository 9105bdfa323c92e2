//! `hsa_amd_memory_fill` cannot fill virtual memory.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE};
use crate::machine::Library;
use crate::table::FILL_FAILS;
use hsa_vmm::Access;

#[test]
fn fill_fails_on_the_runtime() {
    FILL_FAILS.check_on_each_release("fill::fill_fails_on_the_runtime", |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[0], RW)]);
        raw.fill(base, 7, SIZE / 4).is_err() || raw.read_by(raw.gpus[0], base) != Ok(0x7_0000_0007)
    });
}

#[test]
fn fill_succeeds_through_the_library() {
    on_each("fill::fill_succeeds_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, _) = library.map_new_memory(1, SIZE);
        library.grant(base, SIZE, library.gpu(1), Access::ReadWrite);
        library.vmm.fill(base, 7, SIZE).unwrap();
        library.grant(base, SIZE, library.cpu(0), Access::Read);
        let mut bytes = vec![0; SIZE];
        library.vmm.read(base, &mut bytes).unwrap();
        assert!(bytes.chunks(4).all(|word| word == 7u32.to_ne_bytes()));
    });
}
