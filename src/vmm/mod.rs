//! HIP's virtual memory management.
//!
//! [`Vmm`] has HIP's calls one to one; [`Reservation`], [`Allocation`] and [`Mapping`] are owned values for the same
//! calls. The ledger records all reservations, memory, mappings and access. A call checks its arguments against the
//! ledger, and records each step in a journal before it performs the step in the runtime. If a step fails, the call
//! rolls the earlier steps back. At the end, the call writes the runtime's state to the ledger.
//!
//! | HIP | hsa-vmm | HSA |
//! |---|---|---|
//! | `hipMemAddressReserve` | [`Vmm::address_reserve`] | `hsa_amd_vmem_address_reserve_align` |
//! | `hipMemAddressFree` | [`Vmm::address_free`] | `hsa_amd_vmem_address_free` |
//! | `hipMemCreate` | [`Vmm::create`] | `hsa_amd_vmem_handle_create` |
//! | `hipMemRelease` | [`Vmm::release`] | `hsa_amd_vmem_handle_release` |
//! | `hipMemMap` | [`Vmm::map`] | `hsa_amd_vmem_map` |
//! | `hipMemUnmap` | [`Vmm::unmap`] | `hsa_amd_vmem_unmap` |
//! | `hipMemSetAccess` | [`Vmm::set_access`] | `hsa_amd_vmem_set_access` |
//! | `hipMemGetAccess` | [`Vmm::get_access`] | none: the library's own records (its ledger) |
//! | `hipMemGetAllocationGranularity` | [`Vmm::allocation_granularity`] | `hsa_amd_memory_pool_get_info` |
//! | `hipMemGetAllocationPropertiesFromHandle` | [`Vmm::allocation_properties`] | none: the library's own records (its ledger) |
//! | `hipMemExportToShareableHandle` | [`Vmm::export_to_shareable_handle`] | `hsa_amd_vmem_export_shareable_handle` |
//! | `hipMemImportFromShareableHandle` | [`Vmm::import_from_shareable_handle`] | `hsa_amd_vmem_import_shareable_handle` |
//! | `hipMemGetHandleForAddressRange` | [`Vmm::export_address_range`] | `hsa_amd_vmem_export_shareable_handle`, `hsa_amd_portable_export_dmabuf` |
//! | `hipMemExportToShareableHandle`, `hipMemImportFromShareableHandle` with `hipMemHandleTypeFabric` | [`Vmm::export_to_fabric_handle`], [`Vmm::import_from_fabric_handle`] | `hsa_amd_vmem_export_fabric_handle`, `hsa_amd_vmem_import_fabric_handle` |
//! | `hipMemRetainAllocationHandle` | [`Vmm::retain_allocation_handle`] | none: the library's own records (its ledger) |
//! | `hipMemMapArrayAsync` | none: not supported | none |
//!
//! The methods have no parameter for HIP's `flags`, which must be 0. An interface with that parameter, such as the C
//! API, checks it with [`Operation::check_flags`]. HIP has no equivalent of [`Vmm::map_many`], [`Vmm::set_access_many`]
//! and [`Vmm::unmap_many`], which change all of the given ranges or none. HIP has no equivalent of [`RetireQueue`]
//! either: the queue unmaps memory when HSA signals show that no agent uses it any more.
//!
//! # Memory model
//!
//! The rules for every type of this crate that reads, writes, fills or copies device memory, pool memory or host memory
//! that is locked (pinned) for agents:
//!
//! * The library creates no slice of this memory. Its only references into this memory are to single atomic bytes. It
//!   copies bytes between this memory and the caller's own.
//! * Loads and stores by this process are relaxed atomic accesses of single bytes. Threads and agents may therefore
//!   read and write the same range at the same time. A race is not undefined behaviour. For each byte, a reader gets
//!   the old value or a value that a writer stored; bytes of several writers may be mixed.
//! * These accesses synchronise nothing. If a program must not read half of a write, it orders its accesses itself,
//!   with a lock or a channel.
//! * Copies and fills by agents are outside Rust's memory model. When the call returns, with success or an error, these
//!   copies and fills have ended, and later accesses of the caller see their result.
//! * The library accesses the caller's own bytes, a `&[u8]` or `&mut [u8]` argument, non-atomically. Agents never access
//!   these bytes: they copy from and to other memory of this process, which the library has locked (pinned) for the call.
//! * An area can map memory of the program
//!   ([`MmapOptions::with_host_memory`](crate::area::MmapOptions::with_host_memory)). The area borrows this memory
//!   mutably until it unmaps the memory. Therefore the program has no reference to the memory while an agent writes to
//!   it. For memory that cannot be borrowed, an unsafe function takes a pointer.
//! * An address ([`Address`], [`Mapping::address`]) is a number. A program that converts an address to a
//!   pointer, in `unsafe` code, must access the memory atomically or exclude all other accesses itself. The
//!   program must not create a `&[u8]` of memory to which an agent, a thread or another process may write.
//!
//! The simulation copies with system calls. Like an agent's copies, these copies are outside Rust's memory model.
//!
//! Calls log through [`tracing`] while they hold the locks of their reservation and of the loaded library: a subscriber
//! that calls an operation can deadlock. A subscriber may call look-ups and reports of `Vmm` and `Runtime`, but no
//! method of a buffer. The library catches a panic of a subscriber.

