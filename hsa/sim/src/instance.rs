//! One simulated runtime: its shared state, start and shutdown.

use crate::abi::{FUNCTION_COUNT, Function, STATUS_NAMES};
use crate::config::{Config, GIB, KIB, MAX_AGENTS, PageTableUpdates};
use crate::events::Handlers;
use crate::faults::{FaultPlan, Faults};
use crate::generation::Behaviour;
use crate::handles::Handles;
use crate::identity::Identity;
use crate::mapping::Mapping;
use crate::overlap;
use crate::page_table::PageTable;
use crate::physical::{Account, Memory};
use crate::pool_memory::Allocation;
#[cfg(feature = "export")]
use crate::queue::Queues;
use crate::reservation::{self, Reservation};
use crate::share::SharedMemory;
use crate::signal::Signals;
use crate::simulation::Error;
use crate::status::HsaResult;
use hsa_faults::FaultKind;
use hsa_sys::*;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One simulated runtime.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) config: Config,
    pub(crate) behaviour: Behaviour,
    pub(crate) identity: Identity,
    /// The build that the runtime reports. Empty if the runtime reports no build.
    pub(crate) build: CString,
    /// The memory account of each GPU.
    pub(crate) video_memory: Vec<Arc<Account>>,
    /// The memory account of each CPU.
    pub(crate) system_memory: Vec<Arc<Account>>,
    pub(crate) handlers: Handlers,
    pub(crate) signals: Signals,
    #[cfg(feature = "export")]
    pub(crate) queues: Queues,
    calls: [AtomicU64; FUNCTION_COUNT],
    running_calls: overlap::Calls,
    pub(crate) faults: Faults,
    initialised: AtomicBool,
    dropped: AtomicBool,
    state: Mutex<State>,
}

/// The state under the instance's lock.
#[derive(Debug)]
pub(crate) struct State {
    /// The number of `hsa_init` calls minus `hsa_shut_down` calls.
    references: u32,
    pub(crate) reservations: BTreeMap<usize, Reservation>,
    /// Addresses that the runtime has leaked: they are still reserved, but in no table.
    pub(crate) leaked_ranges: Vec<Range<usize>>,
    pub(crate) handles: Handles,
    /// Memory that the runtime has leaked: it still counts as used, but is in no table.
    pub(crate) leaked_memory: Vec<Arc<Memory>>,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
    /// The number of unmap calls before the next that calls [`State::drop_replaced_memory`].
    pub(crate) unmaps_until_drop: usize,
    pub(crate) page_tables: Vec<PageTable>,
    /// Memory that is not virtual memory: from pools, attached or locked.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    pub(crate) shared_memory: SharedMemory,
}

impl Instance {
    pub(crate) fn new(config: Config, slot: usize) -> Result<Arc<Self>, Error> {
        check_config(&config)?;
        let behaviour = Behaviour {
            generation: config.generation,
            extension: config.extension_minor,
            extension_reported: config.extension_reported,
        };
        let updates = match behaviour.waits_for_page_tables() {
            true => PageTableUpdates::Immediate,
            false => config.page_table_updates,
        };
        let instance = Self {
            behaviour,
            identity: Identity::new(slot),
            build: crate::system::build(&config),
            video_memory: config.gpus.iter().map(|gpu| Account::new(gpu.vram)).collect(),
            system_memory: config.cpus.iter().map(|cpu| Account::new(cpu.memory)).collect(),
            handlers: Handlers::default(),
            signals: Signals::default(),
            #[cfg(feature = "export")]
            queues: Queues::default(),
            calls: [const { AtomicU64::new(0) }; FUNCTION_COUNT],
            running_calls: overlap::Calls::default(),
            faults: Faults::default(),
            initialised: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            state: Mutex::new(State {
                references: 0,
                reservations: BTreeMap::new(),
                leaked_ranges: Vec::new(),
                handles: Handles::new(behaviour.handles_are_aperture_addresses()),
                leaked_memory: Vec::new(),
                mappings: BTreeMap::new(),
                unmaps_until_drop: 0,
                page_tables: config.gpus.iter().map(|_| PageTable::new(updates)).collect(),
                allocations: BTreeMap::new(),
                shared_memory: SharedMemory::default(),
            }),
            config,
        };
        instance.faults.set_initial(instance.config.faults.clone());
        Ok(Arc::new(instance))
    }

