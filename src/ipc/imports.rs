//! Memory of other processes that is open in this one.

use super::error::{IpcError, Operation, Problem, Stale};
use super::handle::IpcHandle;
use super::relay;
use super::server;
use super::table::{Absent, while_exported};
use crate::memory::Registry;
use crate::native::{Native, NativeAgent, NativeIpc};
use crate::process::Found;
use crate::runtime::{Attachment, Runtime};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::trust::Trust;
use crate::vmm::Address;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Identifies an export among all exports of all processes: process, generation, runtime's handle.
type Name = (i32, u64, NativeIpc);

/// Who closes an open import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The caller of `Ipc::open_mem_handle`, by an address.
    Caller,
    /// An `OpenedMemory`, which must not lose its memory before it is dropped.
    Value,
}

#[derive(Debug)]
struct Import {
    size: usize,
    /// None for a handle of HIP's, which may name other memory later.
    name: Option<Name>,
    /// Opens that callers have to close.
    callers: usize,
    /// Opens that values own.
    values: usize,
}

impl Import {
    fn new(size: usize, name: Option<Name>) -> Self {
        Self { size, name, callers: 0, values: 0 }
    }

    fn count(&mut self, holder: Holder) -> &mut usize {
        match holder {
            Holder::Caller => &mut self.callers,
            Holder::Value => &mut self.values,
        }
    }
}

/// The open imports, by start address.
type Open = BTreeMap<usize, Import>;

/// All open imports of a runtime. The lock is held while the runtime maps and unmaps, but never
/// while another process is waited for.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    open: Mutex<Open>,
}