mod access_change;
mod cpu_view;
mod export;
mod fabric;
mod host;
mod journal;
mod ledger;
mod locking;
mod map;
mod options;
mod owned;
mod page_table;
mod permission;
mod physical;
mod probe;
mod properties;
mod query;
mod quirks;
mod remap;
mod reserve;
mod retire;
mod runtime_mapping;
mod shareable;
mod snapshot;
mod transfer;

pub use crate::access::{Access, AccessDescriptor};
pub use crate::address::Address;
pub use crate::error::{BrokenInvariant, Quarantined};
pub use crate::handle::{Handle, HandleType};
pub use crate::signal::SignalCondition;
pub use export::ExportedSegment;
pub use fabric::FabricHandle;
pub use map::NewMapping;
pub use options::VmmOptions;
pub use owned::{Allocation, MapRequest, Mapping, Reservation, ReservationBuilder};
pub use probe::{Probe, Probing};
pub use properties::{AllocationKind, AllocationProperties, Granularity, Location};
pub use quirks::{Quirk, Quirks};
pub use retire::{RetireFailure, RetireQueue, RetireQueueBuilder, RetireReport};
pub use snapshot::{AccessEntry, MappingEntry, MemoryEntry, ReservationEntry};

use crate::access::{AgentSet, MAX_AGENTS};
use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem, Value};
use crate::hip::HipProfile;
use crate::native::{Native, Status};
use crate::runtime::Runtime;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, lock};
use cpu_view::CpuMapping;
use derive_more::Debug;
use journal::Journal;
use ledger::{AddressRange, Ledger, MappedRange, ReservationRecord};
use page_table::PageTables;
use std::sync::Arc;

/// Virtual memory management on one runtime. Cheap to clone; may be used from any thread. Concurrent accesses to memory
/// are described in the [memory model](self#memory-model).
///
/// Operations on different reservations wait for each other in few cases only: one of them exports or imports (before
/// ROCm 10; the first grant to the CPU also exports, and so does a change of GPUs' page tables), one of them is rolled
/// back or fills an address-space hole, the process has no free file descriptor, or one of them waits for the GPUs
/// ([`VmmOptions::with_barrier`]). Dropping the last clone and the last owned value frees everything that is still
/// mapped, allocated or reserved. The exceptions are the addresses of [quarantined](Vmm::quarantined_ranges)
/// reservations, and mappings, with their memory, whose signals did not fire or that the runtime fails to unmap.
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

/// The numbers of reservations, handles and mappings of a [`Vmm`] ([`Vmm::usage`]).
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
    /// The number of reservations that are not freed.
    pub reservations: usize,
    /// The number of handles whose memory is referenced, mapped or used by an operation in progress.
    pub handles: usize,
    /// The number of mappings.
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
    /// The size in bytes.
    pub size: usize,
    /// Where the mapped part begins in the memory, in bytes.
    pub offset: usize,
    /// The agents with access, and their access.
    pub access: Vec<(AgentId, Access)>,
}

