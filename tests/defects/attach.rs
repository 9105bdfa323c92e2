//! Opening IPC handles of freed and of live memory.

use crate::amd_runtime::raw::RawRuntime;
use crate::amd_runtime::{on_each, set_variable};
use crate::process::{Child, End, descriptors};
use crate::table::{
    ATTACH_LEAVES_A_SOCKET, FREED_MEMORY_BLOCKS, FREED_MEMORY_OPENED, IPC_LENGTH_NOT_CHECKED,
};
use hsa_rocr::test::Fixture;
use hsa_vmm::error::{ErrorKind, UnavailableReason};
use hsa_vmm::ipc::IpcHandle;
use hsa_vmm::{Ipc, PoolMemory, Runtime};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The runtime caches memory of this size after a free.
const SMALL: usize = 2 << 20;
/// The runtime does not cache memory of this size.
pub const LARGE: usize = 64 << 20;

/// The time limit for a call that may never return. A successful call returns at once.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit for a call that returns.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Shares memory between two processes, and returns how the importer ended.
///
/// `export` returns a value that this function keeps until the importer ends, and the handle's bytes. `import` gets
/// these bytes. When `import` is ready, it calls its second argument, and then opens the memory.
pub fn share_between_processes<const BYTES: usize, K>(
    time_limit: Duration,
    export: impl FnOnce() -> (K, [u8; BYTES]),
    import: impl FnOnce([u8; BYTES], &mut dyn FnMut()) -> i32,
) -> End {
    // 0 selects sharing by dma-buf, the default since ROCm 7. ROCm 6.1 has only the driver's sharing.
    set_variable("HSA_ENABLE_IPC_MODE_LEGACY", "0");
    let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
    // Forks before a runtime is started.
    let importer = Child::start(|| {
        let mut bytes = [0; BYTES];
        child_socket.read_exact(&mut bytes).unwrap();
        import(bytes, &mut || child_socket.write_all(&[1]).unwrap())
    });
    drop(child_socket);
    let (_exporter, bytes) = export();
    parent_socket.write_all(&bytes).unwrap();
    parent_socket
        .read_exact(&mut [0])
        .expect("a byte from the importer, before it opens the memory");
    importer.wait_for(time_limit)
}

/// The status of an importer that opened the memory.
const OPENED: i32 = 9;
/// The status of an importer that leaked a descriptor.
const LEAKED: i32 = 10;

pub fn words(bytes: [u8; 32]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes(bytes.try_into().unwrap());
    }
    words
}

