//! Defects of the runtime's server thread, which sends exported memory to other processes. The thread can outlive the
//! runtime's stop, sends memory to any user, and can block exports. If another process uses the name of the server's
//! socket, the runtime aborts the process. Exported memory stays allocated when it is freed.
//!
//! Without a delay, the thread outlives the stop in 14 of 4,000 processes. Here, a signal handler delays the thread
//! until the runtime has stopped. The thread then nearly always uses memory that the runtime has freed.

use crate::amd_runtime::raw::RawRuntime;
use crate::amd_runtime::{on_each, set_variable};
use crate::impostor;
use crate::process::namespaces::{NOBODY_UID, Need, become_user, has_privilege};
use crate::process::{Child, End, in_child};
use crate::table::{
    IPC_EXPORT_KEEPS_MEMORY, IPC_NAME_IN_USE_ABORTS, IPC_SERVER_BLOCKS, IPC_SERVER_OUTLIVES_STOP,
    IPC_SERVER_SURVIVES_EXEC, IPC_SERVER_TRUSTS_ANYONE,
};
use hsa_rocr::Release;
use hsa_rocr::test::Fixture;
use hsa_vmm::error::Problem;
use hsa_vmm::vmm::Quirks;
use hsa_vmm::{ErrorKind, Ipc, PoolMemory, Runtime};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SIZE: usize = 2 << 20;

/// The number of processes in which a test looks for a crash that does not occur each time.
const TRIES: usize = 5;

static SERVER_DELAYED: AtomicBool = AtomicBool::new(false);
static RUNTIME_STOPPED: AtomicBool = AtomicBool::new(false);

/// Delays the server thread until the runtime has stopped.
extern "C" fn delay_server(_: libc::c_int) {
    SERVER_DELAYED.store(true, Ordering::SeqCst);
    while !RUNTIME_STOPPED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn thread_ids() -> BTreeSet<libc::pid_t> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("a thread").file_name().to_str()?.parse().ok()
    };
    std::fs::read_dir("/proc/self/task").expect("/proc is mounted").filter_map(number).collect()
}

