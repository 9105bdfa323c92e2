//! Calls of the runtime, and unsafe system calls. No other module calls the runtime.
//!
//! For each function of the runtime, this module has a function with Rust types. That function calls the runtime
//! through the table of functions ([`Table`]), and converts the status to a `Result`. If the runtime returns success
//! without the address, handle or descriptor that it promises, the function fails ([`Failure::no_result`]).
//!
//! The runtime does not check all conditions of its calls. Types ensure some of them: values of [`NativeAgent`] and
//! [`NativePool`] always come from the runtime. The ledger checks other conditions before the call.

mod descriptor;
mod discovery;
mod host_buffer;
mod interprocess;
mod library_lock;
mod memory;
mod page_table;
mod pool;
mod status;
mod transfer;
mod vmem;

pub(crate) use descriptor::{SpareDescriptors, above_streams, duplicate, out_of_descriptors};
pub(crate) use discovery::{AttributeValue, NativeAgent, NativePool};
pub(crate) use interprocess::{
    ByteLock, ForeignSocket, Received, close_foreign, close_on_exec, listens_at, lock_byte,
    peer_has_ended, peer_of, receive, send, wait, with_signals_blocked, without_size_signal,
};
use library_lock::lock_of;
pub(crate) use library_lock::{
    ForkCount, LibraryLock, ipc_server_lock, locked_ranges, overlapping_lock,
};
pub(crate) use memory::{
    Blocked, NotReplaced, block_access, check_room, check_room_for_thread,
    contains_private_mapping, fill_hole, fill_possible_hole, fill_possible_hole_of_map,
    is_inaccessible, map_shared, parse_mapping, protect, replace_mapping, try_map_shared,
};
pub(crate) use page_table::{
    AddressSpace, Barrier, Buffer, DriverError, FailedCall, KernelGpu, KfdPage, Libdrm,
    PagePermissions, PinnedPage,
};
pub(crate) use pool::NativeIpc;
pub use status::{DriverState, Status};
pub(crate) use transfer::CopyEngine;
pub(crate) use vmem::{NativeAccess, NativeHandle};

use crate::sync::{read, write};
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use hsa_sys::{Library, LoadError, Search, Table, Vmem};
use std::sync::{Arc, OnceLock};

/// A failed call: the runtime's function, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub call: &'static str,
    pub status: Status,
}

impl Failure {
    /// Returns the failure of a function that the library does not export.
    pub fn missing(call: &'static str) -> Self {
        Self { call, status: Status::MISSING_FUNCTION }
    }

    /// Returns the failure of a function that returned success, but not its result.
    #[cold]
    pub fn no_result(call: &'static str) -> Self {
        crate::log::event!(WARN, call, "the runtime returned success without a result");
        Self { call, status: Status::NO_RESULT }
    }

    /// Returns the address or handle that a successful call has returned. Fails if it is null or 0.
    pub fn check_result<T: Default + PartialEq>(call: &'static str, result: T) -> Result<T, Self> {
        if result == T::default() { Err(Self::no_result(call)) } else { Ok(result) }
    }
}

/// Calls a function, logs the call, and converts the status to a `Result`. Also logs before the call, so that the log
/// shows a call that never returns. Logs a failure as a warning, unless failures are
/// [expected](crate::log::with_expected_failures).
///
/// The first braces contain the event's fields for the inputs, the second braces the fields for the outputs.
macro_rules! logged {
    ($function:expr, $name:ident $arguments:tt, { $($inputs:tt)* }) => {
        $crate::native::logged!($function, $name $arguments, { $($inputs)* }, {})
    };
    ($function:expr, $name:ident $arguments:tt, { $($inputs:tt)* }, { $($outputs:tt)* }) => {{
        $crate::log::event!(TRACE, calling = stringify!($name), $($inputs)*);
        let status = $crate::native::Status(($function)$arguments);
        let result = status.check(stringify!($name));
        if result.is_ok() {
            $crate::log::event!(TRACE, call = stringify!($name), %status, $($outputs)*);
        } else if $crate::log::failures_are_expected() {
            $crate::log::event!(TRACE, call = stringify!($name), %status);
        } else {
            $crate::log::event!(WARN, call = stringify!($name), %status, $($inputs)*);
        }
        result
    }};
}

/// Calls a function that every runtime has: `call!(self.hsa_init(), {})`.
macro_rules! call {
    ($native:ident.$name:ident $arguments:tt, $($fields:tt)*) => {
        $crate::native::logged!($native.table.core.$name, $name $arguments, $($fields)*)
    };
}

