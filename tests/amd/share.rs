//! Memory shared between two processes that both run AMD's runtime.

use crate::amd_runtime::{fail_driver_calls, on_each};
use crate::machine::{Library, access, at};
use crate::process::handover::{receive, send};
use crate::process::{Child, End, descriptors};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_vmm::error::Problem;
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, Handle, HandleType, Ipc, PoolMemory};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const SIZE: usize = 256 << 10;
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// One of two processes, with its socket to the other.
struct Endpoint {
    library: Library,
    socket: UnixStream,
}

impl Endpoint {
    /// Signals the other process to continue.
    fn resume_peer(&mut self) {
        self.socket.write_all(b"!").unwrap();
    }

    /// Waits until the other process calls `resume_peer`. Fails if the other process ends instead.
    fn wait(&mut self) {
        self.socket.read_exact(&mut [0]).unwrap();
    }

    fn wait_for_peer_end(&mut self) {
        assert_eq!(self.socket.read(&mut [0]).unwrap(), 0, "the other process has ended");
    }

    /// Maps memory of the second GPU for all agents.
    fn map_memory(&self) -> (Address, Handle) {
        let (base, memory) = self.library.map_new_memory(1, SIZE);
        self.grant_all(base);
        (base, memory)
    }

    fn grant_all(&self, base: Address) {
        let Library { runtime, vmm } = &self.library;
        let grants = runtime.agents().iter().map(|agent| access(agent.id(), Access::ReadWrite));
        vmm.set_access(base, SIZE, &grants.collect::<Vec<_>>()).unwrap();
    }

    fn send(&self, memory: Handle) {
        let vmm = &self.library.vmm;
        send(&self.socket, &vmm.export_to_shareable_handle(memory, DESCRIPTOR).unwrap());
    }

    /// Receives memory and maps it for all agents.
    fn receive(&self) -> (Address, Handle) {
        let vmm = &self.library.vmm;
        let memory = vmm.import_from_shareable_handle(receive(&self.socket), DESCRIPTOR).unwrap();
        assert_eq!(vmm.allocation_size(memory), Ok(SIZE));
        let owner = Location::Agent(self.library.gpu(1));
        assert_eq!(vmm.allocation_properties(memory).unwrap().location, owner);
        let base = self.library.reserve(SIZE);
        self.library.map(base, SIZE, memory);
        self.grant_all(base);
        (base, memory)
    }

    fn text(&self, base: Address) -> [u8; 4] {
        let mut text = [0; 4];
        self.library.vmm.read(base, &mut text).unwrap();
        text
    }

    fn release(&self, (base, memory): (Address, Handle)) {
        self.library.vmm.release(memory).unwrap();
        self.library.vmm.unmap(base, SIZE).unwrap();
        self.library.vmm.address_free(base, SIZE).unwrap();
        self.library.assert_everything_freed();
    }
}

/// Runs two processes on each selected release: the first creates memory and sends it to the second.
fn run_pair(test: &str, exporter: impl Fn(Endpoint), importer: impl Fn(Endpoint), ends: [End; 2]) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let library = || Library::load(fixture.runtime());
        let mut sockets = UnixStream::pair().ok();
        // Each child closes its copy of the other child's socket. Otherwise, neither child would notice that the other
        // has ended.
        let first = Child::start(|| {
            let socket = sockets.take().unwrap().0;
            exporter(Endpoint { library: library(), socket });
            0
        });
        let second = Child::start(|| {
            let socket = sockets.take().unwrap().1;
            importer(Endpoint { library: library(), socket });
            0
        });
        drop(sockets);
        assert_eq!([first.wait(), second.wait()], ends, "{}", fixture.release());
    });
}

