//! Shares pool memory between processes: HIP's IPC.
//!
//! | HIP | hsa-vmm | HSA |
//! |---|---|---|
//! | `hipIpcGetMemHandle` | [`Ipc::get_mem_handle`] | `hsa_amd_ipc_memory_create` |
//! | `hipIpcOpenMemHandle` | [`Ipc::open_mem_handle`] | `hsa_amd_ipc_memory_attach` |
//! | `hipIpcCloseMemHandle` | [`Ipc::close_mem_handle`] | `hsa_amd_ipc_memory_detach` |
//!
//! [`IpcHandle`] has HIP's layout, so that processes with this library and processes with HIP can open each other's
//! memory. If both processes use this library, the following rules also apply:
//!
//! * A handle is rejected immediately if its memory was freed or its process has ended. This holds even if the address
//!   or the process number is in use again. The exporter has a table of its exports, which the importer finds and reads
//!   through `/proc/<process>/fd`. Therefore both processes must belong to the same user, the exporter must be dumpable
//!   and have no capability that the importer lacks, and the exporter's main thread must not have ended. Memory is not
//!   freed while another process is mapping it, because AMD's runtime would wait forever.
//! * A modified handle is rejected. A change of one bit, of the size or of the runtime's own handle is always detected.
//!   Any other change stays undetected with a probability of 1 in 2^16. If several bits of the format are changed, the
//!   handle is taken for one of HIP's. This check detects corruption, but not forgery: see [`IpcHandle`].
//! * Opening a handle twice requires two closes. Both opens return the same address, if the first open made the memory
//!   accessible for all agents of the second. Only an [`OpenedMemory`] closes the memory that it owns.
//!
//! The library compares the size in a handle with the size that the runtime has mapped. AMD's runtime accepts any size,
//! and a copy past the end of the memory would cause a GPU page fault, which ends the process. AMD's runtime puts small
//! allocations into a larger buffer, and maps this whole buffer. Therefore a forged handle from HIP can access other
//! allocations in the buffer.
//!
//! HIP's own handles are in no table. For HIP's handles, this library can only check that the exporting process exists.
//! If the runtime shares by dma-buf (`HSA_ENABLE_IPC_MODE_LEGACY=0`, the default since ROCm 7.2), this library also
//! checks that the exporter's runtime serves the memory. If the address was freed and allocated again, a handle from
//! HIP opens the new memory, as in HIP. Each open of a handle from HIP maps the memory again.
//!
//! Every wait of an importer for the exporter has a time limit, even if the exporter is stopped or killed. To limit the
//! wait, this library fetches the memory itself and passes it to the runtime; AMD's runtime would wait forever. Opening
//! waits at most 15 seconds while the exporter is freeing the memory, then 5 seconds for the exporter to respond, and
//! one second for each of the sockets and the memory that it must close. [`IpcHandle::is_freed`] also waits at most 15
//! seconds while the exporter is freeing the memory. Other calls do not wait for the exporter. There is one exception:
//! the system call that opens the exporter's table has no time limit. A hostile exporter can put a file of a FUSE file
//! system in the place of the table at the right moment. The server of this file system can then delay `open`.
//!
//! Exporting has no time limit if the runtime shares by dma-buf. AMD's server sends exported memory to any
//! process of the network namespace, of any user. The server then holds its lock until that process acknowledges the
//! memory or ends. Meanwhile, [`Ipc::get_mem_handle`] waits for the lock. If another process binds the server's socket
//! between this library's check and the runtime's `bind`, the runtime ends the exporter (`SIGABRT`). `docs/defects.md`
//! lists these defects. Therefore, give each process that does not trust the others its own network namespace.
//!
//! While the runtime opens memory that is shared by dma-buf, or creates a handle, the calling thread blocks all signals
//! except those of faults, SIGINT, SIGTERM, SIGQUIT and SIGHUP: a signal would make AMD's runtime give up. A program that
//! another thread starts while the runtime opens such memory inherits a descriptor of the memory, because AMD's runtime
//! receives the descriptor without the close-on-exec flag.
//!
//! The library rejects memory of another user's process, except for users that [`Ipc::with_trust`] allows. Processes
//! identify each other by number, so both processes must be in one PID namespace, with `/proc` mounted in this
//! namespace. A handle of this library contains the exporter's namespace, and is rejected in other namespaces. Between
//! namespaces, use [`transport::Channel`](crate::transport::Channel).
//!
//! A handle can be created for an address inside an allocation. This address is the start address for the importer,
//! whereas HIP ignores the offset ([`OpenedMemory::open_allocation`]). A forked child cannot use IPC.

