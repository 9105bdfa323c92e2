//! The allocations that this process has exported to other processes.

use super::handle::IpcHandle;
use super::imports::is_open;
use super::mode::IpcMode;
use super::table::Table;
use super::{Ipc, of_failure, own_namespace, server_client};
use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Problem};
use crate::memory::{Exported, PoolMemory, Record, Registry, State};
use crate::native::{NativeIpc, Status, ipc_server_lock, out_of_descriptors, with_signals_blocked};
use crate::runtime::{Attachment, Runtime};
use crate::sync::{Mutex, lock, write};
use crate::vmm::{Address, Quirks};
use core::any::Any;
use std::sync::{Arc, OnceLock, Weak};

#[derive(Debug, Default)]
struct Exports {
    /// The table. It exists while at least one allocation is exported.
    table: Mutex<Weak<Table>>,
    /// How the runtime shares memory, if [`find_mode`] had to find out.
    observed_mode: OnceLock<IpcMode>,
}

impl Attachment for Exports {}

impl Exports {
    /// Returns the table of exports. Creates the table if it does not exist.
    fn table(&self, process: i32) -> Result<Arc<Table>, ErrorKind> {
        let namespace = own_namespace(process)?;
        let mut weak_table = lock(&self.table);
        if let Some(table) = weak_table.upgrade() {
            return Ok(table);
        }
        let table = Arc::new(Table::new(process, namespace)?);
        *weak_table = Arc::downgrade(&table);
        Ok(table)
    }
}

/// An export: an allocation that other processes can open.
#[derive(Debug)]
pub(crate) struct Export {
    table: Arc<Table>,
    /// The handle of the start of the allocation.
    handle: IpcHandle,
    generation: u64,
}

impl Exported for Export {
    fn end(&self, free: &mut dyn FnMut() -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        self.table.remove(&self.handle, self.generation, free)
    }
}

impl Export {
    fn handle(&self, offset: u64, device: i32) -> IpcHandle {
        IpcHandle { offset, device, ..self.handle }.with_check(self.generation)
    }
}

/// Creates a handle of the allocation that contains an address.
pub(super) fn create_handle(ipc: &Ipc, address: Address) -> Result<IpcHandle, ErrorKind> {
    let (runtime, quirks) = (&ipc.runtime, ipc.quirks);
    let invalid = |problem| ErrorKind::invalid(Argument::Address, address, problem);
    if address == Address::NULL {
        return Err(invalid(Problem::Null));
    }
    let Some(record) = runtime.attachment::<Registry>().containing(address.get()) else {
        if is_open(runtime, address) {
            return Err(invalid(Problem::OpenedByIpc));
        }
        let gpus = runtime.gpus().map(|gpu| gpu.native);
        let is_virtual = runtime.native().is_virtual(address.get(), gpus).map_err(of_failure)?;
        let problem = if is_virtual { Problem::VirtualMemory } else { Problem::NotAllocated };
        return Err(invalid(problem));
    };
    if !record.on_gpu {
        return Err(invalid(Problem::HostMemory));
    }
    // If the runtime shares through the driver, it crashes if another thread frees the memory during this call, so the
    // record is locked. If it has a server, the call can wait for another process, so the record is not locked: another
    // thread can free the memory meanwhile.
    let mode = find_mode(runtime, quirks, record.agent)?;
    let locked = (mode == IpcMode::Driver).then(|| lock(&record.state));
    if locked.as_deref().is_some_and(|state| !matches!(state, State::Allocated(_))) {
        return Err(invalid(Problem::NotAllocated));
    }
    // SAFETY: the record is locked if the mode is `Driver`.
    let created = unsafe { create_native(runtime, quirks, mode, &record) };
    let mut state = locked.unwrap_or_else(|| lock(&record.state));
    let State::Allocated(export) = &mut *state else {
        // Another thread has freed the memory during the call. No process has received the new handle.
        return Err(invalid(Problem::NotAllocated));
    };
    let native = created?;
    let offset = (address.get() - record.start) as u64;
    let device = ipc.devices.iter().position(|gpu| *gpu == record.agent).unwrap_or_default() as i32;
    let current = export.as_deref().and_then(|export| (export as &dyn Any).downcast_ref());
    if let Some(current) = current.filter(|export: &&Export| export.handle.native == native) {
        return Ok(current.handle(offset, device));
    }
    // The runtime has returned a different handle than before, so the previous handle is invalid now.
    if let Some(old) = export {
        old.end(&mut || Ok(()))?;
        *export = None;
    }
    let table = runtime.attachment::<Exports>().table(std::process::id() as i32)?;
    let (handle, generation) = table.insert(native, record.size as u64)?;
    let new = Export { table, handle, generation };
    let handle = new.handle(offset, device);
    *export = Some(Box::new(new));
    Ok(handle)
}

