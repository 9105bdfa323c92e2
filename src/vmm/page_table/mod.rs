//! GPUs' permissions in their page tables, and the barrier at the end of an operation.
//!
//! AMD's runtime maps memory for a GPU readable, writable and executable, whatever was requested. For a GPU whose page
//! table the library controls, the library requests read and write access once for each mapping, and then replaces the
//! entries ([`Shared::set_entries`]). Between the two calls the GPU has full access.
//!
//! Later requests to the runtime also name read and write access, so that the runtime makes no driver call. If a
//! request named another permission, the runtime would unmap the memory and map it again with full access.

mod probe;

use super::journal::Journal;
use super::ledger::MappedRange;
use super::{Quirks, Shared, Vmm, VmmOptions};
use crate::access::{Access, AgentSet};
use crate::agent::{Agent, AgentId, Enforcement};
use crate::error::ErrorKind;
use crate::native::{
    AddressSpace, Barrier, DriverError, FailedCall, Failure, KernelGpu, KfdPage, Libdrm, Native,
    PagePermissions, PinnedPage,
};
use crate::runtime::Runtime;
use crate::sync::{Mutex, lock};
use probe::PageTableProbe;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The page tables that a [`Vmm`](crate::Vmm) controls. The default controls none.
#[derive(Debug, Default)]
pub(super) struct PageTables {
    /// The address space of each agent, by its index.
    spaces: Vec<Option<AddressSpace>>,
    barrier: Option<Barrier>,
    /// Why operations cannot wait by `/dev/kfd`, and what they do instead.
    pub barrier_failure: Option<String>,
    /// Whether changes were made without a successful wait, for example because the wait of a rollback has failed. If
    /// so, GPUs may still use unmapped memory or revoked access.
    wait_is_due: Mutex<bool>,
    /// The GPUs whose page tables are not controlled: the index of the agent, and the reason.
    failures: Vec<(usize, ControlFailure)>,
    /// Whether GPUs are prevented from executing code in memory that they can read and write.
    no_execute: bool,
    /// The agents whose page tables are controlled.
    pub controlled: AgentSet,
}

/// Why a page table is not controlled.
#[derive(Clone, Debug, thiserror::Error)]
enum ControlFailure {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("the GPU has no pool for virtual memory")]
    NoPool,
    #[error("the exported descriptor could not be copied: {0}")]
    NotCopied(Errno),
    #[error("a changed entry has no effect on the GPU")]
    NoEffect,
    #[error("nothing can wait until changed entries have taken effect")]
    NoBarrier,
}

impl From<FailedCall> for ControlFailure {
    fn from(failure: FailedCall) -> Self {
        Self::Driver(failure.into())
    }
}

impl From<Failure> for ControlFailure {
    fn from(failure: Failure) -> Self {
        Self::Driver(failure.into())
    }
}

impl PageTables {
    /// Opens the barrier and, if [requested](VmmOptions::with_page_tables), the address spaces of the GPUs. Tests each
    /// address space. Logs why a GPU's page table is not controlled.
    pub fn open(runtime: &Runtime, quirks: Quirks, options: VmmOptions) -> Self {
        let native = runtime.native();
        let gpus: Vec<_> = runtime.gpus().collect();
        let no_execute = options.no_execute;
        let (barrier, barrier_failure) = open_barrier(native, &gpus);
        let mut tables = Self { barrier, barrier_failure, no_execute, ..Self::default() };
        if options.changes_page_tables()
            && let Err(reason) = tables.open_spaces(runtime, &gpus, quirks)
        {
            crate::log::event!(WARN, %reason, "page tables are not controlled");
            tables.failures = gpus.iter().map(|gpu| (gpu.id().index(), reason.clone())).collect();
        }
        tables
    }

    fn open_spaces(
        &mut self,
        runtime: &Runtime,
        gpus: &[&Agent],
        quirks: Quirks,
    ) -> Result<(), ControlFailure> {
        let native = runtime.native();
        let libraries = if native.is_simulation() { Vec::new() } else { Libdrm::find_loaded()? };
        let libraries: Vec<_> = libraries.into_iter().map(Arc::new).collect();
        let Some(barrier) = &self.barrier else { return Err(ControlFailure::NoBarrier) };
        self.spaces.resize_with(runtime.agents().len(), || None);
        for gpu in gpus {
            let open = || {
                let simulated = native.simulated_address_space(gpu.native);
                let space = simulated.map_or_else(|| open_space(&libraries, gpu), Ok)?;
                let probe = PageTableProbe { native, quirks, gpu, space: &space, barrier };
                // Stopping a runtime with live mappings can crash the process (ROCm 6.4.3).
                let result = probe.run().inspect_err(|_| runtime.stay_started())?;
                result.map(|()| space)
            };
            let index = gpu.id().index();
            match open() {
                Ok(space) => {
                    self.spaces[index] = Some(space);
                    self.controlled.insert(index);
                }
                Err(reason) => {
                    crate::log::event!(WARN, gpu = %gpu.id(), %reason, "a page table is not controlled");
                    self.failures.push((index, reason));
                }
            }
        }
        Ok(())
    }
}