/// Calls `share`, which starts the server thread on some releases. Then delays the server thread, and calls `stop`.
fn stop_before_server_ends<T>(share: impl FnOnce() -> T, stop: impl FnOnce(T)) {
    let before = thread_ids();
    let shared = share();
    let server = thread_ids().difference(&before).next().copied();
    if let Some(server) = server {
        // The library blocks most signals in the server's thread, but not SIGHUP.
        // SAFETY: the handler only loads, stores and sleeps, which a signal handler may do.
        unsafe { libc::signal(libc::SIGHUP, delay_server as *const () as libc::sighandler_t) };
        // SAFETY: the call accesses no memory; it sends a signal to a thread of this process.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), server, libc::SIGHUP) };
        assert_eq!(sent, 0);
        let begun = Instant::now();
        while !SERVER_DELAYED.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server is delayed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    stop(shared);
    RUNTIME_STOPPED.store(true, Ordering::SeqCst);
    // Waits until the server thread has ended, unless the runtime stays started.
    let begun = Instant::now();
    while server.is_some_and(|server| thread_ids().contains(&server))
        && begun.elapsed() < Duration::from_millis(500)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Shares memory, and stops the runtime before its IPC server has ended. With `quirks`, the library uses exactly these
/// quirks.
fn share_and_stop(fixture: &Fixture, quirks: Option<Quirks>) {
    // SAFETY: the file is a fetched release of AMD's runtime.
    let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
    let gpu = runtime.gpus().next().unwrap().id();
    let runtime_of_share = runtime.clone();
    let share = move || {
        let memory = PoolMemory::allocate(&runtime_of_share, gpu, SIZE).unwrap();
        let ipc = Ipc::open(&runtime_of_share).unwrap();
        let ipc = match quirks {
            // SAFETY: the omitted quirk can only crash this child process, which the test expects.
            Some(quirks) => unsafe { ipc.with_exact_quirks(quirks) },
            // Adds no quirks to those of the runtime's version.
            None => ipc.with_quirks(Quirks::default()),
        };
        ipc.get_mem_handle(memory.address()).unwrap();
        memory
    };
    // `share` drops its clone of the runtime when it returns.
    stop_before_server_ends(share, |memory| drop((memory, runtime)));
}

/// Calls `function` in up to [`TRIES`] processes, one after another. Returns whether one of them crashes.
fn any_process_crashes(function: impl Fn()) -> bool {
    (0..TRIES).any(|_| match in_child(&function) {
        End::Success => false,
        End::Signal(libc::SIGABRT | libc::SIGSEGV | libc::SIGBUS) => true,
        end => panic!("{end:?}"),
    })
}

fn request_sharing_by_dma_buf() {
    set_variable("HSA_ENABLE_IPC_MODE_LEGACY", "0");
}

#[test]
fn server_outlives_the_stop_on_the_runtime() {
    IPC_SERVER_OUTLIVES_STOP.check_on_each_release(
        "ipc_server::server_outlives_the_stop_on_the_runtime",
        |fixture| {
            request_sharing_by_dma_buf();
            any_process_crashes(|| {
                let raw = RawRuntime::start(fixture);
                // A mapping would trigger another defect.
                raw.unmap_scratch().unwrap();
                stop_before_server_ends(|| raw.share(SIZE).unwrap(), |_| raw.shut_down().unwrap());
            })
        },
    );
}

#[test]
fn runtime_crashes_without_the_workaround() {
    IPC_SERVER_OUTLIVES_STOP.check_on_each_release(
        "ipc_server::runtime_crashes_without_the_workaround",
        |fixture| {
            request_sharing_by_dma_buf();
            any_process_crashes(|| share_and_stop(fixture, Some(Quirks::default())))
        },
    );
}

#[test]
fn runtime_keeps_running_with_the_workaround() {
    on_each("ipc_server::runtime_keeps_running_with_the_workaround", |fixture| {
        request_sharing_by_dma_buf();
        assert!(!any_process_crashes(|| share_and_stop(fixture, None)));
    });
}

#[test]
fn started_runtime_is_reused() {
    on_each("ipc_server::started_runtime_is_reused", |fixture| {
        request_sharing_by_dma_buf();
        for _ in 0..3 {
            // SAFETY: the file is a fetched release of AMD's runtime.
            let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
            let gpu = runtime.gpus().next().unwrap().id();
            let memory = PoolMemory::allocate(&runtime, gpu, SIZE).unwrap();
            Ipc::open(&runtime).unwrap().get_mem_handle(memory.address()).unwrap();
        }
    });
}

/// Calls `function` while another process has taken the name of this process's socket. A process with the same ID in
/// another PID namespace would take the same name.
fn with_taken_name<T>(function: impl FnOnce() -> T) -> T {
    with_taken_names(&[], function)
}

/// Does the same as [`with_taken_name`], but the other process also takes the abstract names in `extra_names`.
fn with_taken_names<T>(extra_names: &[String], function: impl FnOnce() -> T) -> T {
    // AMD's runtime pads the abstract name with zeros to its greatest size.
    let mut name = [0; 107];
    let text = format!("hsa{}", std::process::id());
    name[..text.len()].copy_from_slice(text.as_bytes());
    let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
    let listener = Child::start(|| {
        // SAFETY: the call accesses no memory; it makes this child end with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let bind = |name| {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            UnixListener::bind_addr(&address).unwrap()
        };
        let _extra_listeners: Vec<_> = extra_names.iter().map(bind).collect();
        child_socket.write_all(&[1]).unwrap();
        child_socket.read_exact(&mut [0]).unwrap();
        0
    });
    parent_socket.read_exact(&mut [0]).unwrap();
    let result = function();
    parent_socket.write_all(&[1]).unwrap();
    assert_eq!(listener.wait(), End::Success);
    result
}

#[test]
fn taken_socket_aborts_on_the_runtime() {
    IPC_NAME_IN_USE_ABORTS.check_on_each_release(
        "ipc_server::taken_socket_aborts_on_the_runtime",
        |fixture| {
            request_sharing_by_dma_buf();
            with_taken_name(|| {
                // Stopping the runtime would trigger another defect.
                let raw = ManuallyDrop::new(RawRuntime::start(fixture));
                raw.share(SIZE).is_err()
            })
        },
    );
}

#[test]
fn taken_socket_is_an_error_through_the_library() {
    on_each("ipc_server::taken_socket_is_an_error_through_the_library", |fixture| {
        request_sharing_by_dma_buf();
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, SIZE).unwrap();
        let ipc = Ipc::open(&runtime).unwrap();
        let share = || ipc.get_mem_handle(memory.address());
        let result = with_taken_name(share);
        if fixture.release() == Release::R6_1_2 {
            // This release has no server, even if sharing by dma-buf is requested.
            result.unwrap();
            return;
        }
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SocketTaken(_)), "{error}");
        // The other process has ended. The first call binds the name, and the second call uses the name again.
        for _ in 0..2 {
            share().unwrap();
        }
    });
}