/// Returns how the runtime shares memory: [`IpcMode::Driver`] or [`IpcMode::Server`]. If its version does not tell, makes
/// the runtime export new memory of a GPU, which no other thread can free during the call.
pub(super) fn find_mode(
    runtime: &Runtime,
    quirks: Quirks,
    gpu: AgentId,
) -> Result<IpcMode, ErrorKind> {
    let mode = IpcMode::of(runtime);
    let observed = &runtime.attachment::<Exports>().observed_mode;
    if mode != IpcMode::Unknown {
        return Ok(mode);
    }
    if let Some(observed) = observed.get() {
        return Ok(*observed);
    }
    let memory = PoolMemory::allocate(runtime, gpu, 1).map_err(Error::into_kind)?;
    // SAFETY: no other thread has the memory.
    let native = unsafe { create_native(runtime, quirks, mode, &memory.record) }?;
    let is_served = server_client::is_served_by(native, std::process::id() as i32);
    Ok(*observed.get_or_init(|| if is_served { IpcMode::Server } else { IpcMode::Driver }))
}

/// Makes the runtime create its handle and, if it uses a server, start the server. This call is also needed for memory
/// that is already exported: AMD's server ends when an importer is killed during an attach, and only this call
/// starts a new server.
///
/// # Safety
/// As for [`Native::ipc_create`](crate::native::Native::ipc_create): unless `mode` is [`IpcMode::Server`], no other
/// thread frees the memory during the call.
unsafe fn create_native(
    runtime: &Runtime,
    quirks: Quirks,
    mode: IpcMode,
    record: &Record,
) -> Result<NativeIpc, ErrorKind> {
    let process = std::process::id();
    let may_use_server = mode != IpcMode::Driver;
    // Without this lock, another thread could find the server's socket between `bind` and `listen`, and mistake it for
    // the socket of another process.
    let server_lock = may_use_server.then(ipc_server_lock);
    let creating = server_lock.as_deref().map(write);
    // If the socket is taken or no descriptor is free, AMD's runtime would end this process with an assertion.
    if may_use_server && server_client::is_socket_taken(process) {
        return Err(ErrorKind::SocketTaken(process));
    }
    if out_of_descriptors() {
        return Err(ErrorKind::OutOfDescriptors);
    }
    // The server's thread inherits the signal mask. The thread writes to connections that the other process may have
    // closed; without the mask, `SIGPIPE` would end this process. A signal handler that interrupts a system call of the
    // thread would end the server.
    // SAFETY: the caller guarantees the conditions.
    let create = || unsafe { runtime.native().ipc_create(record.start, record.size) };
    let created = with_signals_blocked(create);
    if may_use_server {
        server_client::close_server_on_exec(process);
    }
    drop(creating);
    let native = created.map_err(|failure| match of_failure(failure) {
        ErrorKind::Runtime {
            call,
            status: status @ (Status::INVALID_ARGUMENT | Status::ERROR),
        } => ErrorKind::NotShared { call, status },
        kind => kind,
    })?;
    if quirks.ipc_server_outlives_stop && server_client::is_served_by(native, process as i32) {
        runtime.stay_started();
    }
    Ok(native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{Config, Generation, Simulation};
    use rustix::io::Errno;
    use std::fs::File;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    fn ipc(runtime: &Runtime) -> Ipc {
        Ipc { quirks: Quirks::default(), ..Ipc::open(runtime).unwrap() }
    }

    /// Returns an export whose table cannot be written.
    fn broken_export(native: NativeIpc) -> Export {
        let process = std::process::id() as i32;
        let file = File::open("/dev/null").unwrap();
        let table = Table::new(process, own_namespace(process).unwrap()).unwrap();
        let (handle, generation) = table.insert(native, 4096).unwrap();
        Export { table: Arc::new(table.with_file(file.into())), handle, generation }
    }

    /// The name of the server's socket contains only the process's number, so all runtimes have one lock.
    #[test]
    fn exports_wait_for_the_lock_of_the_server() {
        for (generation, minor, mode) in
            [(Generation::A, 11, IpcMode::Unknown), (Generation::B, 15, IpcMode::Server)]
        {
            let config = Config::mi300x(1).with_generation(generation).with_extension(minor);
            let runtime = Runtime::simulated(config).unwrap();
            assert_eq!(IpcMode::of(&runtime), mode);
            let gpu = runtime.gpus().next().unwrap().id();
            let memory = PoolMemory::allocate(&runtime, gpu, 4096).unwrap();
            let (sender, created) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let server_lock = ipc_server_lock();
                let locked = write(&server_lock);
                scope.spawn(|| {
                    let handle = create_handle(&ipc(&runtime), memory.address());
                    sender.send(handle).unwrap();
                });
                let waiting = created.recv_timeout(Duration::from_millis(200));
                assert_eq!(waiting, Err(RecvTimeoutError::Timeout), "{mode:?}");
                drop(locked);
                assert!(created.recv().unwrap().is_ok(), "{mode:?}");
            });
            memory.free().unwrap();
        }
    }

    #[test]
    fn unknown_mode_is_found_out_once() {
        let config = Config::mi300x(1).with_generation(Generation::A).with_extension(11);
        let simulation = Arc::new(Simulation::start(config).unwrap());
        let runtime = Runtime::simulated_by(simulation.clone()).unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let exports = || {
            let calls = simulation.all_calls().into_iter();
            calls
                .filter(|(name, _)| *name == "hsa_amd_ipc_memory_create")
                .map(|it| it.1)
                .sum::<u64>()
        };
        for _ in 0..2 {
            // The simulation has no server.
            assert_eq!(find_mode(&runtime, Quirks::default(), gpu), Ok(IpcMode::Driver));
            assert_eq!(exports(), 1);
        }
        assert_eq!(runtime.pool_memory(), []);
    }

    /// Both threads find the memory not exported. The second thread must return the export of the first, because
    /// another export would make the first handle invalid.
    #[test]
    fn concurrent_first_exports_return_one_handle() {
        let runtime = Runtime::simulated(Config::mi300x(1).with_generation(Generation::B)).unwrap();
        assert_eq!(IpcMode::of(&runtime), IpcMode::Server);
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, 4096).unwrap();
        let create = || create_handle(&ipc(&runtime), memory.address()).unwrap();
        let handles = std::thread::scope(|scope| {
            let server_lock = ipc_server_lock();
            let locked = write(&server_lock);
            let threads = [(); 8].map(|()| scope.spawn(create));
            std::thread::sleep(Duration::from_millis(50));
            drop(locked);
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(handles, [handles[0]; 8]);
        memory.free().unwrap();
    }

    /// A process has one table of exports. With two tables, the second could replace the first while exports use it.
    #[test]
    fn concurrent_first_exports_create_one_table() {
        let process = std::process::id() as i32;
        for _ in 0..200 {
            let (exports, start) = (Exports::default(), std::sync::Barrier::new(4));
            let tables = std::thread::scope(|scope| {
                let create = || {
                    start.wait();
                    exports.table(process).unwrap()
                };
                [(); 4].map(|()| scope.spawn(create)).map(|thread| thread.join().unwrap())
            });
            assert!(tables.iter().all(|table| Arc::ptr_eq(table, &tables[0])));
        }
    }

    /// If the runtime returns another handle, the previous export must end. If ending it fails, the previous export
    /// stays, and the memory stays allocated.
    #[test]
    fn failed_end_of_an_export_is_an_error() {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let memory = PoolMemory::allocate(&runtime, gpu, 4096).unwrap();
        let create = || create_handle(&ipc(&runtime), memory.address());
        let record = runtime.attachment::<Registry>().containing(memory.address().get()).unwrap();
        let set_export = |export: Option<Export>| {
            let export = export.map(|export| Box::new(export) as Box<dyn Exported>);
            *lock(&record.state) = State::Allocated(export);
        };
        set_export(Some(broken_export([1; 8])));
        // The file is not open for writing.
        let expected = ErrorKind::System { call: "fcntl", errno: Errno::BADF };
        for _ in 0..2 {
            assert_eq!(create(), Err(expected.clone()));
        }
        let rejected = memory.free().unwrap_err();
        assert_eq!(rejected.error.kind(), &expected);
        set_export(None);
        let first = create_handle(&ipc(&runtime), rejected.value.address()).unwrap();
        let again = create_handle(&ipc(&runtime), rejected.value.address()).unwrap();
        assert_eq!(first, again);
        rejected.value.free().unwrap();
    }
}
