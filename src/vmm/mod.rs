//! HIP's virtual memory management.
//!
//! [`Vmm`] has HIP's calls one to one; [`Reservation`], [`Allocation`] and [`Mapping`] are the same as
//! owned values. The library records what is reserved, created, mapped and granted: the ledger. A call
//! checks its arguments against the ledger, then calls the runtime and records each step in a journal,
//! then updates the ledger or rolls the steps back.
//!
//! | HIP | here | HSA |
//! |---|---|---|
//! | `hipMemAddressReserve` | [`Vmm::address_reserve`] | `hsa_amd_vmem_address_reserve_align` |
//! | `hipMemAddressFree` | [`Vmm::address_free`] | `hsa_amd_vmem_address_free` |
//! | `hipMemCreate` | [`Vmm::create`] | `hsa_amd_vmem_handle_create` |
//! | `hipMemRelease` | [`Vmm::release`] | `hsa_amd_vmem_handle_release` |
//! | `hipMemMap` | [`Vmm::map`] | `hsa_amd_vmem_map` |
//! | `hipMemUnmap` | [`Vmm::unmap`] | `hsa_amd_vmem_unmap` |
//! | `hipMemSetAccess` | [`Vmm::set_access`] | `hsa_amd_vmem_set_access` |
//! | `hipMemGetAccess` | [`Vmm::get_access`] | none: from the ledger |
//! | `hipMemGetAllocationGranularity` | [`Vmm::allocation_granularity`] | `hsa_amd_memory_pool_get_info` |
//! | `hipMemGetAllocationPropertiesFromHandle` | [`Vmm::allocation_properties`] | none: from the ledger |
//! | `hipMemExportToShareableHandle` | [`Vmm::export_to_shareable_handle`] | `hsa_amd_vmem_export_shareable_handle` |
//! | `hipMemImportFromShareableHandle` | [`Vmm::import_from_shareable_handle`] | `hsa_amd_vmem_import_shareable_handle` |
//! | `hipMemRetainAllocationHandle` | [`Vmm::retain_allocation_handle`] | none: from the ledger |
//! | `hipMemMapArrayAsync` | none: not supported | none |
//!
//! HIP's `flags`, of which only 0 is legal, are no arguments here; an interface that has them checks them
//! by [`Operation::check_flags`]. HIP has no calls for [`Vmm::map_many`],
//! [`Vmm::set_access_many`] and [`Vmm::unmap_many`], which change many ranges at once, all or none.
//!
//! # Memory model
//!
//! The rules for every type of this crate that reads, writes, fills or copies device memory, pool
//! memory or locked memory:
//!
//! * The library never makes a reference or a slice to such memory. Its bytes are copied from and
//!   to the caller's own.
//! * Loads and stores by this process are relaxed atomic accesses of single bytes. Threads may
//!   therefore read and write the same range at the same time, also with agents. A race is not
//!   undefined behaviour: each byte that a reader gets is one that was there before or one that a
//!   writer stored, and bytes of several writers may be mixed.
//! * The accesses synchronise nothing. A program that needs all bytes of one write orders the
//!   accesses itself, with a lock or a channel.
//! * Copies and fills by agents are outside Rust's memory model. They have ended when the call
//!   returns, with success or an error, and whatever the caller does next sees their result.
//! * The caller's own bytes, a `&[u8]` or `&mut [u8]` argument, are read and written plainly.
//!   Agents never access them: they copy from and to memory that the library has locked for the
//!   call.
//! * Memory of the program that an area maps
//!   ([`MmapOptions::with_host_memory`](crate::area::MmapOptions::with_host_memory)) is borrowed mutably until it is
//!   unmapped, so that no reference to it is live while an agent writes it. For memory that cannot
//!   be borrowed, the function is unsafe.
//! * An address ([`Address`], [`Mapping::address`]) is a number. A program that makes a pointer of
//!   it, in `unsafe` code, accesses the memory atomically or excludes all other accesses itself, and
//!   makes no `&[u8]` of memory that an agent, a thread or another process may write.
//!
//! The simulation copies with system calls of the kernel, which are outside Rust's memory model as
//! an agent's copies are.
//!
//! Calls log through [`tracing`], while they hold the lock of their reservation: a subscriber that calls an
//! operation on the same reservation waits forever. Look-ups and reports are fine. A panic of a
//! subscriber is caught.