    /// Locks the state. No thread holds the lock while it calls a function of the caller.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as running until the result is dropped. Aborts the process if the call races with a running call,
    /// because the simulated runtime does not serialise the two.
    pub(crate) fn track(&self, function: Function) -> Option<overlap::Call<'_>> {
        if self.behaviour.locks_every_call() {
            return None;
        }
        self.running_calls.track(function).unwrap_or_else(|race| race.abort())
    }

    /// Counts a call, applies its planned delay, and returns its planned fault. Fails if the plan has an error for the
    /// call, or if the runtime is not initialised.
    pub(crate) fn begin_call(&self, function: Function) -> HsaResult<Option<FaultKind>> {
        self.calls[function as usize].fetch_add(1, Relaxed);
        let planned = STATUS_NAMES
            .get(function as usize)
            .map_or(Ok(None), |name| self.faults.begin_call(name))?;
        let allowed = match function {
            Function::hsa_init => true,
            Function::hsa_amd_vmem_import_shareable_handle
                if self.behaviour.import_skips_init_check() =>
            {
                true
            }
            _ => self.initialised.load(Relaxed),
        };
        if allowed { Ok(planned) } else { Err(HSA_STATUS_ERROR_NOT_INITIALIZED) }
    }

    pub(crate) fn set_faults(&self, plan: FaultPlan) {
        self.faults.set(plan);
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = u64> {
        self.calls.iter().map(|calls| calls.load(Relaxed))
    }

    /// Returns whether the runtime is initialised.
    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.load(Relaxed)
    }

    /// Returns whether the simulation was dropped, so that waits must end.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Relaxed)
    }

    /// Frees all memory and addresses, including those that the runtime has leaked.
    pub(crate) fn close(&self) {
        self.dropped.store(true, Relaxed);
        let mut state = self.lock();
        self.stop(&mut state);
        state.leaked_memory.clear();
        for range in core::mem::take(&mut state.leaked_ranges) {
            // SAFETY: this instance has reserved the range; the caller that drops the simulation no
            // longer uses its memory.
            unsafe { crate::address_space::release(range.start, range.len()) };
        }
    }

    /// Performs the last `hsa_shut_down`: clears all tables and unmaps allocations, but leaves the addresses of
    /// reservations reserved.
    fn stop(&self, state: &mut State) {
        self.initialised.store(false, Relaxed);
        state.references = 0;
        state.page_tables.iter_mut().for_each(PageTable::clear);
        state.mappings.clear();
        for handle in state.handles.clear() {
            crate::share::close_exported(&handle);
        }
        for (base, reservation) in core::mem::take(&mut state.reservations) {
            let mapped = reservation::mapped_ranges(base, &reservation);
            state.leaked_ranges.extend(mapped);
        }
        for (address, allocation) in core::mem::take(&mut state.allocations) {
            crate::pool_memory::unmap(address, &allocation);
        }
        self.handlers.clear();
        self.signals.clear();
        #[cfg(feature = "export")]
        self.queues.clear();
    }
}

/// Rejects impossible configurations.
fn check_config(config: &Config) -> Result<(), Error> {
    let invalid = |reason: String| Err(Error::Config(reason));
    if config.cpus.is_empty() {
        return invalid("there is no CPU".into());
    }
    if config.cpus.len() > MAX_AGENTS || config.gpus.len() > MAX_AGENTS {
        return invalid("there are more than 64 CPUs, or more than 64 GPUs".into());
    }
    let granules = [config.granule, config.recommended_granule];
    let is_invalid =
        |granule: &u64| !granule.is_power_of_two() || !(4 * KIB..=GIB).contains(granule);
    if let Some(granule) = granules.into_iter().find(is_invalid) {
        return invalid(format!("the granule {granule} is not a power of two from 4 KiB to 1 GiB"));
    }
    if let Some(gpu) = config.gpus.iter().find(|gpu| gpu.nearest_cpu >= config.cpus.len()) {
        return invalid(format!(
            "CPU {}, the nearest CPU of a GPU, does not exist",
            gpu.nearest_cpu
        ));
    }
    let cpus = config.cpus.iter().map(|cpu| cpu.memory);
    let mut memories = cpus.chain(config.gpus.iter().map(|gpu| gpu.vram));
    if let Some(bytes) = memories.find(|bytes| bytes % 4096 != 0 || *bytes > 1 << 46) {
        return invalid(format!(
            "an agent's memory of {bytes} bytes is not a multiple of the page size, or exceeds 64 TiB"
        ));
    }
    match config.faults.unknown_function() {
        Some(name) => invalid(format!("the fault plan names the unknown function `{name}`")),
        None => Ok(()),
    }
}

/// `hsa_init`
pub(crate) fn init(instance: &Instance) -> HsaResult {
    let mut state = instance.lock();
    let references = state.references.checked_add(1).ok_or(HSA_STATUS_ERROR_REFCOUNT_OVERFLOW)?;
    state.references = references;
    instance.initialised.store(true, Relaxed);
    Ok(())
}

/// `hsa_shut_down`
pub(crate) fn shut_down(instance: &Instance) -> HsaResult {
    let mut state = instance.lock();
    match state.references {
        0 => return Err(HSA_STATUS_ERROR_NOT_INITIALIZED),
        1 => instance.stop(&mut state),
        _ => state.references -= 1,
    }
    Ok(())
}
