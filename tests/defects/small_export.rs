//! Memory of less than 2 MiB that is exported for IPC by the driver's own method. It shares a block with other memory.

use crate::amd_runtime::raw::{PAGE, RawRuntime};
use crate::amd_runtime::set_variable;
use crate::table::SMALL_EXPORT_LEAKS_BLOCK;
use hsa_rocr::test::Fixture;

/// The size of the runtime's blocks.
const BLOCK: usize = 2 << 20;

/// Exports and frees memory more often than the GPU has blocks, while other memory of the same size exists. Returns
/// whether the runtime runs out of memory.
fn leaks_memory(fixture: &Fixture, size: usize) -> bool {
    set_variable("HSA_ENABLE_IPC_MODE_LEGACY", "1");
    set_variable("HSA_KFD", "gpus=1,vram=64MiB");
    let raw = RawRuntime::start(fixture);
    let round = || {
        let other = raw.allocate(size)?;
        let (exported, _) = raw.share(size)?;
        raw.free_shared(exported)?;
        raw.free_shared(other)
    };
    (0..64).any(|_| round().is_err())
}

#[test]
fn small_export_leaks_its_block() {
    let test = "small_export::small_export_leaks_its_block";
    SMALL_EXPORT_LEAKS_BLOCK.check_on_each_release(test, |fixture| leaks_memory(fixture, PAGE));
}

#[test]
fn exported_block_is_released() {
    crate::amd_runtime::on_each("small_export::exported_block_is_released", |fixture| {
        assert!(!leaks_memory(fixture, BLOCK));
    });
}