mod access_change;
mod cpu_view;
mod journal;
mod ledger;
mod map;
mod mapped_range;
mod options;
mod owned;
mod permission;
mod physical;
mod properties;
mod query;
mod quirks;
mod remap;
mod reserve;
mod shareable;
mod snapshot;
mod transfer;

pub use crate::access::{Access, AccessDescriptor};
pub use crate::address::Address;
pub use crate::error::{BrokenInvariant, Quarantined};
pub use crate::handle::{Handle, HandleType};
pub use map::NewMapping;
pub use options::VmmOptions;
pub use owned::{Allocation, MapRequest, Mapping, Reservation, ReservationBuilder};
pub use properties::{AllocationKind, AllocationProperties, Granularity, Location};
pub use quirks::{Quirk, Quirks};
pub use snapshot::{AccessEntry, MappingEntry, MemoryEntry, ReservationEntry};

use crate::access::{AgentSet, MAX_AGENTS};
use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem};
use crate::hip::HipProfile;
use crate::native::Native;
use crate::runtime::Runtime;
use crate::sync::{Mutex, lock};
use cpu_view::CpuAccess;
use derive_more::Debug;
use journal::Journal;
use ledger::{HandleRecord, Ledger, MappedRange, Range, Reservation as Reserved};
use std::sync::Arc;

/// Virtual-memory management on one runtime. Cheap to clone; may be used from any thread.
///
/// Operations on different reservations do not wait for each other while the runtime works. When the
/// last clone is dropped, and the last owned value with it, everything that is still mapped, allocated or
/// reserved is freed.
///
/// ```
/// use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let size = vmm.reservation_granule();
///
/// let address = vmm.address_reserve(size, 0, None)?;
/// let handle = vmm.create(size, &AllocationProperties::on(gpu))?;
/// vmm.map(address, size, 0, handle)?;
/// vmm.set_access(address, size, &[AccessDescriptor { agent: gpu, access: Access::ReadWrite }])?;
///
/// vmm.unmap(address, size)?;
/// vmm.release(handle)?;
/// vmm.address_free(address, size)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Vmm({}, {:?})", self.runtime().info().name, self.usage())]
pub struct Vmm {
    shared: Arc<Shared>,
}

/// Counts of what a [`Vmm`] holds ([`Vmm::usage`]).
///
/// ```
/// # use hsa_vmm::{Runtime, Vmm};
/// # fn main() -> Result<(), hsa_vmm::Error> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// assert_eq!(vmm.usage().mappings, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Reservations that are not freed.
    pub reservations: usize,
    /// Physical memory that is referenced or mapped.
    pub handles: usize,
    /// Mappings.
    pub mappings: usize,
}

/// A mapping, as [`Vmm::mappings`] lists it.
///
/// ```
/// fn print(vmm: &hsa_vmm::Vmm) {
///     for mapping in vmm.mappings() {
///         println!("{} {:#x} {:?}", mapping.address, mapping.size, mapping.access);
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingInfo {
    /// The start address.
    pub address: Address,
    /// Its size in bytes.
    pub size: usize,
    /// The agents with access, and their access.
    pub access: Vec<(AgentId, Access)>,
}

#[derive(Debug)]
struct Shared {
    runtime: Runtime,
    profile: HipProfile,
    quirks: Quirks,
    /// The unit of reservations.
    granule: usize,
    /// The CPU agents. In calls of the runtime, the first one represents all of them.
    cpus: AgentSet,
    /// For each agent, the agents that can be granted access to its memory.
    reached_by: Vec<AgentSet>,
    ledger: Ledger,
    cpu_access: CpuAccess,
    /// The quarantined ranges and memory.
    quarantine: Mutex<Vec<Arc<Quarantined>>>,
}