#[test]
fn forged_socket_names_are_ignored() {
    on_each("ipc_server::forged_socket_names_are_ignored", |fixture| {
        request_sharing_by_dma_buf();
        let (runtime, ipc) = crate::attach::open_ipc(fixture);
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, SIZE).unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let process = std::process::id();
        // The kernel prints names unescaped in `/proc/net/unix`. This name claims that the socket belongs to this
        // process.
        let name = format!("x{process}\n0 0 0 0 0 0 {inode} @hsa{process}");
        let result = with_taken_names(&[name], || ipc.get_mem_handle(memory.address()));
        if fixture.release() == Release::R6_1_2 {
            // This release has no server, even if sharing by dma-buf is requested.
            result.unwrap();
            return;
        }
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SocketTaken(_)), "{error}");
        ipc.get_mem_handle(memory.address()).unwrap();
    });
}

/// Shares memory. A process of another user then requests the memory from the server, and does not acknowledge the
/// reply. Calls `function` before that process ends. Returns `None` if the process did not get the memory.
fn while_requested_by_another_user<S, T>(
    share: impl FnOnce() -> (S, usize),
    function: impl FnOnce(S) -> T,
) -> Option<T> {
    let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
    // Forks before a runtime is started.
    let requester = Child::start(|| {
        become_user(NOBODY_UID);
        // SAFETY: the call accesses no memory; it makes this child end with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let mut bytes = [0; 8];
        child_socket.read_exact(&mut bytes).unwrap();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let received = impostor::request_memory(parent, u64::from_ne_bytes(bytes));
        child_socket.write_all(&[u8::from(received.is_some())]).unwrap();
        child_socket.read_exact(&mut [0]).unwrap();
        0
    });
    let (shared, address) = share();
    parent_socket.write_all(&(address as u64).to_ne_bytes()).unwrap();
    let mut received = [0];
    parent_socket.read_exact(&mut received).unwrap();
    let result = (received[0] == 1).then(|| function(shared));
    parent_socket.write_all(&[1]).unwrap();
    assert_eq!(requester.wait(), End::Success);
    result
}

#[test]
fn exported_memory_is_not_released() {
    IPC_EXPORT_KEEPS_MEMORY.check_on_each_release(
        "ipc_server::exported_memory_is_not_released",
        |fixture| {
            request_sharing_by_dma_buf();
            set_variable("HSA_KFD", "gpus=1,vram=64MiB");
            // Stopping the runtime would trigger another defect.
            let raw = ManuallyDrop::new(RawRuntime::start(fixture));
            // Together, the exports have more bytes than the GPU. Each is freed before the next.
            let exports = (0..16).map(|_| raw.share(3 * SIZE).map(|(address, _)| address));
            exports.map(|export| raw.free_shared(export?)).any(|freed| freed.is_err())
        },
    );
}

/// Starts the runtime and exports memory. Returns the runtime and the address.
fn start_and_share(fixture: &Fixture) -> (ManuallyDrop<RawRuntime>, usize) {
    // Stopping the runtime would trigger another defect.
    let raw = ManuallyDrop::new(RawRuntime::start(fixture));
    let (address, words) = raw.share(SIZE).unwrap();
    // If a server shares the memory, the handle contains the address that importers request from the server.
    let pointer = u64::from(words[1]) << 32 | u64::from(words[0]);
    assert!(!is_shared_by_a_server(words) || pointer == address as u64);
    (raw, address)
}

