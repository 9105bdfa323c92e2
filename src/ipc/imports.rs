//! Memory of other processes that is open in this process.

use super::exports::find_mode;
use super::handle::{FORMAT, IpcHandle};
use super::mode::IpcMode;
use super::table::while_exported;
use super::{
    Ipc, LAZY_ENABLE_PEER_ACCESS, of_failure, own_namespace, server_client, system, unavailable,
};
use crate::agent::AgentId;
use crate::error::{
    Argument, Error, ErrorKind, Operation, Problem, Rejected, UnavailableReason, Value,
};
use crate::memory::{Registry, Span};
use crate::native::{Native, NativeIpc, Status, close_foreign, with_signals_blocked};
use crate::runtime::{Attachment, Implementation, Runtime};
use crate::sync::{Mutex, lock};
use crate::trust::Process;
use crate::vmm::Address;
use core::ops::Deref;
use derive_more::Debug;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// How often the library asks the runtime to open memory whose descriptor the library has: a signal that cannot be
/// blocked, such as `SIGSTOP`, makes AMD's runtime give up.
const ATTEMPTS: usize = 5;

/// The word of ROCm 7.2's handle that contains a random number. The runtime also stores the number in the driver's
/// metadata of the block of 2 MiB, and rejects a handle with another number. When the exporter frees the memory that
/// was exported first, the runtime clears the number, although the block can contain other exported memory.
const BLOCK_NUMBER: usize = 7;

/// Open memory of another process. Dropping the value closes the memory.
///
/// The value dereferences to a [`Span`], whose methods read and write the memory with the first agent of the [`Ipc`].
///
/// Only this value closes the memory; [`Ipc::close_mem_handle`] does not.
///
/// ```no_run
/// # use hsa_vmm::ipc::{IpcHandle, OpenedMemory};
/// # use hsa_vmm::Ipc;
/// # fn f(ipc: &Ipc, received: [u8; IpcHandle::SIZE]) -> Result<(), hsa_vmm::Error> {
/// let memory = OpenedMemory::open(ipc, &IpcHandle::from_bytes(&received))?;
/// memory.write(0, b"hello")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("OpenedMemory({:#x} bytes at {})", self.size(), self.address())]
pub struct OpenedMemory {
    span: Span,
    /// The start address of the whole allocation.
    base: usize,
    closed: bool,
}

impl OpenedMemory {
    /// Opens a handle (`hipIpcOpenMemHandle`).
    ///
    /// The memory starts at the address for which the handle was created, and extends to the end of the other
    /// process's allocation. The memory stays valid after the exporter frees it or exits.
    ///
    /// # Errors
    /// As for [`Ipc::open_mem_handle`].
    pub fn open(ipc: &Ipc, handle: &IpcHandle) -> Result<Self, Error> {
        Self::open_at(ipc, handle, handle.offset)
    }

    /// Opens the whole allocation of a handle. Like HIP's `hipIpcOpenMemHandle`, ignores for which address of the
    /// allocation the handle was created.
    ///
    /// # Errors
    /// As for [`Ipc::open_mem_handle`].
    pub fn open_allocation(ipc: &Ipc, handle: &IpcHandle) -> Result<Self, Error> {
        Self::open_at(ipc, handle, 0)
    }

    /// Opens the memory from `offset` to the end of the allocation. `offset` is at most the handle's.
    fn open_at(ipc: &Ipc, handle: &IpcHandle, offset: u64) -> Result<Self, Error> {
        let base = ipc.open_as(Holder::OpenedMemory, handle, 0)?;
        // `open_as` has checked the handle's offset.
        let start = base + offset as usize;
        let size = (handle.allocation_size - offset) as usize;
        let agent = &ipc.runtime().agents()[ipc.agents()[0].index()];
        // SAFETY: the runtime has mapped the memory for this agent. Only the new value closes the memory, when the
        // value is consumed or dropped.
        let span = unsafe { Span::opened(ipc.runtime(), agent, start, size) };
        Ok(Self { span, base, closed: false })
    }

    /// Closes the memory (`hipIpcCloseMemHandle`).
    ///
    /// # Errors
    /// [`ErrorKind::Forked`], [`ErrorKind::Runtime`]; the error contains this value, which is still open. After
    /// [`ErrorKind::Runtime`], do not access the memory, but close or drop the value: the runtime may have unmapped the
    /// memory for some agents, whose accesses would then end the process.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the memory; closing is not frequent"
    )]
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        let closed = close_owned(self.runtime(), self.base);
        self.closed = closed.is_ok();
        closed.map_err(|error| Rejected { value: self, error })
    }
}

