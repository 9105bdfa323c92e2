//! Memory that is opened by IPC when it has been freed.

use crate::amd_runtime::raw::Raw;
use crate::amd_runtime::{on_each, set_variable};
use crate::process::{Child, End};
use crate::table::{FREED_MEMORY_OPENED, FREED_MEMORY_WAITED_FOR};
use hsa_rocr::test::Ground;
use hsa_vmm::ipc::{IpcError, Stale};
use hsa_vmm::{Ipc, IpcHandle, PoolMemory, Runtime};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What the runtime keeps for later when it is freed, and more than that.
const SMALL: usize = 2 << 20;
const LARGE: usize = 64 << 20;

/// How long the answer to one call may take: it comes at once or never.
const PATIENCE: Duration = Duration::from_secs(2);

/// Gives one process what another shared and freed: `export` gives the handle's bytes when the memory
/// is gone, `import` opens them after saying that it is about to. How the importer ended.
fn pass<const BYTES: usize, K>(
    export: impl FnOnce() -> (K, [u8; BYTES]),
    import: impl FnOnce([u8; BYTES], &mut dyn FnMut()) -> i32,
) -> End {
    // The usual way since ROCm 7; 6.1 knows none but the driver's own.
    set_variable("HSA_ENABLE_IPC_MODE_LEGACY", "0");
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    // Forked before there is a runtime.
    let importer = Child::start(|| {
        let mut bytes = [0; BYTES];
        theirs.read_exact(&mut bytes).unwrap();
        import(bytes, &mut || theirs.write_all(&[1]).unwrap())
    });
    drop(theirs);
    let (_exporter, bytes) = export();
    ours.write_all(&bytes).unwrap();
    ours.read_exact(&mut [0]).expect("it comes as far as that");
    importer.wait_for(PATIENCE)
}

/// How an importer ends that was let in.
const OPENED: i32 = 9;

fn on_the_runtime(ground: &Ground, size: usize) -> End {
    let export = || {
        let raw = Raw::start(ground);
        let (address, words) = raw.share(size).unwrap();
        raw.free_shared(address).unwrap();
        (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
    };
    let import = |bytes: [u8; 32], about_to: &mut dyn FnMut()| {
        let raw = Raw::start(ground);
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap());
        }
        about_to();
        if raw.attach(words, size).is_ok() { OPENED } else { 0 }
    };
    pass(export, import)
}

#[test]
fn waited_for_on_the_runtime() {
    let test = "freed_shared::waited_for_on_the_runtime";
    FREED_MEMORY_WAITED_FOR.is_as_recorded(test, |ground| match on_the_runtime(ground, LARGE) {
        End::Never => true,
        End::Well => false,
        end => panic!("{end:?}"),
    });
}

#[test]
fn opened_on_the_runtime() {
    let test = "freed_shared::opened_on_the_runtime";
    FREED_MEMORY_OPENED.is_as_recorded(test, |ground| match on_the_runtime(ground, SMALL) {
        End::Badly(OPENED) => true,
        // It is another defect.
        End::Well | End::Never => false,
        end => panic!("{end:?}"),
    });
}

fn open(ground: &Ground) -> (Runtime, Ipc) {
    let runtime = Runtime::load_from(ground.runtime()).unwrap();
    let ipc = Ipc::open(&runtime).unwrap();
    (runtime, ipc)
}

#[test]
fn through_the_library() {
    on_each("freed_shared::through_the_library", |ground| {
        for size in [SMALL, LARGE] {
            let export = || {
                let (runtime, ipc) = open(ground);
                let gpu = runtime.gpus().next().unwrap().id();
                let memory = PoolMemory::allocate(&runtime, gpu, size).unwrap();
                let handle = ipc.get_mem_handle(memory.address()).unwrap();
                drop(memory);
                (ipc, handle.to_bytes())
            };
            let import = |bytes: [u8; IpcHandle::SIZE], about_to: &mut dyn FnMut()| {
                let (_runtime, ipc) = open(ground);
                about_to();
                let error = ipc.open_mem_handle(&IpcHandle::from_bytes(&bytes), 0).unwrap_err();
                assert!(matches!(error, IpcError::Stale { stale: Stale::Freed, .. }), "{error:?}");
                0
            };
            assert_eq!(pass(export, import), End::Well, "{size}");
        }
    });
}