/// Opens memory that its exporter has freed, in another process. Returns how that process ended.
fn open_freed(fixture: &Fixture, size: usize, time_limit: Duration) -> End {
    let export = || {
        let raw = RawRuntime::start(fixture);
        let (address, words) = raw.share(size).unwrap();
        raw.free_shared(address).unwrap();
        (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
    };
    let import = |bytes, report_ready: &mut dyn FnMut()| {
        let raw = RawRuntime::start(fixture);
        report_ready();
        if raw.attach(words(bytes), size).is_ok() { OPENED } else { 0 }
    };
    share_between_processes(time_limit, export, import)
}

#[test]
fn attach_waits_forever_on_the_runtime() {
    let test = "attach::attach_waits_forever_on_the_runtime";
    FREED_MEMORY_BLOCKS.check_on_each_release(test, |fixture| {
        match open_freed(fixture, LARGE, SHORT_TIMEOUT) {
            End::TimedOut => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

#[test]
fn freed_memory_opens_on_the_runtime() {
    let test = "attach::freed_memory_opens_on_the_runtime";
    FREED_MEMORY_OPENED.check_on_each_release(test, |fixture| {
        match open_freed(fixture, SMALL, LONG_TIMEOUT) {
            End::Failure(OPENED) => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

#[test]
fn socket_leaks_on_the_runtime() {
    let test = "attach::socket_leaks_on_the_runtime";
    ATTACH_LEAVES_A_SOCKET.check_on_each_release(test, |fixture| {
        let export = || {
            let raw = RawRuntime::start(fixture);
            let (_, words) = raw.share(LARGE).unwrap();
            (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
        };
        let import = |bytes, report_ready: &mut dyn FnMut()| {
            let raw = RawRuntime::start(fixture);
            report_ready();
            let open_and_close = || {
                let address = raw.attach(words(bytes), LARGE).unwrap();
                raw.detach(address).unwrap();
                descriptors()
            };
            // Descriptors that the first attach opens and keeps do not count.
            let before = open_and_close();
            if open_and_close() > before { LEAKED } else { 0 }
        };
        match share_between_processes(LONG_TIMEOUT, export, import) {
            End::Failure(LEAKED) => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

/// The status of an importer whose runtime accepted a wrong length.
const ACCEPTED: i32 = 11;

#[test]
fn forged_length_is_accepted_on_the_runtime() {
    let test = "attach::forged_length_is_accepted_on_the_runtime";
    IPC_LENGTH_NOT_CHECKED.check_on_each_release(test, |fixture| {
        let export = || {
            let raw = RawRuntime::start(fixture);
            let (_, words) = raw.share(LARGE).unwrap();
            (raw, words.map(u32::to_ne_bytes).concat().try_into().unwrap())
        };
        let import = |bytes, report_ready: &mut dyn FnMut()| {
            let raw = RawRuntime::start(fixture);
            report_ready();
            let Ok(address) = raw.attach(words(bytes), 2 * LARGE) else { return 0 };
            assert_eq!(raw.pointer_info(address).sizeInBytes, 2 * LARGE);
            // The first byte past the end is not mapped, whatever size the runtime reports.
            let info = raw.pointer_info(address + LARGE);
            assert_eq!(info.type_, hsa_sys::HSA_EXT_POINTER_TYPE_UNKNOWN);
            ACCEPTED
        };
        match share_between_processes(LONG_TIMEOUT, export, import) {
            End::Failure(ACCEPTED) => true,
            End::Success => false,
            end => panic!("{end:?}"),
        }
    });
}

#[test]
fn forged_length_is_rejected_through_the_library() {
    on_each("attach::forged_length_is_rejected_through_the_library", |fixture| {
        let export = || {
            let (runtime, ipc) = open_ipc(fixture);
            let gpu = runtime.gpus().next().unwrap().id();
            let memory = PoolMemory::allocate(&runtime, gpu, LARGE).unwrap();
            let mut bytes = ipc.get_mem_handle(memory.address()).unwrap().to_bytes();
            // The handle as HIP creates it, but with twice the size.
            bytes[32..40].copy_from_slice(&(2 * LARGE as u64).to_le_bytes());
            bytes[52..].fill(0);
            ((ipc, memory), bytes)
        };
        let import = |bytes: [u8; IpcHandle::SIZE], report_ready: &mut dyn FnMut()| {
            let (_runtime, ipc) = open_ipc(fixture);
            report_ready();
            let error = ipc.open_mem_handle(&IpcHandle::from_bytes(&bytes), 0).unwrap_err();
            assert_unavailable(&error, UnavailableReason::TooLarge);
            0
        };
        assert_eq!(share_between_processes(LONG_TIMEOUT, export, import), End::Success);
    });
}

#[track_caller]
fn assert_unavailable(error: &hsa_vmm::Error, expected: UnavailableReason) {
    let ErrorKind::Unavailable { reason, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(*reason, expected);
}

pub fn open_ipc(fixture: &Fixture) -> (Runtime, Ipc) {
    // SAFETY: the file is a fetched release of AMD's runtime.
    let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
    let ipc = Ipc::open(&runtime).unwrap();
    (runtime, ipc)
}

#[test]
fn freed_memory_is_rejected_through_the_library() {
    on_each("attach::freed_memory_is_rejected_through_the_library", |fixture| {
        let export = || {
            let (runtime, ipc) = open_ipc(fixture);
            let gpu = runtime.gpus().next().unwrap().id();
            let handles = [SMALL, LARGE].map(|size| {
                let memory = PoolMemory::allocate(&runtime, gpu, size).unwrap();
                ipc.get_mem_handle(memory.address()).unwrap().to_bytes()
            });
            (ipc, <[u8; 2 * IpcHandle::SIZE]>::try_from(handles.concat()).unwrap())
        };
        let import = |bytes: [u8; 2 * IpcHandle::SIZE], report_ready: &mut dyn FnMut()| {
            let (_runtime, ipc) = open_ipc(fixture);
            report_ready();
            for handle in bytes.chunks_exact(IpcHandle::SIZE) {
                let handle = IpcHandle::from_bytes(handle.try_into().unwrap());
                let error = ipc.open_mem_handle(&handle, 0).unwrap_err();
                assert_unavailable(&error, UnavailableReason::Freed);
            }
            0
        };
        assert_eq!(share_between_processes(LONG_TIMEOUT, export, import), End::Success);
    });
}