impl Deref for OpenedMemory {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        if !self.closed
            && !self.runtime().has_forked()
            && let Err(error) = close_owned(self.runtime(), self.base)
        {
            crate::log::event!(WARN, %error, address = %self.address(), "opened memory was not closed");
        }
    }
}

/// The identifier of an export among the exports of all processes: process, generation, runtime's handle.
type ExportId = (i32, u64, NativeIpc);

/// The code that has opened an import and must close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The caller of `Ipc::open_mem_handle`, who closes the import by an address.
    Caller,
    /// An `OpenedMemory`, whose memory must stay open until it is dropped.
    OpenedMemory,
}

/// An import: memory of another process that the runtime has mapped.
#[derive(Debug, Default)]
struct Import {
    size: usize,
    /// `None` for a handle from HIP, which can identify other memory later.
    export: Option<ExportId>,
    /// The agents for which the runtime has mapped the memory.
    agents: Vec<AgentId>,
    /// For each [`Holder`], the number of its opens that it has not closed yet.
    opens: [usize; 2],
    /// Whether the runtime has failed to unmap the memory. It may then be unmapped for some of the agents.
    detach_failed: bool,
}

/// The open imports, by start address.
type OpenImports = BTreeMap<usize, Import>;

/// All open imports of a runtime. A thread locks the list while the runtime maps or unmaps memory, but not while it
/// waits for another process.
#[derive(Debug, Default)]
struct Imports(Mutex<OpenImports>);

impl Attachment for Imports {
    /// Closes all open imports before the runtime stops.
    fn close(&self, native: &Native) {
        for start in std::mem::take(&mut *lock(&self.0)).into_keys() {
            // SAFETY: imports in the list are attached. No `OpenedMemory` uses them, because it keeps
            // the runtime started.
            if let Err(failure) = unsafe { native.ipc_detach(start) } {
                crate::log::event!(WARN, ?failure, "memory of another process stays mapped");
            }
        }
    }
}

/// Finds the open import that contains an address. Also returns the import's start address.
fn import_at(list: &OpenImports, address: Address) -> Option<(usize, &Import)> {
    let (&start, import) = list.range(..=address.get()).next_back()?;
    (address.get() - start < import.size).then_some((start, import))
}

/// Returns whether memory of another process is open at an address.
pub(super) fn is_open(runtime: &Runtime, address: Address) -> bool {
    import_at(&lock(&runtime.attachment::<Imports>().0), address).is_some()
}

/// If this process has already opened an export for all of `agents`, counts another open and returns the start
/// address. Rejects a handle whose size exceeds the size that is open: the exporter can forge the size, in the handle
/// and in its table.
fn count_open(
    list: &mut OpenImports,
    export: Option<ExportId>,
    handle: &IpcHandle,
    agents: &[AgentId],
    holder: Holder,
) -> Result<Option<usize>, ErrorKind> {
    // The runtime maps a handle from HIP again on each open.
    let is_open = |import: &Import| {
        export.is_some()
            && import.export == export
            && !import.detach_failed
            && agents.iter().all(|agent| import.agents.contains(agent))
    };
    let Some((start, import)) = list.iter_mut().find(|(_, import)| is_open(import)) else {
        return Ok(None);
    };
    if handle.allocation_size > import.size as u64 {
        return Err(unavailable(handle.process, UnavailableReason::TooLarge));
    }
    import.opens[holder as usize] += 1;
    Ok(Some(*start))
}

impl Ipc {
    /// Opens a handle for a holder. Returns the start address of the whole allocation.
    pub(super) fn open_as(
        &self,
        holder: Holder,
        handle: &IpcHandle,
        flags: u32,
    ) -> Result<usize, Error> {
        let opened = self.check_handle(handle, flags).and_then(|()| self.try_open(holder, handle));
        opened.map_err(|kind| Error::new(Operation::OpenMemHandle, kind))
    }