impl Vmm {
    /// Opens virtual memory management with the newest documented behaviour.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if runtime or driver have none
    /// ([`RuntimeInfo::without_virtual_memory`](crate::runtime::RuntimeInfo) says why), if there is no GPU,
    /// or if there are more than 128 agents.
    pub fn open(runtime: &Runtime) -> Result<Self, Error> {
        Self::open_with(runtime, VmmOptions::default())
    }

    /// Opens virtual memory management with a profile or quirks of the caller's choice.
    ///
    /// # Errors
    /// As for [`Vmm::open`].
    pub fn open_with(runtime: &Runtime, options: VmmOptions) -> Result<Self, Error> {
        let opened = Shared::open(runtime, options).map(Arc::new);
        let shared = opened.map_err(|kind| Error::new(Operation::Open, kind))?;
        Ok(Self { shared })
    }

    /// Runs an operation, unless this process is a child of a fork.
    fn run<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&Shared) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        let done = match self.runtime().has_forked() {
            true => Err(ErrorKind::Forked),
            false => act(&self.shared),
        };
        done.map_err(|kind| Error::new(operation, kind))
    }

    /// Returns whether the two are clones of one another.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the runtime below.
    pub fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// Returns the profile: the release of HIP that it behaves like, where releases differ.
    pub fn profile(&self) -> HipProfile {
        self.shared.profile
    }

    /// Returns the quirks of the runtime that are worked around.
    pub fn quirks(&self) -> Quirks {
        self.shared.quirks
    }

    /// Returns the unit of reservations in bytes: the largest granule of any GPU.
    pub fn reservation_granule(&self) -> usize {
        self.shared.granule
    }
}

/// The mappings that an operation may act on. An owned value names its own, because a call by address can
/// have replaced them at their addresses.
#[derive(Clone, Copy, Debug)]
enum Expected<'a> {
    /// Any mappings: the caller named addresses.
    Any,
    /// Exactly the mappings with these serials, by address.
    Only(&'a [u64]),
}

impl Expected<'_> {
    /// Rejects mappings found in a range that are not the expected ones. The reservation is locked, so that
    /// the result stays valid.
    fn check(
        self,
        range: Range,
        mut found: impl Iterator<Item = MappedRange>,
    ) -> Result<(), ErrorKind> {
        let Self::Only(serials) = self else { return Ok(()) };
        let is_next = |&serial: &u64| found.next().is_some_and(|it| it.serial == serial);
        if serials.iter().all(is_next) && found.next().is_none() {
            return Ok(());
        }
        Err(range.invalid(Problem::NotMapped(range.address())))
    }

    /// Rejects targets of a journal, from an index on, that are not the expected mappings.
    fn check_targets(self, journal: &Journal<'_>, first: usize) -> Result<(), ErrorKind> {
        let found = journal.targets[first..].iter().map(|target| target.now);
        let Some(first) = found.clone().next() else { return Ok(()) };
        self.check(first.range(), found)
    }
}

impl Shared {
    fn open(runtime: &Runtime, options: VmmOptions) -> Result<Self, ErrorKind> {
        if runtime.has_forked() {
            return Err(ErrorKind::Forked);
        }
        if runtime.info().without_virtual_memory.is_some() {
            return Err(Feature::VirtualMemory.into());
        }
        if runtime.agents().len() > MAX_AGENTS {
            return Err(Feature::ManyAgents.into());
        }
        // Reservations contain memory of any GPU, so that they are multiples of the largest granule.
        let granules = runtime.gpus().filter_map(Agent::vmem_pool).map(|pool| pool.granule);
        let granule = granules.max().ok_or(Feature::VirtualMemory)?;
        let agents = runtime.agents().iter().enumerate();
        let cpus = agents.filter(|(_, agent)| agent.kind() == AgentKind::Cpu);
        let reached_by = |owner: &Agent| {
            let reaches = |agent: &&Agent| {
                let mut peers = agent.peers.iter();
                agent.id() == owner.id()
                    || peers.any(|peer| peer.agent == owner.id() && peer.reachable)
            };
            let agents = runtime.agents().iter().filter(reaches);
            agents.map(|agent| agent.id().index()).collect()
        };
        let known = Quirks::of_extension(runtime.info().extension);
        Ok(Self {
            runtime: runtime.clone(),
            profile: options.profile,
            quirks: options.exact_quirks.unwrap_or(known.union(options.more_quirks)),
            granule,
            cpus: cpus.map(|(index, _)| index).collect(),
            reached_by: runtime.agents().iter().map(reached_by).collect(),
            ledger: Ledger::default(),
            cpu_access: CpuAccess::default(),
            quarantine: Mutex::default(),
        })
    }