impl Vmm {
    /// Returns whether the access of an agent is enforced or only recorded; `None` for an unknown agent.
    ///
    /// A GPU's access is enforced if the `Vmm` was opened
    /// [with control of page tables](VmmOptions::with_page_tables), and the GPU's page table can be changed.
    pub fn enforcement(&self, agent: AgentId) -> Option<Enforcement> {
        self.runtime().agent(agent).map(|agent| self.shared.enforcement(agent))
    }

    /// Returns why the page table of a GPU is not controlled. Returns `None` if the table is controlled, if control was
    /// not requested ([`VmmOptions::with_page_tables`]), or if the agent is not a GPU.
    pub fn page_table_failure(&self, agent: AgentId) -> Option<String> {
        let index = self.runtime().agent(agent)?.id().index();
        let mut failures = self.shared.page_tables.failures.iter();
        failures.find(|(agent, _)| *agent == index).map(|(_, reason)| reason.to_string())
    }

    /// Returns why operations cannot wait by `/dev/kfd` until their changes of page tables have taken effect
    /// ([`VmmOptions::with_barrier`]). The text also says what the operations do instead: wait by
    /// `hsa_amd_memory_lock`, or not wait.
    ///
    /// Returns `None` if waiting was not requested, or operations wait by `/dev/kfd` (on the simulation, by
    /// `hsa_amd_memory_lock`).
    pub fn barrier_failure(&self) -> Option<&str> {
        self.shared.page_tables.barrier_failure.as_deref()
    }

    /// Returns whether memory can be mapped from an offset ([`map`](Self::map)): whether this `Vmm` controls every GPU's
    /// page table.
    pub fn can_map_offsets(&self) -> bool {
        self.shared.can_map_offsets()
    }
}

impl Journal<'_, '_> {
    /// Returns whether the operation must wait for GPUs, because it has changed, or tried to change, entries of their
    /// page tables.
    pub(super) fn must_wait_for_gpus(&self) -> bool {
        if !self.shared.waits_for_gpus() {
            return false;
        }
        let has_gpus = |agents: AgentSet| !agents.difference(self.shared.cpus).is_empty();
        self.targets.iter().any(|target| {
            has_gpus(target.attempted)
                || target.was_unmapped() && has_gpus(target.before.runtime_granted)
        })
    }
}

impl Shared {
    /// Returns the GPUs whose page tables the library controls.
    pub(super) fn controlled(&self) -> AgentSet {
        self.page_tables.controlled
    }

    pub(super) fn enforcement(&self, agent: &Agent) -> Enforcement {
        match self.controlled().contains(agent.id().index()) {
            true => Enforcement::Enforced,
            false => agent.enforcement(),
        }
    }

    /// Returns whether memory can be mapped from an offset: the library controls every GPU's page table.
    pub(super) fn can_map_offsets(&self) -> bool {
        self.runtime.gpus().all(|gpu| self.controlled().contains(gpu.id().index()))
    }

    /// Returns the GPUs whose entries must differ from those that a grant of the runtime writes.
    pub(super) fn restricted(&self, mapping: &MappedRange) -> AgentSet {
        let granted = mapping.access.runtime_granted.intersection(self.controlled());
        let differs = |&agent: &usize| {
            mapping.offset != 0
                || self.permissions(mapping.access.requested.get(agent)) != PagePermissions::all()
        };
        granted.iter().filter(differs).collect()
    }