    /// Checks the handle and the flags as far as possible without accessing the exporter.
    fn check_handle(&self, handle: &IpcHandle, flags: u32) -> Result<(), ErrorKind> {
        self.runtime().check_not_forked()?;
        if flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
            let problem = Problem::UndefinedFlags(LAZY_ENABLE_PEER_ACCESS.into());
            return Err(ErrorKind::invalid(Argument::Flags, Value::Bytes(flags.into()), problem));
        }
        let invalid = |problem| Err(ErrorKind::without_value(Argument::IpcHandle, problem));
        if handle.allocation_size == 0 {
            return invalid(Problem::Empty);
        }
        if handle.offset >= handle.allocation_size {
            let problem = Problem::OutOfBounds { size: 1, end: handle.allocation_size as usize };
            return Err(ErrorKind::invalid(Argument::Offset, handle.offset as usize, problem));
        }
        if handle.is_registered() {
            if handle.registration.format != FORMAT {
                return invalid(Problem::UnknownFormat);
            }
            if handle.registration.namespace != own_namespace(handle.process)? {
                return Err(unavailable(handle.process, UnavailableReason::OtherNamespace));
            }
        }
        if handle.process == std::process::id() as i32 {
            return Err(ErrorKind::SameProcess);
        }
        Ok(())
    }

    fn try_open(&self, holder: Holder, handle: &IpcHandle) -> Result<usize, ErrorKind> {
        let IpcHandle { native, process, .. } = *handle;
        let runtime = self.runtime();
        let is_served = server_client::is_served_by(native, process);
        let exporter = self.find_exporter(process)?;
        // Rejects a handle that does not name the exporter's own server, because the runtime would connect to any
        // server that the handle names. This check is also needed for registered handles: the exporter can write any
        // entry to its table.
        let is_simulation = runtime.info().implementation == Implementation::Simulation;
        if !is_served
            && !is_simulation
            && find_mode(runtime, self.quirks, self.agents()[0])? == IpcMode::Server
        {
            return Err(unavailable(process, UnavailableReason::NotServed));
        }
        let open_export = |export| {
            let imports = runtime.attachment::<Imports>();
            let reopen = |list: &mut _| count_open(list, export, handle, self.agents(), holder);
            if let Some(start) = reopen(&mut lock(&imports.0))? {
                return Ok(start);
            }
            // Does not lock the list while waiting for the exporter, so that other calls need not wait.
            let fetch = || server_client::fetch(native, process, self.trust);
            let dma_buf = is_served.then(fetch).transpose()?;
            let open = || {
                // The exporter can have ended, or changed its user IDs, during the wait.
                if !self.find_exporter(process)?.is_same_process(exporter) {
                    return Err(unavailable(process, UnavailableReason::NoProcess));
                }
                let mut list = lock(&imports.0);
                // Another thread can have opened the memory during the wait.
                if let Some(start) = reopen(&mut list)? {
                    return Ok(start);
                }
                let (start, size) = self.attach(&list, handle, dma_buf.as_ref())?;
                let import = list.entry(start).or_insert(Import { export, ..Import::default() });
                import.size = import.size.max(size);
                import.detach_failed = false;
                // The runtime may return the address of an earlier attach. The memory stays mapped for the agents of
                // that attach.
                import.agents.extend_from_slice(self.agents());
                import.opens[holder as usize] += 1;
                Ok(start)
            };
            let opened = open();
            // Closed only now, because the exporter can make closing slow, and the list must not stay locked meanwhile.
            close_foreign(dma_buf.into_iter().collect());
            opened
        };
        if handle.is_registered() {
            while_exported(handle, |generation| open_export(Some((process, generation, native))))
        } else {
            open_export(None)
        }
    }

    /// Looks up the exporting process, and rejects it if one of its user IDs is not trusted.
    fn find_exporter(&self, process: i32) -> Result<Process, ErrorKind> {
        let no_process = || unavailable(process, UnavailableReason::NoProcess);
        let pid = Pid::from_raw(process.max(0)).ok_or_else(no_process)?;
        let found = Process::find(pid).map_err(system("read"))?.ok_or_else(no_process)?;
        let trusted = self.trust.check_all(found.users);
        trusted.map_err(|user| unavailable(process, UnavailableReason::Untrusted(user)))?;
        Ok(found)
    }

    /// Makes the runtime map the memory of a handle. If the exporter's server has sent the memory, `dma_buf` is the
    /// memory's descriptor. Returns the start address and the size.
    fn attach(
        &self,
        list: &OpenImports,
        handle: &IpcHandle,
        dma_buf: Option<&OwnedFd>,
    ) -> Result<(usize, usize), ErrorKind> {
        let (runtime, size) = (self.runtime(), handle.allocation_size as usize);
        let native_of = |id: &AgentId| runtime.agents()[id.index()].native;
        let first = native_of(&self.agents()[0]);
        let others: Vec<_> = self.agents()[1..].iter().map(native_of).collect();
        let attach = |native| runtime.native().ipc_attach(native, size, first, &others);
        // AMD's runtime gives up if a signal interrupts its `recvmsg`.
        let relay = |native, dma_buf| {
            with_signals_blocked(|| server_client::with_relay(native, dma_buf, attach))
        };
        // Only for a registered handle, the table of exports shows that the memory was not freed.
        let may_clear_number =
            handle.is_registered() && matches!(runtime.info().extension, (1, 15..=17));
        let start = match dma_buf {
            Some(dma_buf) => {
                let mut start = relay(handle.native, dma_buf)?;
                for attempt in 1..ATTEMPTS {
                    if !start.is_err_and(|it| it.status == Status::INVALID_ARGUMENT) {
                        break;
                    }
                    let mut native = handle.native;
                    if may_clear_number && attempt % 2 == 1 {
                        native[BLOCK_NUMBER] = 0;
                    }
                    start = relay(native, dma_buf)?;
                }
                start
            }
            None => attach(handle.native),
        };
        let start = start.map_err(|failure| match IpcMode::of(runtime) {
            // The runtime does not open handles that a server made.
            IpcMode::Driver if dma_buf.is_some() => {
                unavailable(handle.process, UnavailableReason::NotServed)
            }
            _ => of_failure(failure),
        })?;
        // AMD's runtime accepts any size. A copy past the end of the memory would cause a GPU page fault.
        let kind = match runtime.native().ipc_is_attached(start, size) {
            Ok(true) => return Ok((start, size)),
            Ok(false) => unavailable(handle.process, UnavailableReason::TooLarge),
            Err(failure) => of_failure(failure),
        };
        // The runtime can return the address of an earlier attach. That memory must stay attached.
        if !list.contains_key(&start) {
            // SAFETY: the runtime has just attached the memory, and nothing uses the address: the list is
            // locked and does not contain it.
            let detached = unsafe { runtime.native().ipc_detach(start) };
            if let Err(failure) = detached {
                crate::log::event!(WARN, ?failure, "memory of another process stays mapped");
            }
        }
        Err(kind)
    }

    /// Closes one open of the memory that contains an address ([`Holder::Caller`]). The last close unmaps the memory.
    pub(super) fn close_at(&self, address: Address) -> Result<(), ErrorKind> {
        self.runtime().check_not_forked()?;
        let invalid = |problem| Err(ErrorKind::invalid(Argument::Address, address, problem));
        if address == Address::NULL {
            return invalid(Problem::Null);
        }
        if self.runtime().attachment::<Registry>().containing(address.get()).is_some() {
            return invalid(Problem::OwnMemory);
        }
        let imports = self.runtime().attachment::<Imports>();
        let mut list = lock(&imports.0);
        match import_at(&list, address) {
            None => invalid(Problem::NotOpened),
            Some((_, import)) if import.opens[Holder::Caller as usize] == 0 => {
                invalid(Problem::OwnedMemory)
            }
            Some((start, _)) => release(self.runtime().native(), &mut list, start, Holder::Caller),
        }
    }
}

