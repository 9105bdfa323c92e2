//! What this process has exported.

use super::error::{IpcError, Operation, Problem};
use super::handle::{IpcHandle, Registration};
use super::server::{self, is_asked_for, is_taken};
use super::table::{Entry, Table};
use crate::error::{Busy, ErrorKind};
use crate::memory::{Exported, Record, Registry, State};
use crate::native::{Known, NativeIpc, Status, without_sigpipe};
use crate::runtime::{Attachment, Runtime};
use crate::sync::{Mutex, lock};
use crate::vmm::{Address, Quirks};
use core::any::Any;
use rustix::io::Errno;
use std::sync::{Arc, Weak};

/// The table of one runtime's exports, which is there as long as there are any.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    table: Mutex<Weak<Table>>,
    /// Held while the runtime may start its server: between its `bind` and `listen` another thread would
    /// take the name for another process's.
    creating: Mutex<()>,
}

impl Attachment for Exports {}

impl Exports {
    fn table(&self, process: i32, namespace: u16) -> Result<Arc<Table>, Errno> {
        let mut kept = lock(&self.table);
        if let Some(table) = kept.upgrade() {
            return Ok(table);
        }
        let table = Arc::new(Table::new(process, namespace)?);
        *kept = Arc::downgrade(&table);
        Ok(table)
    }
}

/// An allocation that other processes may open.
#[derive(Debug)]
pub(crate) struct Export {
    table: Arc<Table>,
    registration: Registration,
    entry: Entry,
    process: i32,
}

impl Exported for Export {
    fn end(&self, free: &mut dyn FnMut() -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        self.table.end(self.registration.slot, self.entry, free).unwrap_or_else(|errno| {
            crate::log::warning!(%errno, "an export could not be ended");
            Err(ErrorKind::Busy(Busy::BeingOpened))
        })
    }
}

impl Export {
    fn handle(&self, offset: u64) -> IpcHandle {
        let Self { registration, entry: Entry { generation, size, native }, process, .. } = *self;
        IpcHandle::new(native, size, offset, process, registration, generation)
    }
}

/// Makes a handle of the allocation that an address is in.
pub(super) fn get(
    runtime: &Runtime,
    quirks: Quirks,
    address: Address,
) -> Result<IpcHandle, IpcError> {
    let operation = Operation::GetMemHandle;
    let refused = |problem| IpcError::refused(operation, problem);
    if address == Address::NULL {
        return Err(refused(Problem::Null));
    }
    let Some(record) = runtime.attachment::<Registry>().around(address.get()) else {
        let known = runtime.native().known_at(address.get());
        let known = known.map_err(|failure| IpcError::failure(operation, failure))?;
        return Err(refused(match known {
            Known::Virtual => Problem::VirtualMemory,
            Known::Memory => Problem::NotPoolMemory,
            Known::Nothing => Problem::NotAllocated,
        }));
    };
    if !record.on_gpu {
        return Err(refused(Problem::HostMemory));
    }
    let offset = (address.get() - record.start) as u64;
    let mut state = record.state();
    match &mut *state {
        State::Freed => Err(refused(Problem::NotAllocated)),
        State::Allocated(export) => {
            let process = std::process::id() as i32;
            let in_use = server::is_in_use(runtime);
            let exports = runtime.attachment::<Exports>();
            let creating = in_use.then(|| lock(&exports.creating));
            check_name(operation, runtime)?;
            let native = create(operation, runtime, &record)?;
            drop(creating);
            if quirks.ipc_server_outlives_stop && is_asked_for(native, process) {
                runtime.stay_started();
            }
            let ours = export.as_deref().and_then(|export| (export as &dyn Any).downcast_ref());
            if let Some(ours) = ours.filter(|ours: &&Export| ours.entry.native == native) {
                return Ok(ours.handle(offset));
            }
            // Should the runtime ever answer another handle, the one before is good no more.
            if let Some(old) = export.take() {
                let _ = old.end(&mut || Ok(()));
            }
            let entered = enter(operation, runtime, &record, native, process)?;
            let handle = entered.handle(offset);
            *export = Some(Box::new(entered));
            Ok(handle)
        }
    }
}

/// Refuses what AMD's runtime would end the process for, if it hands memory out by itself: somebody
/// else waits at the name where it would.
fn check_name(operation: Operation, runtime: &Runtime) -> Result<(), IpcError> {
    if !server::is_in_use(runtime) {
        return Ok(());
    }
    let process = std::process::id();
    if is_taken(process) { Err(IpcError::NameTaken { operation, process }) } else { Ok(()) }
}

/// Has the runtime make its handle, and be ready to hand the memory out. Also if it was already:
/// AMD's server ends when an importer is killed in the middle, and only this starts another.
fn create(operation: Operation, runtime: &Runtime, record: &Record) -> Result<NativeIpc, IpcError> {
    // The server's thread inherits the signal mask. It writes to whoever has connected, and would end
    // this process by `SIGPIPE` if that process has gone.
    let created = without_sigpipe(|| runtime.native().ipc_create(record.start, record.size));
    created.map_err(|failure| match IpcError::failure(operation, failure) {
        IpcError::Runtime {
            operation,
            call,
            status: status @ (Status::INVALID_ARGUMENT | Status::ERROR),
        } => IpcError::NotShared { operation, call, status },
        error => error,
    })
}

fn enter(
    operation: Operation,
    runtime: &Runtime,
    record: &Record,
    native: NativeIpc,
    process: i32,
) -> Result<Export, IpcError> {
    let system = |errno| IpcError::system(operation, errno);
    let namespace = super::namespace(operation, process)?;
    let table = runtime.attachment::<Exports>().table(process, namespace).map_err(system)?;
    let (registration, entry) = table.enter(native, record.size as u64).map_err(system)?;
    Ok(Export { table, registration, entry, process })
}