mod exports;
mod handle;
mod imports;
mod mode;
mod server_client;
mod table;

pub use handle::IpcHandle;
pub use imports::OpenedMemory;

use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem, UnavailableReason};
use crate::native::{Failure, Status, out_of_descriptors};
use crate::runtime::Runtime;
use crate::trust::{Trust, pid_namespace};
use crate::vmm::{Address, Quirks};
use derive_more::Debug;
use imports::Holder;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::Arc;
use std::time::Duration;

/// The flag of [`Ipc::open_mem_handle`] (`hipIpcMemLazyEnablePeerAccess`). The flag has no effect: peers always get
/// access.
pub const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// The pause between two attempts of a call that needs a free descriptor or a free place in a queue.
const PAUSE: Duration = Duration::from_millis(1);

/// HIP's IPC on one runtime. It shares pool memory with other processes, for one GPU and its peers. Cheap to clone; can
/// be used from any thread.
///
/// Open memory belongs to the runtime, and not to this value. Any `Ipc` of the runtime can close it, and stopping the
/// runtime closes all memory that is still open.
///
/// ```
/// # use hsa_vmm::{Ipc, PoolMemory, Runtime};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let memory = PoolMemory::allocate(&runtime, gpu, 4096)?;
/// let handle = Ipc::open(&runtime)?.get_mem_handle(memory.address())?;
/// // Another process passes the bytes to IpcHandle::from_bytes, and opens the handle.
/// let bytes = handle.to_bytes();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Ipc({agents:?}, trusts {trust:?})")]
pub struct Ipc {
    runtime: Runtime,
    /// Never empty.
    agents: Arc<[AgentId]>,
    /// The GPUs in the order of their numbers in handles.
    devices: Arc<[AgentId]>,
    trust: Trust,
    quirks: Quirks,
}

impl Ipc {
    /// Opens IPC for the first GPU and its peers.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if the runtime has no GPU.
    pub fn open(runtime: &Runtime) -> Result<Self, Error> {
        let first = runtime.gpus().next();
        let first = first.ok_or(Error::new(Operation::OpenIpc, Feature::Gpu))?;
        Self::on(runtime, first.id())
    }

    /// Opens IPC for a GPU and its peers (`hipSetDevice`). Opening a handle maps the memory for this GPU and for its
    /// peers: the GPUs that can access its memory and whose memory it can access.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an agent that is not a GPU of this runtime.
    pub fn on(runtime: &Runtime, gpu: AgentId) -> Result<Self, Error> {
        let is_gpu = |agent: &&Agent| agent.kind() == AgentKind::Gpu;
        let not_a_gpu = || ErrorKind::invalid(Argument::Agent, gpu, Problem::NotAGpu);
        let first = Operation::OpenIpc.run(|| {
            runtime.check_not_forked()?;
            runtime.agent(gpu).filter(is_gpu).ok_or_else(not_a_gpu)
        })?;
        let peers = runtime
            .gpus()
            .filter(|peer| peer.id() != gpu && peer.can_access(gpu) && first.can_access(peer.id()));
        let agents = core::iter::once(first).chain(peers).map(Agent::id).collect();
        let quirks = Quirks::of_runtime(runtime.info());
        let devices = runtime.gpus().map(Agent::id).collect();
        Ok(Self { runtime: runtime.clone(), agents, devices, trust: Trust::default(), quirks })
    }