/// Closes the memory of an `OpenedMemory`, by its start address.
fn close_owned(runtime: &Runtime, start: usize) -> Result<(), Error> {
    let closed = runtime.check_not_forked().and_then(|()| {
        let imports = runtime.attachment::<Imports>();
        release(runtime.native(), &mut lock(&imports.0), start, Holder::OpenedMemory)
    });
    closed.map_err(|kind| Error::new(Operation::CloseMemHandle, kind))
}

/// Decrements the holder's count of opens. If no holder has an open left, unmaps the memory.
fn release(
    native: &Native,
    list: &mut OpenImports,
    start: usize,
    holder: Holder,
) -> Result<(), ErrorKind> {
    let not_opened =
        || ErrorKind::invalid(Argument::Address, Address::new(start), Problem::NotOpened);
    let import = list.get_mut(&start).filter(|import| import.opens[holder as usize] > 0);
    let import = import.ok_or_else(not_opened)?;
    if import.opens.iter().sum::<usize>() == 1 {
        // SAFETY: imports in the list are attached. This is the last open, and a holder does not use the memory after
        // closing it.
        let detached = unsafe { native.ipc_detach(start) };
        import.detach_failed = detached.is_err();
        detached.map_err(of_failure)?;
        list.remove(&start);
    } else {
        import.opens[holder as usize] -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_for_other_agents_is_not_shared() {
        let runtime = Runtime::simulated(crate::simulation::Config::mi300x(2)).unwrap();
        let [first, second] = [0, 1].map(|gpu| runtime.gpus().nth(gpu).unwrap().id());
        let export = Some((1, 2, NativeIpc::default()));
        let import =
            Import { size: 4096, export, agents: vec![first], opens: [1, 0], detach_failed: false };
        let mut list = OpenImports::from([(0x1000, import)]);
        let handle = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
        let count = |list: &mut _, agents: &[AgentId]| {
            count_open(list, export, &handle, agents, Holder::OpenedMemory).unwrap().is_some()
        };
        assert!(count(&mut list, &[first]));
        // The runtime has not mapped the memory for this agent.
        assert!(!count(&mut list, &[second]));
        assert!(!count(&mut list, &[first, second]));
        assert_eq!(list[&0x1000].opens, [1, 1]);
        // The runtime may have unmapped the memory for this agent.
        list.get_mut(&0x1000).unwrap().detach_failed = true;
        assert!(!count(&mut list, &[first]));
    }
}
