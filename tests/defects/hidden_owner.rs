//! Copies to memory of another process, on a GPU that `ROCR_VISIBLE_DEVICES` hides from the importer.

use crate::amd_runtime::raw::RawRuntime;
use crate::amd_runtime::{on_each, set_variable};
use crate::attach::{LARGE, LONG_TIMEOUT, SHORT_TIMEOUT, open_ipc, share_between_processes, words};
use crate::process::End;
use crate::table::HIDDEN_OWNER_BLOCKS;
use hsa_vmm::PoolMemory;
use hsa_vmm::ipc::{IpcHandle, OpenedMemory};

/// Smaller copies, for example of 8 bytes, end.
const PAGE: usize = 4096;

/// Makes the runtime of this process, which has not started yet, see one GPU.
fn see_only(gpu: &str) {
    set_variable("ROCR_VISIBLE_DEVICES", gpu);
}

#[test]
fn copy_never_ends_on_the_runtime() {
    let test = "hidden_owner::copy_never_ends_on_the_runtime";
    HIDDEN_OWNER_BLOCKS.check_on_each_release(test, |fixture| {
        let export = || {
            see_only("1");
            let raw = RawRuntime::start(fixture);
            let (_, words) = raw.share(LARGE).unwrap();
            (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
        };
        let import = |bytes, report_ready: &mut dyn FnMut()| {
            see_only("0");
            let raw = RawRuntime::start(fixture);
            let address = raw.attach(words(bytes), LARGE).unwrap();
            report_ready();
            raw.copy(raw.gpus[0], address, address + LARGE / 2, PAGE).unwrap();
            0
        };
        match share_between_processes(SHORT_TIMEOUT, export, import) {
            End::TimedOut => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

#[test]
fn copy_ends_through_the_library() {
    on_each("hidden_owner::copy_ends_through_the_library", |fixture| {
        let export = || {
            see_only("1");
            let (runtime, ipc) = open_ipc(fixture);
            let gpu = runtime.gpus().next().unwrap().id();
            let memory = PoolMemory::allocate(&runtime, gpu, LARGE).unwrap();
            let bytes = ipc.get_mem_handle(memory.address()).unwrap().to_bytes();
            ((ipc, memory), bytes)
        };
        let import = |bytes: [u8; IpcHandle::SIZE], report_ready: &mut dyn FnMut()| {
            see_only("0");
            let (_runtime, ipc) = open_ipc(fixture);
            let opened = OpenedMemory::open(&ipc, &IpcHandle::from_bytes(&bytes)).unwrap();
            report_ready();
            opened.write(0, &[7; 64]).unwrap();
            let mut read = [0; 64];
            opened.read(0, &mut read).unwrap();
            assert_eq!(read, [7; 64]);
            0
        };
        assert_eq!(share_between_processes(LONG_TIMEOUT, export, import), End::Success);
    });
}