#[derive(Debug)]
struct Shared {
    /// Declared before `runtime`, so that the page tables are dropped first: dropping `runtime` may stop the runtime.
    page_tables: PageTables,
    runtime: Runtime,
    profile: HipProfile,
    quirks: Quirks,
    /// The quirks that were probed for at opening, and the results.
    probes: Vec<Probe>,
    /// The unit of reservations.
    granule: usize,
    /// The CPU agents. In calls of the runtime, the first CPU represents all CPUs.
    cpus: AgentSet,
    /// For each agent, the agents that can be granted access to its memory.
    peers_of: Vec<AgentSet>,
    ledger: Ledger,
    cpu_mapping: CpuMapping,
    /// Whether the runtime has refused to create physical memory in a CPU's pool.
    rejects_cpu_pools: AtomicBool,
    quarantine_list: Mutex<Vec<Arc<Quarantined>>>,
}

impl Vmm {
    /// Opens virtual memory management with the newest documented behaviour.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if the runtime has no GPU or more than 128 agents, or if the runtime or the driver
    /// does not support virtual memory. [`RuntimeInfo::virtual_memory_failure`](crate::runtime::RuntimeInfo) contains
    /// the reason for the missing support.
    pub fn open(runtime: &Runtime) -> Result<Self, Error> {
        Self::open_with(runtime, VmmOptions::default())
    }

    /// Opens virtual memory management with options, such as a profile or quirks.
    ///
    /// # Errors
    /// As for [`Vmm::open`].
    pub fn open_with(runtime: &Runtime, options: VmmOptions) -> Result<Self, Error> {
        Operation::Open.run(|| Ok(Self { shared: Arc::new(Shared::open(runtime, options)?) }))
    }

    /// Runs an operation, unless this process is a forked child.
    fn run<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&Shared) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        operation.run(|| {
            self.runtime().check_not_forked()?;
            act(&self.shared)
        })
    }

    /// Returns whether `self` and `other` are clones of one `Vmm`.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the runtime on which this `Vmm` was opened.
    pub fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// Returns the profile: the release of HIP whose behaviour this `Vmm` has, if releases differ.
    pub fn profile(&self) -> HipProfile {
        self.shared.profile
    }

    /// Returns the runtime's quirks that this `Vmm` works around.
    pub fn quirks(&self) -> Quirks {
        self.shared.quirks
    }

    /// Returns the quirks that this `Vmm` probed for when it was opened, and the results
    /// ([`VmmOptions::with_probing`]).
    pub fn probes(&self) -> &[Probe] {
        &self.shared.probes
    }

    /// Returns the unit of reservations in bytes: the largest granule of any GPU.
    pub fn reservation_granule(&self) -> usize {
        self.shared.granule
    }
}

/// The mappings that an operation may change. An operation on owned values passes the serials of their mappings,
/// because a call by address may have replaced these mappings.
#[derive(Clone, Copy, Debug)]
enum ExpectedMappings<'a> {
    /// Any mappings: the caller has passed addresses.
    Any,
    /// Exactly the mappings with these serials, by address.
    Only(&'a [u64]),
}

impl ExpectedMappings<'_> {
    /// Rejects the mappings found in a range if they are not the expected ones. The result stays valid while the caller
    /// holds the reservation's lock or the lock of its mappings.
    fn check(
        self,
        range: AddressRange,
        mut found: impl Iterator<Item = MappedRange>,
    ) -> Result<(), ErrorKind> {
        let Self::Only(serials) = self else { return Ok(()) };
        let is_next = |&serial: &u64| found.next().is_some_and(|it| it.serial == serial);
        if serials.iter().all(is_next) && found.next().is_none() {
            return Ok(());
        }
        Err(range.invalid(Problem::NotMapped(range.address())))
    }

    /// Rejects the targets of a journal from index `first` on if they are not the expected mappings. The error names
    /// the first target that is not expected.
    fn check_targets(self, journal: &Journal<'_, '_>, first: usize) -> Result<(), ErrorKind> {
        let Self::Only(serials) = self else { return Ok(()) };
        let (targets, mut serials) = (&journal.targets[first..], serials.iter());
        let unexpected = targets.iter().find(|target| serials.next() != Some(&target.now().serial));
        // If an expected mapping is missing, names the last target.
        match unexpected.or_else(|| targets.last().filter(|_| serials.next().is_some())) {
            Some(target) => {
                let range = target.now().range();
                Err(range.invalid(Problem::NotMapped(range.address())))
            }
            None => Ok(()),
        }
    }

    /// Converts the error of an operation on `ranges`. Changes nothing for [`ExpectedMappings::Any`]. If one of the
    /// ranges is not reserved, or splits a mapping, a call by address has unmapped an expected mapping. The error
    /// then becomes [`Problem::NotMapped`].
    fn as_not_mapped(self, ranges: &[AddressRange], error: ErrorKind) -> ErrorKind {
        let (Self::Only(_), ErrorKind::InvalidArgument { value, problem, .. }) = (self, &error)
        else {
            return error;
        };
        let unmapped = match problem {
            Problem::NotReserved => ranges.iter().find(|range| *value == Value::from(**range)),
            Problem::SplitsMapping(at) => ranges.iter().find(|range| range.end() > at.get()),
            _ => None,
        };
        unmapped.map_or(error, |range| range.invalid(Problem::NotMapped(range.address())))
    }
}