/// Calls an optional function. Returns `MISSING_FUNCTION` if the library does not export it.
macro_rules! call_optional {
    ($native:ident.$name:ident $arguments:tt, $($fields:tt)*) => {
        match $native.table.core.$name {
            Some(function) => $crate::native::logged!(function, $name $arguments, $($fields)*),
            None => Err($crate::native::Failure::missing(stringify!($name))),
        }
    };
}

/// Calls a function of virtual memory. Returns `MISSING_FUNCTION` if the library lacks any required function of
/// virtual memory. With the prefix `optional`, also returns `MISSING_FUNCTION` if the library lacks this function.
macro_rules! call_vmem {
    ($native:ident.$name:ident $arguments:tt, $($fields:tt)*) => {
        match &$native.table.vmem {
            Ok(vmem) => $crate::native::logged!(vmem.$name, $name $arguments, $($fields)*),
            Err(_) => Err($crate::native::Failure::missing(stringify!($name))),
        }
    };
    (optional $native:ident.$name:ident $arguments:tt, $($fields:tt)*) => {
        match $native.table.vmem.as_ref().ok().and_then(|vmem| vmem.$name) {
            Some(function) => $crate::native::logged!(function, $name $arguments, $($fields)*),
            None => Err($crate::native::Failure::missing(stringify!($name))),
        }
    };
}
pub(crate) use {call, call_optional, call_vmem, logged};

type AgentNames = OnceLock<Vec<(NativeAgent, String)>>;

fn hex(number: impl TryInto<u64>) -> String {
    format!("{:#x}", number.try_into().unwrap_or(u64::MAX))
}

/// The functions of one runtime, and the library or simulation that keeps them valid.
#[derive(Debug)]
pub(crate) struct Native {
    table: Table,
    library_lock: Arc<LibraryLock>,
    /// The names of the agents in the log; empty until the agents are known.
    agent_names: AgentNames,
    /// The loaded library; `None` for the simulation.
    library: Option<Library>,
    /// The simulation; `None` for a loaded library. The program may also hold a reference to the simulation.
    #[cfg(feature = "simulation")]
    simulation: Option<Arc<hsa_sim::Simulation>>,
}

impl Native {
    /// Loads a library without starting the runtime.
    ///
    /// # Safety
    /// As for [`Library::load`].
    pub unsafe fn load(search: &Search) -> Result<Self, LoadError> {
        // SAFETY: the caller guarantees that the files are sound to load.
        let library = unsafe { Library::load(search)? };
        let native = Self::new(*library.table());
        Ok(Self { library: Some(library), ..native })
    }

    /// Uses the functions of a simulation.
    #[cfg(feature = "simulation")]
    pub fn simulated(simulation: Arc<hsa_sim::Simulation>) -> Self {
        Self { simulation: Some(simulation.clone()), ..Self::new(*simulation.table()) }
    }

    fn new(table: Table) -> Self {
        Self {
            table,
            library_lock: lock_of(&table),
            agent_names: AgentNames::default(),
            library: None,
            #[cfg(feature = "simulation")]
            simulation: None,
        }
    }

    /// Returns whether this is a simulation, which has no kernel driver.
    pub fn is_simulation(&self) -> bool {
        self.library.is_none()
    }

    /// Returns the functions of the library or the simulation.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the address of a function that the library exports; `None` for the simulation.
    pub fn function(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.library.as_ref()?.symbol(name)
    }

    /// Returns the loaded library; `None` for the simulation.
    pub fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    /// Returns the simulation; `None` for a loaded library.
    #[cfg(feature = "simulation")]
    pub fn simulation(&self) -> Option<&hsa_sim::Simulation> {
        self.simulation.as_deref()
    }

    /// Returns the address space of a simulated GPU; `None` for a loaded library.
    pub fn simulated_address_space(&self, _gpu: NativeAgent) -> Option<AddressSpace> {
        #[cfg(feature = "simulation")]
        return Some(AddressSpace::Simulated(self.simulation.clone()?, _gpu));
        #[cfg(not(feature = "simulation"))]
        None
    }

    /// Makes a call during which the runtime holds its own lock. Excludes the calls of
    /// [`with_exclusive_lock`](Self::with_exclusive_lock).
    pub fn with_shared_lock<T>(&self, call: impl FnOnce(&Self) -> T) -> T {
        let _shared = read(&self.library_lock);
        call(self)
    }

    /// Makes a call for which the runtime takes no lock. Excludes all other calls on handles.
    pub fn with_exclusive_lock<T>(&self, call: impl FnOnce(&Self) -> T) -> T {
        let _exclusive = write(&self.library_lock);
        call(self)
    }

    /// Starts the runtime. If the runtime is already started, counts another user.
    pub fn init(&self) -> Result<(), Failure> {
        // SAFETY: takes no arguments, and may be called at any time.
        unsafe { call!(self.hsa_init(), {}) }
    }