fn kill_this_process() {
    // SAFETY: the call accesses no memory; it kills this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

const KILLED: End = End::Signal(libc::SIGKILL);

#[test]
fn both_processes_read_what_the_other_writes() {
    let exporter = |mut endpoint: Endpoint| {
        let memory = endpoint.map_memory();
        endpoint.library.vmm.write(memory.0, b"ping").unwrap();
        endpoint.send(memory.1);
        endpoint.wait();
        assert_eq!(&endpoint.text(memory.0), b"pong", "written by the other process's CPU");
        endpoint.library.vmm.fill(memory.0, u32::from_ne_bytes(*b"fill"), SIZE).unwrap();
        endpoint.resume_peer();
        endpoint.wait();
        assert_eq!(&endpoint.text(memory.0), b"full", "written by the other process's GPU");
        endpoint.release(memory);
        endpoint.resume_peer();
    };
    let importer = |mut endpoint: Endpoint| {
        let memory = endpoint.receive();
        assert_eq!(&endpoint.text(memory.0), b"ping", "written by the other process's CPU");
        endpoint.library.vmm.write(memory.0, b"pong").unwrap();
        endpoint.resume_peer();
        endpoint.wait();
        assert_eq!(&endpoint.text(memory.0), b"fill", "written by the other process's GPU");
        endpoint.library.vmm.fill(memory.0, u32::from_ne_bytes(*b"full"), SIZE).unwrap();
        endpoint.resume_peer();
        endpoint.wait();
        // The exporter has released the memory.
        assert_eq!(&endpoint.text(memory.0), b"full");
        endpoint.release(memory);
    };
    run_pair(
        "share::both_processes_read_what_the_other_writes",
        exporter,
        importer,
        [End::Success; 2],
    );
}

#[test]
fn memory_outlives_its_exporter() {
    let exporter = |mut endpoint: Endpoint| {
        let memory = endpoint.map_memory();
        endpoint.library.vmm.write(memory.0, b"kept").unwrap();
        endpoint.send(memory.1);
        endpoint.wait();
        endpoint.release(memory);
    };
    let importer = |mut endpoint: Endpoint| {
        let memory = endpoint.receive();
        endpoint.resume_peer();
        endpoint.wait_for_peer_end();
        assert_eq!(&endpoint.text(memory.0), b"kept");
        endpoint.library.vmm.fill(memory.0, 7, SIZE).unwrap();
        assert_eq!(endpoint.text(memory.0), 7u32.to_ne_bytes());
        endpoint.release(memory);
    };
    run_pair("share::memory_outlives_its_exporter", exporter, importer, [End::Success; 2]);
}

#[test]
fn memory_outlives_a_killed_exporter() {
    let exporter = |mut endpoint: Endpoint| {
        let memory = endpoint.map_memory();
        endpoint.library.vmm.write(memory.0, b"kept").unwrap();
        endpoint.send(memory.1);
        endpoint.wait();
        kill_this_process();
    };
    let importer = |mut endpoint: Endpoint| {
        let memory = endpoint.receive();
        endpoint.resume_peer();
        endpoint.wait_for_peer_end();
        assert_eq!(&endpoint.text(memory.0), b"kept");
        endpoint.release(memory);
    };
    run_pair(
        "share::memory_outlives_a_killed_exporter",
        exporter,
        importer,
        [KILLED, End::Success],
    );
}

/// In the first run, the importer is killed before it imports the memory. In the second run, it is killed after it
/// unmaps the memory, but before it releases the handle.
#[test]
fn exporter_survives_a_killed_importer() {
    let exporter = |mut endpoint: Endpoint| {
        let memory = endpoint.map_memory();
        endpoint.wait();
        endpoint.send(memory.1);
        endpoint.wait_for_peer_end();
        endpoint.library.vmm.write(memory.0, b"mine").unwrap();
        assert_eq!(&endpoint.text(memory.0), b"mine");
        endpoint.release(memory);
    };
    let before_import = |mut endpoint: Endpoint| {
        endpoint.resume_peer();
        receive(&endpoint.socket);
        kill_this_process();
    };
    let before_release = |mut endpoint: Endpoint| {
        endpoint.resume_peer();
        let memory = endpoint.receive();
        endpoint.library.vmm.write(memory.0, b"half").unwrap();
        endpoint.library.vmm.unmap(memory.0, SIZE).unwrap();
        kill_this_process();
    };
    for importer in [&before_import as &dyn Fn(Endpoint), &before_release] {
        let test = "share::exporter_survives_a_killed_importer";
        run_pair(test, exporter, importer, [End::Success, KILLED]);
    }
}

#[test]
fn sharing_many_times_leaks_nothing() {
    let exporter = |mut endpoint: Endpoint| {
        let mut first_count = None;
        for round in 0..100u32 {
            let memory = endpoint.map_memory();
            endpoint.library.vmm.write(memory.0, &round.to_ne_bytes()).unwrap();
            endpoint.send(memory.1);
            endpoint.wait();
            assert_eq!(endpoint.text(memory.0), (!round).to_ne_bytes());
            endpoint.release(memory);
            assert_eq!(*first_count.get_or_insert(descriptors()), descriptors(), "{round}");
        }
    };
    let importer = |mut endpoint: Endpoint| {
        let mut first_count = None;
        for round in 0..100u32 {
            let memory = endpoint.receive();
            assert_eq!(endpoint.text(memory.0), round.to_ne_bytes());
            endpoint.library.vmm.write(memory.0, &(!round).to_ne_bytes()).unwrap();
            endpoint.release(memory);
            assert_eq!(*first_count.get_or_insert(descriptors()), descriptors(), "{round}");
            endpoint.resume_peer();
        }
    };
    run_pair("share::sharing_many_times_leaks_nothing", exporter, importer, [End::Success; 2]);
}

/// AMD's runtime returns the same status for a dma-buf of another driver.
#[test]
fn import_error_names_the_call() {
    on_each("share::import_error_names_the_call", |fixture| {
        fail_driver_calls("GET_DMABUF_INFO=EBUSY");
        let library = Library::load(fixture.runtime());
        let memory = library.create(0, SIZE);
        let descriptor = library.vmm.export_to_shareable_handle(memory, DESCRIPTOR).unwrap();
        let import = library.vmm.import_from_shareable_handle(descriptor, DESCRIPTOR);
        let error = import.unwrap_err();
        let (call, _) = error.call().unwrap();
        assert_eq!(call, "hsa_amd_vmem_import_shareable_handle");
        assert!(error.to_string().contains("or the driver has failed"), "{error}");
    });
}

/// AMD's runtime reports the rest of a block of a pool as `UNKNOWN`, and some releases also virtual memory.
#[test]
fn ipc_after_pool_memory_is_not_virtual() {
    on_each("share::ipc_after_pool_memory_is_not_virtual", |fixture| {
        let library = Library::load(fixture.runtime());
        let ipc = Ipc::open(&library.runtime).unwrap();
        let memory = PoolMemory::allocate(&library.runtime, library.gpu(0), 1000).unwrap();
        for offset in [1000, 4095, 4096, 8192] {
            let error = ipc.get_mem_handle(at(memory.address(), offset)).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::NotAllocated), "{offset}: {error}");
        }
        let (base, _) = library.map_new_memory(0, SIZE);
        for address in [base, library.reserve(SIZE)] {
            let error = ipc.get_mem_handle(address).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::VirtualMemory), "{error}");
        }
    });
}
