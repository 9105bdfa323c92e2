//! Pool memory in other processes: HIP's IPC, and what it leaves out.
//!
//! | HIP | here | HSA |
//! |---|---|---|
//! | `hipIpcGetMemHandle` | [`Ipc::get_mem_handle`] | `hsa_amd_ipc_memory_create` |
//! | `hipIpcOpenMemHandle` | [`Ipc::open_mem_handle`] | `hsa_amd_ipc_memory_attach` |
//! | `hipIpcCloseMemHandle` | [`Ipc::close_mem_handle`] | `hsa_amd_ipc_memory_detach` |
//!
//! [`IpcHandle`] has HIP's layout, so that a process that uses this library and one that uses HIP
//! can open each other's memory. Between two that use this library there is more:
//!
//! * A handle of memory that was freed, or whose process has ended, is refused at once, also if
//!   the address or the process's number is in use again. The exporter keeps an account that the
//!   importer looks at (through `/proc/<process>/fd`, hence both must belong to one user), and
//!   the memory is not freed while somebody is mapping it. AMD's runtime would wait for ever.
//! * A handle that was changed on its way is refused: every change of one bit, and all but one in
//!   four thousand million others. This detects corruption, not forgery: see [`IpcHandle`].
//! * Opening a handle twice gives the same address, and takes two closes. What an [`OpenedMemory`]
//!   owns is closed by that value alone.
//!
//! The size in any handle is checked against what the runtime has mapped: AMD's takes any size, and
//! a copy beyond the real end is a GPU page fault, which ends the process. Where a small allocation
//! is part of a larger block, the block is what the runtime maps, and a forged handle of HIP's can
//! reach the rest of the block.
//!
//! Of HIP's own handles, which have no account, only this much can be known: whether the process
//! is there, and (where the runtime shares by dma-buf, as since ROCm 7) whether its runtime hands
//! the memory out. Memory freed and allocated anew at the same address is opened as if it were the
//! old, as with HIP. Each open of such a handle maps the memory anew.
//!
//! Everything here is bounded in time, also if the other process is stopped or killed in the
//! middle: this process's runtime never waits for another's, which it would do for ever. What it
//! needs is fetched by this library and given to it. Opening takes at most 15 seconds for an
//! exporter that is about to free, and 5 for one that does not answer. Nothing else waits meanwhile.
//!
//! The exporter's side is not bounded where the runtime shares by dma-buf. AMD's server hands exported
//! memory to any process of the network namespace, of any user, and waits with its lock held until that
//! process acknowledges it or ends: until then [`Ipc::get_mem_handle`] waits, and so
//! does freeing the memory that it was called for. A process that takes the server's name in the moment between this library's look and the runtime's
//! `bind` ends the exporter (`SIGABRT`). Give processes that distrust each other a network namespace each;
//! `docs/defects.md` lists these defects.
//!
//! Memory of another user's process is refused unless [`Ipc::trusting`] says otherwise. Processes
//! find each other by number, so both must be in one PID namespace, with `/proc` mounted in it; a
//! handle of this library says in which it was made, and is refused elsewhere. Between namespaces
//! there is [`transport::Channel`](crate::transport::Channel).
//!
//! An address inside an allocation can be shared, and is where the other side begins: HIP forgets
//! the offset. A child of a fork has no IPC of its own until it opens a runtime of its own.

mod error;
mod exports;
mod handle;
mod imports;
mod opened;
mod relay;
mod server;
mod table;

pub use error::{IpcError, Operation, Problem, Stale};
pub use handle::IpcHandle;
use imports::Holder;
pub use opened::OpenedMemory;

use crate::agent::{Agent, AgentId, AgentKind};
use crate::process;
use crate::runtime::Runtime;
use crate::trust::Trust;
use crate::vmm::{Address, Quirks};
use std::sync::Arc;

/// The flag of [`Ipc::open_mem_handle`] that HIP knows (`hipIpcMemLazyEnablePeerAccess`). It
/// changes nothing: peers are always let in.
pub const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// Sharing of pool memory on one runtime, seen from one GPU. Cheap to clone; may be used from any
/// thread.
///
/// What is open belongs to the runtime and not to this value: any `Ipc` of the runtime may close
/// it, and what nobody closes is closed when the runtime stops.
#[derive(Clone, Debug)]
pub struct Ipc {
    runtime: Runtime,
    /// Never empty.
    agents: Arc<[AgentId]>,
    trust: Trust,
    quirks: Quirks,
}

