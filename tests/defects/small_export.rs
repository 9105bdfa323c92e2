//! Exported memory of less than 2 MiB. It shares a block with other memory.

use crate::amd_runtime::raw::{PAGE, RawRuntime};
use crate::amd_runtime::{on_each, set_variable};
use crate::attach::{LONG_TIMEOUT, open_ipc, share_between_processes, words};
use crate::process::End;
use crate::table::{FREE_SPOILS_OTHER_EXPORTS, SMALL_EXPORT_LEAKS_BLOCK};
use hsa_rocr::test::Fixture;
use hsa_vmm::PoolMemory;
use hsa_vmm::ipc::IpcHandle;

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
    on_each("small_export::exported_block_is_released", |fixture| {
        assert!(!leaks_memory(fixture, BLOCK));
    });
}

/// The status of an importer whose runtime rejected the handle.
const REJECTED: i32 = 9;

#[test]
fn free_spoils_other_handles_on_the_runtime() {
    let test = "small_export::free_spoils_other_handles_on_the_runtime";
    FREE_SPOILS_OTHER_EXPORTS.check_on_each_release(test, |fixture| {
        let export = || {
            let raw = RawRuntime::start(fixture);
            let (first, _) = raw.share(PAGE).unwrap();
            let (_, words) = raw.share(PAGE).unwrap();
            raw.free_shared(first).unwrap();
            (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
        };
        let import = |bytes, report_ready: &mut dyn FnMut()| {
            let raw = RawRuntime::start(fixture);
            report_ready();
            if raw.attach(words(bytes), PAGE).is_ok() { 0 } else { REJECTED }
        };
        match share_between_processes(LONG_TIMEOUT, export, import) {
            End::Failure(REJECTED) => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

#[test]
fn free_keeps_other_handles_through_the_library() {
    on_each("small_export::free_keeps_other_handles_through_the_library", |fixture| {
        let export = || {
            let (runtime, ipc) = open_ipc(fixture);
            let gpu = runtime.gpus().next().unwrap().id();
            let [first, second] =
                [(); 2].map(|()| PoolMemory::allocate(&runtime, gpu, PAGE).unwrap());
            ipc.get_mem_handle(first.address()).unwrap();
            let handle = ipc.get_mem_handle(second.address()).unwrap();
            first.free().unwrap();
            ((ipc, second), handle.to_bytes())
        };
        let import = |bytes: [u8; IpcHandle::SIZE], report_ready: &mut dyn FnMut()| {
            let (_runtime, ipc) = open_ipc(fixture);
            report_ready();
            ipc.open_mem_handle(&IpcHandle::from_bytes(&bytes), 0).unwrap();
            0
        };
        assert_eq!(share_between_processes(LONG_TIMEOUT, export, import), End::Success);
    });
}