impl Shared {
    fn open(runtime: &Runtime, options: VmmOptions) -> Result<Self, ErrorKind> {
        runtime.check_not_forked()?;
        if runtime.info().virtual_memory_failure.is_some() {
            return Err(Feature::VirtualMemory.into());
        }
        if runtime.agents().len() > MAX_AGENTS {
            return Err(Feature::ManyAgents.into());
        }
        // Reservations are multiples of the largest granule, so that memory of any GPU can be mapped.
        let granules = runtime.gpus().filter_map(Agent::vmem_pool).map(|pool| pool.granule);
        let missing = match runtime.gpus().next() {
            Some(_) => Feature::VirtualMemory,
            None => Feature::Gpu,
        };
        let granule = granules.max().ok_or(missing)?;
        let agents = runtime.agents().iter().enumerate();
        let cpus = agents.filter(|(_, agent)| agent.kind() == AgentKind::Cpu);
        let peers_of = |owner: &Agent| {
            let agents = runtime.agents().iter().filter(|agent| agent.can_access(owner.id()));
            agents.map(|agent| agent.id().index()).collect()
        };
        let (quirks, probes) = probe::choose_quirks(runtime, granule, options);
        let page_tables = match options.changes_page_tables() || options.barrier {
            true => PageTables::open(runtime, quirks, options),
            false => PageTables::default(),
        };
        Ok(Self {
            page_tables,
            runtime: runtime.clone(),
            profile: options.profile,
            quirks,
            probes,
            granule,
            cpus: cpus.map(|(index, _)| index).collect(),
            peers_of: runtime.agents().iter().map(peers_of).collect(),
            ledger: Ledger::default(),
            cpu_mapping: CpuMapping::default(),
            rejects_cpu_pools: AtomicBool::new(false),
            quarantine_list: Mutex::default(),
        })
    }

    fn native(&self) -> &Native {
        self.runtime.native()
    }

    /// Calls a function of the runtime that uses handles or mappings and takes the runtime's own lock. Holds the
    /// library lock shared, unless every function of this runtime takes the runtime's own lock.
    fn call_shared<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        match self.quirks.some_calls_take_no_lock {
            true => self.native().with_shared_lock(call),
            false => call(self.native()),
        }
    }

    /// Calls a function of the runtime that uses handles and takes no lock before ROCm 10. Holds the library lock
    /// exclusively, unless every function of this runtime takes the runtime's own lock.
    fn call_exclusive<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        match self.quirks.some_calls_take_no_lock {
            true => self.native().with_exclusive_lock(call),
            false => call(self.native()),
        }
    }

    /// Returns the agent with the identifier `id`, which the caller has passed as `argument`.
    fn agent(&self, id: AgentId, argument: Argument) -> Result<&Agent, ErrorKind> {
        let unknown = || ErrorKind::invalid(argument, id, Problem::UnknownAgent);
        self.runtime.agent(id).ok_or_else(unknown)
    }

    /// Adds a range to the list of quarantined ranges; physical memory is listed with the null address.
    fn list_quarantine(
        &self,
        operation: Operation,
        range: AddressRange,
        failure: ErrorKind,
        rollback: Option<ErrorKind>,
    ) -> Arc<Quarantined> {
        let (address, size) = (range.address(), range.size);
        let entry = Arc::new(Quarantined { address, size, operation, failure, rollback });
        crate::log::event!(ERROR, range = %entry, "quarantined");
        lock(&self.quarantine_list).push(entry.clone());
        entry
    }
}

