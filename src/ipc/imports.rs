//! What this process has opened of others.

use super::error::{IpcError, Operation, Problem, Stale};
use super::handle::IpcHandle;
use super::relay;
use super::server::{self, Denial};
use super::table::{Absent, while_exported};
use crate::native::{Native, NativeAgent, NativeIpc};
use crate::process::user;
use crate::runtime::Runtime;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::trust::Trust;
use crate::vmm::Address;
use rustix::process::Pid;
use std::collections::BTreeMap;

/// What tells exported memory from all other, at any time.
type Name = (i32, u64, NativeIpc);

#[derive(Debug)]
struct Import {
    size: usize,
    /// None of a handle of HIP's, which may name other memory tomorrow.
    name: Option<Name>,
    /// How often it was opened and not closed.
    count: usize,
}

/// All that is open, by where it begins. The lock is held while the runtime maps and unmaps.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    open: Mutex<BTreeMap<usize, Import>>,
}

impl Imports {
    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, Import>> {
        lock(&self.open)
    }

    /// Closes what is still open, before the runtime stops.
    pub fn close_all(&self, native: &Native) {
        for start in std::mem::take(&mut *self.open()).into_keys() {
            if let Err(failure) = native.ipc_detach(start) {
                tracing::warn!(?failure, "memory of another process stays mapped");
            }
        }
    }
}

/// Opens a handle for agents, and returns where its memory begins.
pub(super) fn open(
    runtime: &Runtime,
    handle: &IpcHandle,
    trust: Trust,
    first: NativeAgent,
    others: &[NativeAgent],
) -> Result<usize, IpcError> {
    let operation = Operation::OpenMemHandle;
    let IpcHandle { native, process, .. } = *handle;
    let system = |errno| IpcError::system(operation, errno);
    let size = usize::try_from(handle.size)
        .map_err(|_| IpcError::refused(operation, Problem::OffsetBeyond))?;
    let stale = |stale| IpcError::Stale { operation, process, stale };
    let number = Pid::from_raw(process.max(0)).ok_or(stale(Stale::NoProcess))?;
    let owner = user(number).map_err(system)?.ok_or(stale(Stale::NoProcess))?;
    trust.check(owner).map_err(|stranger| IpcError::Stranger { operation, process, stranger })?;
    let attach = || {
        let attach = |native| {
            let attached = runtime.native().ipc_attach(native, size, first, others);
            attached.map_err(|failure| IpcError::failure(operation, failure))
        };
        if !server::is_asked_for(native, process) {
            return attach(native);
        }
        let memory = server::fetch(native).map_err(|denial| match denial {
            Denial::Unknown => stale(Stale::Freed),
            Denial::Nobody => stale(Stale::NoServer),
            Denial::Silent => stale(Stale::NoAnswer),
            Denial::System(errno) => system(errno),
        })?;
        relay::hand_over(native, &memory, attach).map_err(system)?
    };
    let mut open = runtime.imports().open();
    let Some(registration) = handle.registration() else {
        let start = attach()?;
        // The runtime may answer where it has mapped the memory already; it does not count that.
        open.entry(start).or_insert(Import { size, name: None, count: 0 }).count += 1;
        return Ok(start);
    };
    let name = Some((process, registration.generation, native));
    let opened = while_exported(process, registration, handle.size, native, || {
        if let Some((start, import)) = open.iter_mut().find(|(_, import)| import.name == name) {
            import.count += 1;
            return Ok(*start);
        }
        let start = attach()?;
        open.insert(start, Import { size, name, count: 1 });
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

/// Closes once what an address is in.
pub(super) fn close(runtime: &Runtime, address: Address) -> Result<(), IpcError> {
    let operation = Operation::CloseMemHandle;
    let refused = |problem| Err(IpcError::refused(operation, problem));
    if address == Address::NULL {
        return refused(Problem::Null);
    }
    if runtime.memory().around(address.get()).is_some() {
        return refused(Problem::OwnMemory);
    }
    let mut open = runtime.imports().open();
    let found = open.range_mut(..=address.get()).next_back();
    let found = found.filter(|(start, import)| address.get() - **start < import.size);
    let Some((&start, import)) = found else {
        return refused(Problem::NotOpened);
    };
    if import.count > 1 {
        import.count -= 1;
        return Ok(());
    }
    runtime.native().ipc_detach(start).map_err(|failure| IpcError::failure(operation, failure))?;
    open.remove(&start);
    Ok(())
}