impl Ipc {
    /// Opens IPC for the first GPU and its peers.
    ///
    /// # Errors
    /// [`IpcError::InvalidArgument`] if there is no GPU.
    pub fn open(runtime: &Runtime) -> Result<Self, IpcError> {
        let first = runtime.gpus().next();
        let first = first.ok_or(IpcError::refused(Operation::Open, Problem::NoGpu))?;
        Self::on(runtime, first.id())
    }

    /// Opens IPC for a GPU and its peers (`hipSetDevice`): what is opened is mapped for it and for
    /// the GPUs that it and they reach each other's memory of.
    ///
    /// # Errors
    /// [`IpcError::InvalidArgument`] for an agent that is no GPU of this runtime.
    pub fn on(runtime: &Runtime, gpu: AgentId) -> Result<Self, IpcError> {
        let operation = Operation::Open;
        if runtime.has_forked() {
            return Err(IpcError::Forked { operation });
        }
        let is_gpu = |agent: &&Agent| agent.kind() == AgentKind::Gpu;
        let first = runtime.agent(gpu).filter(is_gpu);
        let first = first.ok_or(IpcError::refused(operation, Problem::NotAGpu))?;
        let peers = runtime
            .gpus()
            .filter(|peer| peer.id() != gpu && peer.reaches(gpu) && first.reaches(peer.id()));
        let agents = core::iter::once(first).chain(peers).map(Agent::id).collect();
        let quirks = Quirks::of_extension(runtime.info().extension);
        Ok(Self { runtime: runtime.clone(), agents, trust: Trust::default(), quirks })
    }