impl Drop for Shared {
    /// Frees everything except mappings that agents may still use, mappings that cannot be unmapped, the memory
    /// and reservations of these mappings, quarantined reservations, and what the runtime fails to free. If mappings, or
    /// foreign mappings in these reservations, may stay, the runtime stays started: stopping it can crash (ROCm 6.4.3).
    fn drop(&mut self) {
        if self.runtime.has_forked() {
            // Dropping the page tables could wait forever: another thread of the parent may have held locks of libdrm.
            std::mem::forget(std::mem::take(&mut self.page_tables));
            return;
        }
        self.log_leaks();
        let all: Vec<(MappedRange, bool)> = self.ledger.reservations.snapshot(|reservations| {
            let with_flag = |mappings: &ledger::Mappings, it: MappedRange| {
                (it, mappings.may_be_in_use(it.serial))
            };
            let lists = reservations.iter().map(|it| &it.mappings);
            lists.flat_map(|list| list.iter().map(move |it| with_flag(list, it))).collect()
        });
        // These mappings and their memory stay until the process ends, because agents may still use them.
        let mut kept: Vec<_> = all.iter().filter(|(_, is_kept)| *is_kept).map(|it| it.0).collect();
        // As for the probes (`Prober::run`): when it stops, a later release could unmap a foreign mapping in the hole.
        let has_hole = lock(&self.quarantine_list).iter().any(|entry| entry.leaves_hole());
        if has_hole || !kept.is_empty() {
            self.runtime.stay_started();
        }
        for mapping in all.iter().filter(|(_, is_kept)| !is_kept).map(|(it, _)| it) {
            let range = mapping.range();
            let unmap =
                || self.unmap_and_map(Operation::Unmap, &[range], ExpectedMappings::Any, &mut []);
            // Tries twice: after a failure that was rolled back, the second call can succeed.
            if let Err(error) = unmap().or_else(|_| unmap()) {
                // The state is unknown, but the runtime must not stop while the range is mapped.
                // SAFETY: the mapping was in the ledger, and no other thread can use the ledger any more.
                let result = unsafe { self.unmap_at_drop(mapping) };
                if let Err(failure) = &result {
                    let may_be_gone = matches!(
                        failure,
                        ErrorKind::Runtime { status: Status::INVALID_ALLOCATION, .. }
                            | ErrorKind::HoleNotFilled { .. }
                            | ErrorKind::System { call: "mmap", .. }
                    );
                    if !may_be_gone || self.is_mapped_in_runtime(mapping).unwrap_or(true) {
                        kept.push(*mapping);
                    }
                    self.runtime.stay_started();
                }
                self.set_wait_due();
                crate::log::event!(WARN, %error, ?result, "tried to unmap a range in an unknown state");
            }
        }
        if let Err(error) = self.wait_for_gpus_if_due() {
            crate::log::event!(WARN, %error, "memory that a GPU may still use is kept until the process ends");
            self.runtime.stay_started();
        }
        let reservations: Vec<Arc<ReservationRecord>> = self.ledger.reservations.snapshot(|all| {
            let all = all.iter().map(|it| it.reservation);
            let has_kept = |it: &ReservationRecord| kept.iter().any(|kept| it.contains(kept.start));
            all.filter(|it| it.quarantined().is_none() && !has_kept(it)).cloned().collect()
        });
        for reservation in reservations {
            if let Err(error) = self.free(&reservation, reservation.range()) {
                crate::log::event!(WARN, %error, "a reservation was not freed");
            }
        }
        // Releases memory last: the loop above may have unmapped it only now. Keeps the memory of kept mappings.
        for record in self.ledger.handles.drain() {
            if !kept.iter().any(|it| it.native == record.native) {
                self.release_memory(Operation::Release, record);
            }
        }
    }
}