    /// Opens only memory of processes of these users; the default is [`Trust::SameUser`].
    ///
    /// For a handle that is not [registered](IpcHandle::is_registered), such as a handle of HIP, only the process number
    /// is checked, which the sender can choose. Such a handle can name any memory that a trusted process exports and, if
    /// the runtime does not share by dma-buf, memory of a process of any user. Open such handles only if
    /// the sender is trusted, too.
    ///
    /// If the runtime shares memory by dma-buf, the server must run in the exporter. The server's process must have
    /// belonged to a trusted user when it began to listen (`SO_PEERCRED`).
    ///
    /// In addition, the kernel must allow this process to read `/proc/PID/fd` of the other process. The kernel allows
    /// root. It allows other processes if they have the same user and user namespace, and all capabilities of the other
    /// process, and if the other process is dumpable.
    #[must_use]
    pub fn with_trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Numbers the GPUs in handles ([`IpcHandle::device`]) by their positions in this list, as HIP does with the GPUs that
    /// `HIP_VISIBLE_DEVICES` selects. By default, the list is [`Runtime::gpus`]. A GPU outside the list has the
    /// number 0.
    #[must_use]
    pub fn with_devices(mut self, gpus: &[AgentId]) -> Self {
        self.devices = gpus.into();
        self
    }

    /// Works around these quirks, in addition to the known quirks of the runtime's version. Only
    /// [`ipc_server_outlives_stop`](Quirks::ipc_server_outlives_stop) has an effect on IPC.
    #[must_use]
    pub fn with_quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = self.quirks.union(quirks);
        self
    }

    /// Works around exactly these quirks, whatever the runtime's version is. Use this for tests.
    ///
    /// # Safety
    /// The runtime must not have any quirk that `quirks` omits, or the caller must not make calls that the
    /// quirk makes undefined. For example, if the runtime has the quirk `ipc_server_outlives_stop` and `quirks` omits
    /// it, dropping the last [`Runtime`] after an export is undefined behaviour.
    ///
    /// ```compile_fail,E0133
    /// # fn f(ipc: hsa_vmm::Ipc) {
    /// let ipc = ipc.with_exact_quirks(hsa_vmm::vmm::Quirks::default());
    /// # }
    /// ```
    #[must_use]
    pub unsafe fn with_exact_quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = quirks;
        self
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the GPUs for which memory is opened. The first GPU makes the copies.
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }

    /// Creates a handle for other processes (`hipIpcGetMemHandle`, `hsa_amd_ipc_memory_create`).
    ///
    /// `address` can be any address inside memory of a GPU that [`PoolMemory`](crate::PoolMemory) allocated. The
    /// importer's memory starts at `address`. Handles of one allocation differ only in the offset and the check value.
    /// Handles need not be freed: freeing the memory makes them invalid. ROCm 7.2 keeps exported memory, also after it
    /// was freed, until the process ends, unless `HSA_ENABLE_IPC_MODE_LEGACY=1` is set (`docs/defects.md`).
    ///
    /// Up to ROCm 7.2, a runtime that has shared memory by dma-buf cannot be stopped safely. The library therefore
    /// keeps this runtime started until the process ends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an address outside memory of a GPU that `PoolMemory` allocated;
    /// [`ErrorKind::NotShared`] if the runtime and the kernel driver cannot share the memory;
    /// [`ErrorKind::SocketTaken`] if another process has the socket of the runtime's server;
    /// [`ErrorKind::LimitReached`] if this process already exports 65536 allocations; [`ErrorKind::BeingOpened`] if
    /// another process is opening a handle that this call replaces; [`ErrorKind::Unavailable`] if `/proc` is not mounted,
    /// or shows another PID namespace; [`ErrorKind::OutOfDescriptors`]; [`ErrorKind::Runtime`]; [`ErrorKind::System`].
    pub fn get_mem_handle(&self, address: Address) -> Result<IpcHandle, Error> {
        Operation::GetMemHandle.run(|| {
            self.runtime.check_not_forked()?;
            exports::create_handle(self, address)
        })
    }

    /// Maps another process's memory (`hipIpcOpenMemHandle`, `hsa_amd_ipc_memory_attach`). Returns the address in this
    /// process that corresponds to the address for which the handle was created.
    ///
    /// `flags` is 0 or [`LAZY_ENABLE_PEER_ACCESS`], which HIP requires. The runtime maps the memory for
    /// [`agents`](Self::agents), and decides whether the CPU can access it: if AMD's runtime shares by dma-buf, the CPU
    /// cannot. Each open needs a [`close_mem_handle`](Self::close_mem_handle).
    ///
    /// # Errors
    /// [`ErrorKind::SameProcess`] for a handle of this process; [`ErrorKind::InvalidArgument`] for other
    /// flags or an empty handle; [`ErrorKind::Unavailable`] if the memory was freed or is smaller than the
    /// handle says; [`ErrorKind::Unavailable`] also if the exporting process has ended, is not trusted, cannot be
    /// inspected or is in another PID namespace; [`ErrorKind::OutOfDescriptors`], [`ErrorKind::Runtime`],
    /// [`ErrorKind::System`]. On ROCm 7.0 and 7.1, the first open of a handle that no server serves exports memory to
    /// find out how the runtime shares memory, and returns the errors of [`get_mem_handle`](Self::get_mem_handle), too.
    pub fn open_mem_handle(&self, handle: &IpcHandle, flags: u32) -> Result<Address, Error> {
        let base = self.open_as(Holder::Caller, handle, flags)?;
        Ok(Address::new(base + handle.offset as usize))
    }

    /// Closes the memory that contains an address, once for each [`open_mem_handle`](Self::open_mem_handle)
    /// (`hipIpcCloseMemHandle`, `hsa_amd_ipc_memory_detach`). The last close unmaps the memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for memory of this process, for memory that is not open, and for
    /// memory that only [`OpenedMemory`] has open ([`Problem::OwnedMemory`]).
    pub fn close_mem_handle(&self, address: Address) -> Result<(), Error> {
        self.close_at(address).map_err(|kind| Error::new(Operation::CloseMemHandle, kind))
    }
}