    /// Opens memory of these processes only; without this, of those of the same user.
    ///
    /// Where the runtime shares memory by dma-buf, the server that hands it out must be the exporter
    /// itself, and have been of such a user when it began to listen (`SO_PEERCRED`).
    ///
    /// The kernel asks for more: it must let this process look at the other (`/proc/PID/fd`), which
    /// it lets root, and processes of the same user and user namespace.
    #[must_use]
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Works around these quirks, besides those known of the runtime's version. The one that matters
    /// here is [`ipc_server_outlives_stop`](Quirks::ipc_server_outlives_stop).
    #[must_use]
    pub fn with_quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = self.quirks.union(quirks);
        self
    }

    /// Works around these quirks and no others, whatever is known of the runtime's version: for
    /// tests.
    ///
    /// # Safety
    /// The runtime must not have any quirk that `quirks` leaves out, or the caller must not do what
    /// that quirk makes undefined: without `ipc_server_outlives_stop`, dropping the last
    /// [`Runtime`] after an export.
    ///
    /// ```compile_fail,E0133
    /// # fn f(ipc: hsa_vmm::Ipc) {
    /// let ipc = ipc.with_exact_quirks(hsa_vmm::vmm::Quirks::default());
    /// # }
    /// ```
    #[allow(unsafe_code, reason = "a promise of the caller's that the compiler cannot check")]
    #[must_use]
    pub unsafe fn with_exact_quirks(mut self, quirks: Quirks) -> Self {
        self.quirks = quirks;
        self
    }

    /// The runtime below.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The GPUs that opened memory is mapped for, the one that copies first.
    #[must_use]
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }

    fn alive(&self, operation: Operation) -> Result<(), IpcError> {
        if self.runtime.has_forked() { Err(IpcError::Forked { operation }) } else { Ok(()) }
    }

    /// Makes a handle for other processes (`hipIpcGetMemHandle`, `hsa_amd_ipc_memory_create`).
    ///
    /// The address may be anywhere inside memory of a GPU that [`PoolMemory`](crate::PoolMemory)
    /// allocated; the other side begins there. Handles of one allocation differ in the offset
    /// alone. They need not be given back: they end with the memory.
    ///
    /// Where the runtime shares memory by dma-buf and might not survive being stopped afterwards
    /// (until ROCm 7.2), it stays started until the process ends.
    ///
    /// # Errors
    /// [`IpcError::InvalidArgument`] for an address where no such memory is; it says what is there
    /// instead. [`IpcError::NotShared`] if the runtime and the kernel driver do not get on.
    /// [`IpcError::NameTaken`] if another process has the name of the runtime's server.
    pub fn get_mem_handle(&self, address: Address) -> Result<IpcHandle, IpcError> {
        self.alive(Operation::GetMemHandle)?;
        exports::get(&self.runtime, self.quirks, address)
    }

    /// Maps another process's memory (`hipIpcOpenMemHandle`, `hsa_amd_ipc_memory_attach`), and
    /// returns the address that the handle was made of, as it is here.
    ///
    /// `flags` may be 0 or [`LAZY_ENABLE_PEER_ACCESS`], which HIP insists on. The memory is mapped
    /// for [`agents`](Self::agents); whether this process's own loads reach it is up to the
    /// runtime. It is closed by [`close_mem_handle`](Self::close_mem_handle), as often as it was
    /// opened.
    ///
    /// # Errors
    /// [`IpcError::SameProcess`] for a handle of this process; [`IpcError::InvalidArgument`] for
    /// other flags or a handle that was never filled in; [`IpcError::Stale`] if the memory is not
    /// there any more, or smaller than the handle says; [`IpcError::Stranger`] for memory of a user who is not trusted,
    /// [`IpcError::Forbidden`] where the kernel says no; [`IpcError::OtherNamespace`] where the
    /// exporter's number means another process.
    pub fn open_mem_handle(&self, handle: &IpcHandle, flags: u32) -> Result<Address, IpcError> {
        let base = self.open_as(Holder::Caller, handle, flags)?;
        Ok(Address::new(base + handle.offset as usize))
    }

    /// Opens a handle for a holder, and returns where the whole allocation begins.
    fn open_as(&self, holder: Holder, handle: &IpcHandle, flags: u32) -> Result<usize, IpcError> {
        let operation = Operation::OpenMemHandle;
        let refused = |problem| Err(IpcError::refused(operation, problem));
        self.alive(operation)?;
        if flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
            return refused(Problem::UnknownFlags(flags));
        }
        if handle.size == 0 {
            return refused(Problem::EmptyHandle);
        }
        if handle.offset >= handle.size {
            return refused(Problem::OffsetBeyond);
        }
        if !handle.has_known_format() {
            return refused(Problem::UnknownFormat);
        }
        if let Some(registration) = handle.registration()
            && registration.namespace != namespace(operation, handle.process)?
        {
            return Err(IpcError::OtherNamespace { operation, process: handle.process });
        }
        if handle.process == std::process::id() as i32 {
            return Err(IpcError::SameProcess { operation });
        }
        let native = |id: &AgentId| self.runtime.agent(*id).map(|agent| agent.native);
        let agents: Vec<_> = self.agents.iter().filter_map(native).collect();
        let Some((&first, others)) = agents.split_first() else {
            return refused(Problem::NotAGpu);
        };
        imports::open(&self.runtime, handle, holder, self.trust, (first, others))
    }

    /// Closes what [`open_mem_handle`](Self::open_mem_handle) opened, once (`hipIpcCloseMemHandle`,
    /// `hsa_amd_ipc_memory_detach`). Takes any address inside it. The last close unmaps it.
    ///
    /// # Errors
    /// [`IpcError::InvalidArgument`] for this process's own memory, for what is not open, and for
    /// what only [`OpenedMemory`] has open ([`Problem::Owned`]).
    pub fn close_mem_handle(&self, address: Address) -> Result<(), IpcError> {
        self.alive(Operation::CloseMemHandle)?;
        imports::close(&self.runtime, address)
    }

    /// Closes what a value opened, which begins at this address.
    fn close_owned(&self, base: usize) -> Result<(), IpcError> {
        self.alive(Operation::CloseMemHandle)?;
        imports::close_owned(&self.runtime, base)
    }
}

/// The end of the number of this process's PID namespace, in which `process` is a number.
fn namespace(operation: Operation, process: i32) -> Result<u16, IpcError> {
    let namespace = process::namespace().map_err(|errno| IpcError::system(operation, errno))?;
    Ok(namespace.ok_or(IpcError::OtherNamespace { operation, process })? as u16)
}