    fn native(&self) -> &Native {
        self.runtime.native()
    }

    /// Calls a function of the runtime that uses handles or mappings and locks them itself.
    fn call_locked<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        match self.quirks.some_calls_take_no_lock {
            true => self.native().locked(call),
            false => call(self.native()),
        }
    }

    /// Calls a function of the runtime that uses handles and, before ROCm 10, takes no lock.
    fn call_unlocked<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        match self.quirks.some_calls_take_no_lock {
            true => self.native().unlocked(call),
            false => call(self.native()),
        }
    }

    /// Returns an agent, which is an argument of the caller's.
    fn agent(&self, id: AgentId, argument: Argument) -> Result<&Agent, ErrorKind> {
        let unknown = || ErrorKind::invalid(argument, id, Problem::UnknownAgent);
        self.runtime.agent(id).ok_or_else(unknown)
    }

    /// Rejects a quarantined reservation.
    fn check_usable(&self, reservation: &Reserved) -> Result<(), ErrorKind> {
        match reservation.quarantined() {
            Some(range) => Err(ErrorKind::Quarantined { range: range.clone(), now: false }),
            None => Ok(()),
        }
    }

    /// Quarantines a range, or physical memory, which is listed with the null address.
    fn quarantine(
        &self,
        operation: Operation,
        range: Range,
        failure: ErrorKind,
        rollback: Option<ErrorKind>,
    ) -> Arc<Quarantined> {
        let (address, size) = (range.address(), range.size);
        let entry = Arc::new(Quarantined { address, size, operation, failure, rollback });
        crate::log::event!(ERROR, range = %entry, "quarantined");
        lock(&self.quarantine).push(entry.clone());
        entry
    }

    /// Releases physical memory that nothing keeps alive.
    fn release_memory(&self, operation: Operation, memory: &HandleRecord) {
        let release = |native: &Native| {
            // SAFETY: nothing references, maps or uses the memory, and its handle was removed.
            unsafe { native.handle_release(memory.native) }
        };
        if let Err(failure) = self.call_locked(release) {
            let range = Range { start: 0, size: memory.size };
            self.quarantine(operation, range, ErrorKind::of_call(failure, memory.size), None);
        }
    }
}

impl Drop for Shared {
    /// Frees everything; the runtime must not stop with live mappings (6.4.3 crashes).
    fn drop(&mut self) {
        if self.runtime.has_forked() {
            return;
        }
        self.log_leaks();
        let mappings: Vec<Range> = self.ledger.reservations.snapshot(|all| {
            let all = all.iter().flat_map(|it| it.mappings.iter());
            all.map(|it| it.range()).collect()
        });
        for range in mappings {
            let unmapped = self.replace(Operation::Unmap, &[range], Expected::Any, &mut []);
            if let Err(error) = unmapped {
                // Its state is unknown, but the runtime must not stop while it is mapped.
                let answer = self.unmap_in_runtime(range);
                crate::log::event!(WARN, %error, ?answer, "a mapping was unmapped in an unknown state");
            }
        }
        let reservations: Vec<Arc<Reserved>> = self.ledger.reservations.snapshot(|all| {
            let all = all.iter().map(|it| it.reservation);
            all.filter(|it| it.quarantined().is_none()).cloned().collect()
        });
        for reservation in reservations {
            if let Err(error) = self.free(&reservation, reservation.range()) {
                crate::log::event!(WARN, %error, "a reservation was not freed");
            }
        }
        // Last, because quarantined memory may still be mapped.
        for record in self.ledger.handles.drain() {
            self.release_memory(Operation::Release, &record);
        }
    }
}