/// Returns the low bits of the inode number of this process's PID namespace. `process` is only used in the error.
fn own_namespace(process: i32) -> Result<[u8; 2], ErrorKind> {
    let namespace = pid_namespace().map_err(system("read"))?;
    let namespace = namespace.ok_or(unavailable(process, UnavailableReason::OtherNamespace))?;
    Ok((namespace as u16).to_le_bytes())
}

fn unavailable(process: i32, reason: UnavailableReason) -> ErrorKind {
    ErrorKind::Unavailable { process, reason }
}

/// Returns a function that converts the error number of a system call.
fn system(call: &'static str) -> impl Fn(Errno) -> ErrorKind {
    move |errno| ErrorKind::of_system(call, errno)
}

/// Returns the error for a failed call of the runtime. Tests for free descriptors, because the runtime can return any
/// status if it lacks descriptors.
fn of_failure(failure: Failure) -> ErrorKind {
    match failure.status {
        Status::MISSING_FUNCTION => failure.into(),
        _ if out_of_descriptors() => ErrorKind::OutOfDescriptors,
        status => ErrorKind::Runtime { call: failure.call, status },
    }
}

/// Calls `call` until it succeeds or fails with an error for which `should_retry` returns false. Pauses between the
/// calls.
fn retry<T>(
    should_retry: impl Fn(Errno) -> bool,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        match call() {
            Err(errno) if should_retry(errno) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Returns an unpredictable random number.
fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // The kernel never interrupts such a short request.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