    /// Writes the entries of a mapping in the page tables of `agents`. Omits agents whose page table is not controlled,
    /// and agents to which the runtime has not granted access. Adds to `attempted` the agents whose entries may have
    /// changed. No GPU may use the mapping during the call.
    ///
    /// # Safety
    /// The mapping is [locked](super::runtime_mapping), and mapped.
    pub(super) unsafe fn set_entries(
        &self,
        mapping: &MappedRange,
        agents: AgentSet,
        attempted: &mut AgentSet,
        is_rollback: bool,
    ) -> Result<(), ErrorKind> {
        let MappedRange { start, size, handle, offset, access, .. } = *mapping;
        let agents = agents.intersection(access.runtime_granted);
        let space = |agent: usize| Some((agent, self.page_tables.spaces.get(agent)?.as_ref()?));
        let controlled: SmallVec<[(usize, &AddressSpace); 8]> =
            agents.iter().filter_map(space).collect();
        if controlled.is_empty() {
            return Ok(());
        }
        self.with_free_descriptor(is_rollback, || {
            // SAFETY: the mapping keeps the memory alive.
            let descriptor = unsafe { self.export_live(handle) }?;
            for (agent, space) in controlled {
                let permissions = self.permissions(access.requested.get(agent));
                let buffer = space.import(descriptor.as_fd())?;
                attempted.insert(agent);
                // SAFETY: the caller guarantees that the mapping is locked and mapped, and the runtime has granted this
                // GPU access.
                unsafe { buffer.write_entries(start, size, offset, permissions) }?;
            }
            Ok(())
        })
    }

    /// Returns the permissions of an entry for this access. The runtime's own entries always permit full access.
    fn permissions(&self, access: Access) -> PagePermissions {
        match access {
            Access::ReadWrite if self.page_tables.no_execute => {
                PagePermissions::READ | PagePermissions::WRITE
            }
            Access::ReadWrite => PagePermissions::all(),
            Access::Read => PagePermissions::READ,
            Access::None => PagePermissions::empty(),
        }
    }

    /// Returns whether operations wait until their changes of page tables have taken effect.
    pub(super) fn waits_for_gpus(&self) -> bool {
        self.page_tables.barrier.is_some()
    }

    /// Waits until the changes of page tables have taken effect. Does nothing without a barrier.
    pub(super) fn wait_for_gpus(&self) -> Result<(), ErrorKind> {
        match &self.page_tables.barrier {
            Some(barrier) => barrier.wait(self.native()),
            None => Ok(()),
        }
    }

    /// Records that changes were made without a successful wait, so that
    /// [`wait_for_gpus_if_due`](Self::wait_for_gpus_if_due) waits.
    pub(super) fn set_wait_due(&self) {
        *lock(&self.page_tables.wait_is_due) = true;
    }

    /// Waits if earlier changes were made without a successful wait. Must succeed before memory is released or
    /// addresses are freed.
    pub(super) fn wait_for_gpus_if_due(&self) -> Result<(), ErrorKind> {
        if !self.waits_for_gpus() {
            return Ok(());
        }
        // Holds the lock while waiting, so that no other thread releases memory before the wait has ended.
        let mut is_due = lock(&self.page_tables.wait_is_due);
        if *is_due {
            self.wait_for_gpus()?;
            *is_due = false;
        }
        Ok(())
    }
}

/// Opens a GPU's address space with the copy of libdrm that the runtime uses.
fn open_space(libraries: &[Arc<Libdrm>], gpu: &Agent) -> Result<AddressSpace, DriverError> {
    let kernel_gpu = KernelGpu::of_node(gpu.node)?;
    let mut spaces = libraries.iter().map(|it| AddressSpace::open(it.clone(), kernel_gpu));
    let first = spaces.next().unwrap_or(Err(DriverError::NoLibrary));
    first.or_else(|error| spaces.find_map(Result::ok).ok_or(error))
}

/// Opens `/dev/kfd` for waiting. If `/dev/kfd` cannot be used, logs and returns the reason, and creates a page that the
/// runtime can lock instead. If the page cannot be created either, returns no barrier.
fn open_barrier(native: &Native, gpus: &[&Agent]) -> (Option<Barrier>, Option<String>) {
    let mut driver_failure = None;
    if !native.is_simulation() {
        let ids =
            gpus.iter().map(|gpu| KernelGpu::of_node(gpu.node).map(|kernel_gpu| kernel_gpu.id));
        let by_driver = ids.collect::<Result<Vec<_>, _>>().and_then(|ids| KfdPage::open(&ids));
        match by_driver {
            Ok(page) => return (Some(Barrier::Kfd(page)), None),
            Err(reason) => {
                crate::log::event!(INFO, %reason, "operations wait by hsa_amd_memory_lock");
                driver_failure = Some(reason);
            }
        }
    }
    match PinnedPage::new(native, gpus.iter().map(|gpu| gpu.native).collect()) {
        Ok(page) => {
            let failure = driver_failure
                .map(|reason| format!("{reason}; operations wait by hsa_amd_memory_lock"));
            (Some(Barrier::Pinned(page)), failure)
        }
        Err(Failure { call, status }) => {
            crate::log::event!(WARN, call, %status, "operations do not wait until changes take effect");
            let prefix = driver_failure.map(|reason| format!("{reason}; ")).unwrap_or_default();
            (None, Some(format!("{prefix}{call} returned {status}; operations do not wait")))
        }
    }
}