    /// Removes one user. Stops the runtime if there is no other user.
    ///
    /// # Safety
    /// Nothing uses what the runtime has created for this user. If the runtime must stay started
    /// ([`Runtime::stay_started`](crate::Runtime)), for example because agents may still use a mapping, or because it
    /// has exported memory by dma-buf, it is not stopped.
    pub unsafe fn shut_down(&self) -> Result<(), Failure> {
        // SAFETY: the caller guarantees that nothing uses the runtime, and that it may stop.
        unsafe { call!(self.hsa_shut_down(), {}) }
    }

    /// Returns the functions of virtual memory, or the name of the first missing function.
    pub fn vmem(&self) -> Result<&Vmem, &'static str> {
        self.table.vmem.as_ref().map_err(|missing| missing.0)
    }

    /// Returns every optional function, and whether the library exports it.
    pub fn optional_functions(&self) -> Vec<(&'static str, bool)> {
        let vmem = self.table.vmem.iter().flat_map(Vmem::optional);
        self.table.core.optional().chain(vmem).collect()
    }

    /// Sets the names of all agents in the log. Only the first call has an effect.
    pub fn name_agents(&self, names: Vec<(NativeAgent, String)>) {
        let _ = self.agent_names.set(names);
    }

    /// Returns the name of an agent, such as `GPU 0`, or its handle if it has no name yet.
    fn show_agent(&self, agent: NativeAgent) -> String {
        let names = self.agent_names.get().map(Vec::as_slice).unwrap_or_default();
        let name = names.iter().find(|(named, _)| *named == agent).map(|(_, name)| name.clone());
        name.unwrap_or_else(|| hex(agent.raw().handle))
    }

    /// Returns the names of agents: `[CPU 0, GPU 0]`.
    fn show_agents(&self, agents: &[NativeAgent]) -> String {
        let names: Vec<_> = agents.iter().map(|agent| self.show_agent(*agent)).collect();
        format!("[{}]", names.join(", "))
    }

    /// Returns the access of agents: `[GPU 0: 3, GPU 1: 1]`.
    fn show_access(&self, access: &[NativeAccess]) -> String {
        let show = |access: &NativeAccess| {
            format!("{}: {}", self.show_agent(access.agent()), access.permissions())
        };
        format!("[{}]", access.iter().map(show).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use super::*;
    use hsa_sim::{Config, Generation, Simulation};
    use std::os::fd::AsFd;

    /// For a `lost` call, the simulation returns success, but no result.
    #[test]
    fn success_without_a_result_is_a_failure() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let start = |config| {
            let native = Native::simulated(Arc::new(Simulation::start(config).unwrap()));
            native.init().unwrap();
            native
        };
        let check = |native: &Native, call: &'static str, result: &dyn Fn() -> Option<Failure>| {
            let simulation = native.simulation().unwrap();
            simulation.set_faults(format!("{call}=lost").parse().unwrap());
            assert_eq!(result(), Some(Failure { call, status: Status::NO_RESULT }));
        };
        // ROCm 6.1 cannot align reservations.
        let old = start(Config::mi300x(1).with_generation(Generation::A).with_extension(4));
        check(&old, "hsa_amd_vmem_address_reserve", &|| old.address_reserve(4096, 0, 0).err());
        let new = start(Config::mi300x(1).with_generation(Generation::D));
        let agent = new.agents().unwrap()[1];
        let pool = new.pools(agent).unwrap()[0];
        check(&new, "hsa_amd_vmem_address_reserve_align", &|| {
            new.address_reserve(4096, 0, 4096).err()
        });
        check(&new, "hsa_amd_memory_pool_allocate", &|| new.pool_allocate(pool, 4096).err());
        check(&new, "hsa_amd_vmem_import_shareable_handle", &|| new.import(file.as_fd()).err());
        check(&new, "hsa_amd_vmem_import_fabric_handle", &|| new.import_fabric([1; 16]).err());
        let address = new.pool_allocate(pool, 4096).unwrap();
        check(&new, "hsa_amd_ipc_memory_create", &|| {
            // SAFETY: no other thread frees the memory.
            unsafe { new.ipc_create(address, 4096) }.err()
        });
        // SAFETY: nothing uses the memory.
        unsafe { new.pool_free(address) }.unwrap();
        check(&new, "hsa_amd_ipc_memory_attach", &|| {
            new.ipc_attach([1; 8], 4096, agent, &[]).err()
        });
        for native in [old, new] {
            // SAFETY: all memory was freed.
            unsafe { native.shut_down() }.unwrap();
        }
    }
}