impl Imports {
    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Attachment for Imports {
    /// Closes what is still open, before the runtime stops.
    fn close(&self, native: &Native) {
        for start in std::mem::take(&mut *self.open()).into_keys() {
            if let Err(failure) = native.ipc_detach(start) {
                crate::log::warning!(?failure, "memory of another process stays mapped");
            }
        }
    }
}

/// Opens a handle for agents, and returns where its memory begins.
pub(super) fn open(
    runtime: &Runtime,
    handle: &IpcHandle,
    holder: Holder,
    trust: Trust,
    agents: (NativeAgent, &[NativeAgent]),
) -> Result<usize, IpcError> {
    let operation = Operation::OpenMemHandle;
    let IpcHandle { native, process, .. } = *handle;
    let system = |errno| IpcError::system(operation, errno);
    let size = usize::try_from(handle.size)
        .map_err(|_| IpcError::refused(operation, Problem::OffsetBeyond))?;
    let stale = |stale| IpcError::Stale { operation, process, stale };
    let number = Pid::from_raw(process.max(0)).ok_or(stale(Stale::NoProcess))?;
    let look_up = || {
        let found = Found::of(number).map_err(system)?.ok_or(stale(Stale::NoProcess))?;
        let checked = trust.check_all(found.users);
        checked.map_err(|stranger| IpcError::Stranger { operation, process, stranger })?;
        Ok::<_, IpcError>(found)
    };
    let exporter = look_up()?;
    // The runtime would connect to any server that the handle names, and ask it for anything: also if
    // the handle is registered, as the exporter writes what it likes into its table.
    if server::is_in_use(runtime)
        && runtime.info().path.is_some()
        && !server::is_asked_for(native, process)
    {
        return Err(stale(Stale::Freed));
    }
    // What waits for the exporter comes before the lock: another open or close must not wait for it.
    let fetch = || {
        let memory = if server::is_asked_for(native, process) {
            let fetched = server::fetch(native, process, trust);
            Some(fetched.map_err(|denial| denial.into_error(operation, process))?)
        } else {
            None
        };
        // Meanwhile it may have ended, or become another user's.
        if look_up()?.is_same(exporter) { Ok(memory) } else { Err(stale(Stale::NoProcess)) }
    };
    let attach = |memory: Option<OwnedFd>| {
        let attach = |native| {
            let (first, others) = agents;
            let attached = runtime.native().ipc_attach(native, size, first, others);
            attached.map_err(|failure| IpcError::failure(operation, failure))
        };
        match memory {
            Some(memory) => relay::hand_over(native, &memory, attach).map_err(system)?,
            None => attach(native),
        }
    };
    // AMD's runtime takes any size for granted; copies beyond the real end are GPU page faults.
    let attach_all = |open: &Open, memory: Option<OwnedFd>| {
        let start = attach(memory)?;
        let error = match runtime.native().ipc_is_attached(start, size) {
            Ok(true) => return Ok(start),
            Ok(false) => stale(Stale::TooLarge),
            Err(failure) => IpcError::failure(operation, failure),
        };
        // The runtime may return an address where the memory is mapped already, without counting.
        if !open.contains_key(&start)
            && let Err(failure) = runtime.native().ipc_detach(start)
        {
            crate::log::warning!(?failure, "memory of another process stays mapped");
        }
        Err(error)
    };
    let Some(registration) = handle.registration() else {
        let memory = fetch()?;
        let imports = runtime.attachment::<Imports>();
        let mut open = imports.open();
        let start = attach_all(&open, memory)?;
        let import = open.entry(start).or_insert(Import::new(size, None));
        import.size = import.size.max(size);
        *import.count(holder) += 1;
        return Ok(start);
    };
    let opened = while_exported(handle, registration, |generation| {
        let name = Some((process, generation, native));
        let count_one_more = |open: &mut Open| {
            let (start, import) = open.iter_mut().find(|(_, import)| import.name == name)?;
            *import.count(holder) += 1;
            Some(*start)
        };
        let known = count_one_more(&mut runtime.attachment::<Imports>().open());
        if let Some(start) = known {
            return Ok(start);
        }
        let memory = fetch()?;
        let imports = runtime.attachment::<Imports>();
        let mut open = imports.open();
        // Another thread may have opened it meanwhile.
        if let Some(start) = count_one_more(&mut open) {
            return Ok(start);
        }
        let start = attach_all(&open, memory)?;
        *open.entry(start).or_insert(Import::new(size, name)).count(holder) += 1;
        Ok(start)
    });
    opened.map_err(|absent| match absent {
        // A process that has nothing exported any more has no table either.
        Absent::Table | Absent::Export => stale(Stale::Freed),
        Absent::Busy => stale(Stale::BeingFreed),
        Absent::Forbidden => IpcError::Forbidden { operation, process },
        Absent::System(errno) => system(errno),
    })?
}

/// Closes one of a caller's opens of the memory that holds an address.
pub(super) fn close(runtime: &Runtime, address: Address) -> Result<(), IpcError> {
    let refused = |problem| Err(IpcError::refused(Operation::CloseMemHandle, problem));
    if address == Address::NULL {
        return refused(Problem::Null);
    }
    if runtime.attachment::<Registry>().around(address.get()).is_some() {
        return refused(Problem::OwnMemory);
    }
    let imports = runtime.attachment::<Imports>();
    let mut open = imports.open();
    let found = open.range(..=address.get()).next_back();
    match found.filter(|(start, import)| address.get() - **start < import.size) {
        None => refused(Problem::NotOpened),
        Some((_, import)) if import.callers == 0 => refused(Problem::Owned),
        Some((&start, _)) => release(runtime.native(), &mut open, start, Holder::Caller),
    }
}

/// Closes a value's open of the memory that begins at an address.
pub(super) fn close_owned(runtime: &Runtime, start: usize) -> Result<(), IpcError> {
    release(runtime.native(), &mut runtime.attachment::<Imports>().open(), start, Holder::Value)
}

/// Counts an open of this holder as closed; the last of all unmaps the memory.
fn release(native: &Native, open: &mut Open, start: usize, holder: Holder) -> Result<(), IpcError> {
    let operation = Operation::CloseMemHandle;
    let not_opened = IpcError::refused(operation, Problem::NotOpened);
    let import = open.get_mut(&start).ok_or(not_opened)?;
    let opens = import.callers + import.values;
    match import.count(holder) {
        0 => return Err(not_opened),
        count if opens > 1 => *count -= 1,
        _ => {
            let detached = native.ipc_detach(start);
            detached.map_err(|failure| IpcError::failure(operation, failure))?;
            open.remove(&start);
        }
    }
    Ok(())
}