fn is_shared_by_a_server(words: [u32; 8]) -> bool {
    words[2] == std::process::id()
}

#[test]
fn server_sends_memory_to_any_user() {
    let test = "ipc_server::server_sends_memory_to_any_user";
    if !has_privilege(Need::OtherUser, test) {
        return;
    }
    IPC_SERVER_TRUSTS_ANYONE.check_on_each_release(test, |fixture| {
        request_sharing_by_dma_buf();
        while_requested_by_another_user(|| start_and_share(fixture), |_| ()).is_some()
    });
}

/// Returns whether a program that this process starts inherits the server's socket. Without a server, returns `None`.
fn program_inherits_server() -> Option<bool> {
    let name = format!("@hsa{}", std::process::id());
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap();
    let inode = sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_server = fields.get(7).is_some_and(|path| path.trim_end_matches('@') == name);
        is_server.then(|| fields[6].to_owned())
    })?;
    let listing = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    assert!(listing.status.success());
    Some(String::from_utf8_lossy(&listing.stdout).contains(&format!("socket:[{inode}]")))
}

#[test]
fn programs_inherit_the_server_on_the_runtime() {
    let test = "ipc_server::programs_inherit_the_server_on_the_runtime";
    IPC_SERVER_SURVIVES_EXEC.check_on_each_release(test, |fixture| {
        request_sharing_by_dma_buf();
        let _shared = start_and_share(fixture);
        program_inherits_server() == Some(true)
    });
}

#[test]
fn programs_lack_the_server_through_the_library() {
    on_each("ipc_server::programs_lack_the_server_through_the_library", |fixture| {
        request_sharing_by_dma_buf();
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, SIZE).unwrap();
        Ipc::open(&runtime).unwrap().get_mem_handle(memory.address()).unwrap();
        let expected = (fixture.release() != Release::R6_1_2).then_some(false);
        assert_eq!(program_inherits_server(), expected);
    });
}

#[test]
fn server_waits_for_an_acknowledgement() {
    let test = "ipc_server::server_waits_for_an_acknowledgement";
    if !has_privilege(Need::OtherUser, test) {
        return;
    }
    IPC_SERVER_BLOCKS.check_on_each_release(test, |fixture| {
        request_sharing_by_dma_buf();
        let is_blocked = |raw| {
            // The thread stays blocked until the other process or this process ends.
            let raw: &'static ManuallyDrop<RawRuntime> = Box::leak(Box::new(raw));
            let sharing = std::thread::spawn(|| raw.share(SIZE).map(|_| ()).unwrap());
            let begun = Instant::now();
            while !sharing.is_finished() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            !sharing.is_finished()
        };
        while_requested_by_another_user(|| start_and_share(fixture), is_blocked) == Some(true)
    });
}

/// While the server waits for an acknowledgement, `get_mem_handle` blocks, but `PoolMemory::free` does not.
#[test]
fn free_does_not_wait_for_the_server() {
    let test = "ipc_server::free_does_not_wait_for_the_server";
    if !has_privilege(Need::OtherUser, test) {
        return;
    }
    on_each(test, |fixture| {
        request_sharing_by_dma_buf();
        let share = || {
            let (runtime, ipc) = crate::attach::open_ipc(fixture);
            let gpu = runtime.gpus().next().unwrap().id();
            let memory = PoolMemory::allocate(&runtime, gpu, SIZE).unwrap();
            ipc.get_mem_handle(memory.address()).unwrap();
            let address = memory.address().get();
            ((ipc, memory), address)
        };
        let sharing = while_requested_by_another_user(share, |(ipc, memory)| {
            let address = memory.address();
            let sharing = std::thread::spawn(move || ipc.get_mem_handle(address));
            std::thread::sleep(Duration::from_millis(500));
            assert!(!sharing.is_finished(), "the server blocks the call");
            let begun = Instant::now();
            memory.free().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
            sharing
        });
        let Some(sharing) = sharing else {
            // This release has no server, even if sharing by dma-buf is requested.
            assert_eq!(fixture.release(), Release::R6_1_2);
            return;
        };
        let error = sharing.join().unwrap().unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotAllocated), "{error}");
    });
}
