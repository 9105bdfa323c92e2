//! HIP's virtual-memory management.
//!
//! [`Vmm`] has HIP's fourteen calls one to one; [`Reservation`], [`Allocation`] and [`Mapping`]
//! are the same as owned values. The library keeps books of what is reserved, created, mapped and
//! granted: the ledger. The way of a call: its arguments are checked, and against the ledger
//! (nothing has happened yet) → the runtime is asked → the ledger is changed, or what was done is
//! undone.
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
//! | `hipMemGetAccess` | [`Vmm::get_access`] | none: the ledger knows |
//! | `hipMemGetAllocationGranularity` | [`Vmm::allocation_granularity`] | `hsa_amd_memory_pool_get_info` |
//! | `hipMemGetAllocationPropertiesFromHandle` | [`Vmm::allocation_properties`] | none: the ledger knows |
//! | `hipMemExportToShareableHandle` | [`Vmm::export_to_shareable_handle`] | `hsa_amd_vmem_export_shareable_handle` |
//! | `hipMemImportFromShareableHandle` | [`Vmm::import_from_shareable_handle`] | `hsa_amd_vmem_import_shareable_handle` |
//! | `hipMemRetainAllocationHandle` | [`Vmm::retain_allocation_handle`] | none: the ledger counts |
//! | `hipMemMapArrayAsync` | [`Vmm::map_array_async`] | none: not supported |
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
//!   ([`MmapOptions::mapping`](crate::area::MmapOptions::mapping)) is borrowed mutably until it is
//!   unmapped, so that no reference to it is live while an agent writes it. For memory that cannot
//!   be borrowed, the function is unsafe.
//! * An address ([`Address`], [`Mapping::address`]) is a number. A program that makes a pointer of
//!   it, in `unsafe` code, accesses the memory atomically or excludes all other accesses itself, and
//!   makes no `&[u8]` of memory that an agent, a thread or another process may write.
//!
//! The simulation copies with system calls of the kernel, which are outside Rust's memory model as
//! an agent's copies are.
//!
//! Calls log through [`tracing`], while they hold the lock of their reservation: a subscriber that calls
//! an operation on the same reservation waits forever. Look-ups and reports are fine. A panic of a
//! subscriber is caught.
//!
//! What HIP has no call for: [`Vmm::map_many`], [`Vmm::set_access_many`] and [`Vmm::unmap_many`] do many
//! of these at once, or none.

mod batch;
mod cpu_access;
mod error;
mod invariant;
mod ledger;
mod look_up;
mod mapping;
mod name;
mod only;
mod owned;
mod permission;
mod physical;
mod properties;
mod quarantine;
mod quirks;
mod remap;
mod report;
mod reserve;
mod shareable;
mod transfer;

pub use crate::access::{Access, AccessDescriptor};
pub use crate::address::Address;
pub use crate::error::Quarantined;
pub use crate::handle::{Handle, HandleType, HandleTypes};
pub use batch::NewMapping;
pub use error::{Argument, Feature, Operation, Problem, VmmError};
pub use invariant::BrokenInvariant;
pub(crate) use mapping::Serial;
pub(crate) use only::Only;
pub use owned::{Allocation, Mapping, Reservation, ReservationOptions};
pub use properties::{AllocationKind, AllocationProperties, Granularity, Location};
pub(crate) use quirks::QuirkChoice;
pub use quirks::{Quirk, Quirks};

use crate::Errno;
use crate::access::{AgentSet, MOST_AGENTS};
use crate::agent::{Agent, AgentId, AgentKind};
use crate::hip::HipProfile;
pub(crate) use crate::native::out_of_descriptors;
use crate::native::{Failure, Native, NativeHandle, Status};
use crate::runtime::Runtime;
use crate::sync::atomic::AtomicBool;
use cpu_access::CpuAccess;
use error::Refusal;
use ledger::{Entered, Frozen, Ledger, Range, Reserved};
use mapping::Expected;
use quarantine::Quarantine;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a [`Vmm`] is opened with.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VmmOptions {
    /// Whose answers it gives where HIP's releases differ.
    pub profile: HipProfile,
    quirks: QuirkChoice,
}

impl VmmOptions {
    /// The newest HIP's answers, and the quirks that are known of the runtime's version.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with this HIP's answers.
    #[must_use]
    pub fn with_profile(self, profile: HipProfile) -> Self {
        Self { profile, ..self }
    }

    /// Works around these quirks, besides those known of the runtime's version: for a vendor's
    /// build that lacks a fix.
    #[must_use]
    pub fn with_quirks(self, quirks: Quirks) -> Self {
        Self { quirks: QuirkChoice::Known(quirks), ..self }
    }

    /// Works around these quirks and no others, whatever is known of the runtime's version: for
    /// tests and benchmarks.
    ///
    /// # Safety
    /// The runtime must not have any quirk that `quirks` leaves out, or the caller must not do what
    /// that quirk makes undefined. [`Quirks::KNOWN`] says of each what goes wrong: without
    /// `export_keeps_descriptor`, for example, dropping an exported descriptor twice closes one that
    /// belongs to somebody else.
    ///
    /// ```compile_fail,E0133
    /// use hsa_vmm::vmm::{Quirks, VmmOptions};
    ///
    /// let options = VmmOptions::new().with_exact_quirks(Quirks::default());
    /// ```
    #[allow(unsafe_code, reason = "a promise of the caller's that the compiler cannot check")]
    #[must_use]
    pub unsafe fn with_exact_quirks(self, quirks: Quirks) -> Self {
        Self { quirks: QuirkChoice::Exact(quirks), ..self }
    }
}

/// Virtual-memory management on one runtime. Cheap to clone; may be used from any thread.
///
/// Operations on different reservations do not wait for each other while the runtime works.
/// When the last clone goes, and the last owned value with it, everything that is still mapped,
/// allocated or reserved is given back.
#[derive(Clone, Debug)]
pub struct Vmm {
    shared: Arc<Shared>,
}

/// What the runtime knows physical memory by.
#[derive(Debug)]
struct Physical {
    native: NativeHandle,
    /// The index of the agent whose memory it is, where known.
    owner: Option<usize>,
    imported: bool,
    /// Our copy of an imported descriptor, where the runtime needs it later or cannot export the
    /// memory again.
    descriptor: Option<OwnedFd>,
}

#[derive(Debug)]
struct Shared {
    runtime: Runtime,
    profile: HipProfile,
    quirks: Quirks,
    /// What reservations must be multiples of.
    granule: usize,
    /// The CPU agents, of which the first is told of for all of them.
    cpus: AgentSet,
    /// Of each agent, who can be granted access to its memory.
    reached_by: Vec<AgentSet>,
    ledger: Ledger<Physical>,
    /// Whether the runtime was seen to mark what it exports to be closed on exec.
    exports_close_on_exec: AtomicBool,
    cpu_access: CpuAccess,
    quarantine: Quarantine,
}

/// Of each agent, by its index, who can be granted access to its memory.
fn who_reaches(agents: &[Agent]) -> Vec<AgentSet> {
    let mut reached_by: Vec<AgentSet> =
        (0..agents.len()).map(|own| [own].into_iter().collect()).collect();
    for (index, agent) in agents.iter().enumerate() {
        for peer in agent.peers().iter().filter(|peer| peer.reachable) {
            if let Some(by) = reached_by.get_mut(peer.agent.index()) {
                by.insert(index);
            }
        }
    }
    reached_by
}

impl Vmm {
    /// Opens virtual-memory management with the newest documented behaviour.
    ///
    /// # Errors
    /// [`VmmError::NotSupported`] if runtime or driver have none
    /// ([`RuntimeInfo::without_virtual_memory`](crate::runtime::RuntimeInfo) says why), if
    /// there is no GPU, or if there are more than 128 agents.
    pub fn open(runtime: &Runtime) -> Result<Self, VmmError> {
        Self::open_with(runtime, VmmOptions::default())
    }

    /// Opens virtual-memory management with a profile or quirks of one's own choice.
    ///
    /// # Errors
    /// As for [`Vmm::open`].
    pub fn open_with(runtime: &Runtime, options: VmmOptions) -> Result<Self, VmmError> {
        let operation = Operation::Open;
        let refuse = |feature| Err(VmmError::NotSupported { operation, feature });
        if runtime.has_forked() {
            return Err(VmmError::Forked { operation });
        }
        if !runtime.info().virtual_memory {
            return refuse(Feature::VirtualMemory);
        }
        if runtime.agents().len() > MOST_AGENTS {
            return refuse(Feature::ManyAgents);
        }
        // Reservations hold memory of any GPU, so that they are counted in the largest granule.
        let granules = runtime.gpus().filter_map(Agent::handle_pool).map(|pool| pool.granule());
        let Some(granule) = granules.max() else { return refuse(Feature::VirtualMemory) };
        let agents = runtime.agents().iter().enumerate();
        let cpus = agents.filter(|(_, agent)| agent.kind() == AgentKind::Cpu);
        let cpus = cpus.map(|(index, _)| index).collect();
        let reached_by = who_reaches(runtime.agents());
        let quirks = options.quirks.apply_to(Quirks::of_extension(runtime.info().extension));
        Ok(Self {
            shared: Arc::new(Shared {
                runtime: runtime.clone(),
                profile: options.profile,
                quirks,
                granule,
                cpus,
                reached_by,
                ledger: Ledger::new(),
                exports_close_on_exec: AtomicBool::new(false),
                cpu_access: CpuAccess::default(),
                quarantine: Quarantine::default(),
            }),
        })
    }

    /// Whether the two are clones of one another.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The runtime below.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// Whose answers it gives where HIP's releases differ.
    #[must_use]
    pub fn profile(&self) -> HipProfile {
        self.shared.profile
    }

    /// The runtime's habits that are worked around.
    #[must_use]
    pub fn quirks(&self) -> Quirks {
        self.shared.quirks
    }

    /// What sizes of reservations are multiples of, in bytes: the largest granule of any GPU.
    #[must_use]
    pub fn reservation_granule(&self) -> usize {
        self.shared.granule
    }

    /// Counts what is held. Zeros in a [child of a fork](Runtime::has_forked).
    #[must_use]
    pub fn usage(&self) -> Usage {
        if self.runtime().has_forked() {
            return Usage::default();
        }
        let (reservations, handles, mappings) = self.shared.ledger.counts();
        Usage { reservations, handles, mappings }
    }

    /// Lists ranges that are not used any more, and why. Empty in a
    /// [child of a fork](Runtime::has_forked).
    #[must_use]
    pub fn quarantine(&self) -> Vec<Quarantined> {
        if self.runtime().has_forked() {
            return Vec::new();
        }
        self.shared.quarantine.list()
    }

    /// Checks the invariants of the library's own books.
    ///
    /// # Errors
    /// What does not hold. It would be a defect of this library. Also an error in a
    /// [child of a fork](Runtime::has_forked), where nothing can be checked.
    pub fn check(&self) -> Result<(), BrokenInvariant> {
        if self.runtime().has_forked() {
            let reason = "cannot check: this process was forked; check in the parent";
            return Err(BrokenInvariant(reason.to_owned()));
        }
        self.shared.ledger.check().map_err(BrokenInvariant)
    }

    /// Lists every mapping, by address, and what each agent may do. Empty in a
    /// [child of a fork](Runtime::has_forked).
    #[must_use]
    pub fn mappings(&self) -> Vec<MappingInfo> {
        if self.runtime().has_forked() {
            return Vec::new();
        }
        self.shared.ledger.at_one_moment(|reservations| {
            let all = reservations.iter().flat_map(|it| it.mappings.iter());
            all.map(|(start, record)| self.describe(start, &record)).collect()
        })
    }

    /// Lists every reservation, by address, with its size in bytes. Empty in a
    /// [child of a fork](Runtime::has_forked).
    #[must_use]
    pub fn reservations(&self) -> Vec<(Address, usize)> {
        if self.runtime().has_forked() {
            return Vec::new();
        }
        self.shared.ledger.at_one_moment(|reservations| {
            let each = |it: &Frozen<'_>| (Address::new(it.reserved.base), it.reserved.size);
            reservations.iter().map(each).collect()
        })
    }
}

/// How much a [`Vmm`] holds.
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingInfo {
    /// Where it begins.
    pub address: Address,
    /// Its size in bytes.
    pub size: usize,
    /// The agents that may do something, and what.
    pub access: Vec<(AgentId, Access)>,
}

impl Shared {
    /// Calls the runtime.
    fn call<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        call(self.runtime.native())
    }

    /// Calls a function of the runtime that uses handles or mappings and locks them itself.
    fn call_locked<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        if self.quirks.some_calls_take_no_lock {
            self.runtime.native().locked(call)
        } else {
            self.call(call)
        }
    }

    /// Calls a function of the runtime that uses handles and, before ROCm 10, takes no lock.
    fn call_unlocked<T>(&self, call: impl FnOnce(&Native) -> T) -> T {
        if self.quirks.some_calls_take_no_lock {
            self.runtime.native().unlocked(call)
        } else {
            self.call(call)
        }
    }

    fn alive(&self, operation: Operation) -> Result<(), VmmError> {
        if self.runtime.has_forked() { Err(VmmError::Forked { operation }) } else { Ok(()) }
    }

    /// The index of an agent in access sets and in the runtime's list.
    fn agent(&self, id: AgentId, argument: Argument) -> Result<(usize, &Agent), Refusal> {
        if let Some(agent) = self.runtime.agent(id) {
            return Ok((id.index(), agent));
        }
        let here = self.runtime.host().id().runtime();
        let problem =
            if id.runtime() == here { Problem::UnknownAgent } else { Problem::ForeignAgent };
        Err(Refusal::new(argument, problem))
    }

    /// Does something inside the reservation around `range` while nobody else does.
    fn at_gate<T>(
        &self,
        operation: Operation,
        range: Range,
        act: impl FnOnce(Entered<'_>) -> Result<T, VmmError>,
    ) -> Result<T, VmmError> {
        loop {
            let found = self.ledger.around(range);
            let reserved = found.map_err(|refusal| refusal.during(operation))?;
            let Some(inside) = reserved.enter() else {
                // If it has been freed meanwhile, its addresses may be another's by now.
                not_open(operation, &reserved)?;
                continue;
            };
            let done = act(Entered::One(inside));
            reserved.keep();
            return done;
        }
    }

    /// Takes a reservation out of use, and says so.
    fn quarantine(&self, operation: Operation, address: usize, reason: String) -> VmmError {
        let place = self.ledger.quarantine(address);
        let (address, size) = place.unwrap_or((Address::new(address), 0));
        self.set_aside(operation, address, size, reason);
        VmmError::Quarantined { operation, address, now: true }
    }

    /// Lists what is not used any more.
    fn set_aside(&self, operation: Operation, address: Address, size: usize, reason: String) {
        crate::log::error!(%operation, %address, size, reason, "quarantined");
        self.quarantine.add(Quarantined {
            address,
            size,
            operation: crate::error::legacy::operation_of(&operation.to_string()),
            reason,
        });
    }

    /// Gives physical memory back that nobody can name any more.
    fn give_back(&self, operation: Operation, physical: &Physical, size: usize) {
        if let Err(Failure { call, status }) =
            self.call_locked(|native| native.handle_release(physical.native))
        {
            let reason = format!("physical memory was not given back: {call} answered {status}");
            self.set_aside(operation, Address::NULL, size, reason);
        }
    }

    /// What a failure of the runtime means.
    fn failure(&self, operation: Operation, failure: Failure, size: usize) -> VmmError {
        let Failure { call, status } = failure;
        match status {
            Status::NOT_SUPPORTED => {
                VmmError::NotSupported { operation, feature: Feature::Function }
            }
            // From ROCm 7.14 on an import is opened by set_access, which says no more than that.
            Status::OUT_OF_RESOURCES | Status::ERROR if out_of_descriptors() => {
                VmmError::OutOfDescriptors { operation }
            }
            Status::OUT_OF_RESOURCES => VmmError::OutOfMemory { operation, call, status, size },
            _ => VmmError::Runtime { operation, call, status },
        }
    }
}

/// Why nobody is let in: an error for what is in quarantine; nothing for what has been freed.
fn not_open(operation: Operation, reserved: &Reserved) -> Result<(), VmmError> {
    if reserved.is_quarantined() {
        let address = Address::new(reserved.base);
        return Err(VmmError::Quarantined { operation, address, now: false });
    }
    Ok(())
}

/// What a failure of the operating system means.
fn system_failure(operation: Operation, call: &'static str, errno: rustix::io::Errno) -> VmmError {
    match errno {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => {
            VmmError::OutOfDescriptors { operation }
        }
        errno => VmmError::System { operation, call, errno: Errno::of(errno) },
    }
}

fn no_flags(flags: u64) -> Result<(), Refusal> {
    if flags == 0 { Ok(()) } else { Err(Refusal::new(Argument::Flags, Problem::NoFlags(flags))) }
}

impl Drop for Shared {
    /// Gives everything back; the runtime must not stop with live mappings (6.4.3 crashes).
    fn drop(&mut self) {
        if self.runtime.has_forked() {
            return;
        }
        self.tell_leaks();
        let operation = Operation::AddressFree;
        let mappings: Vec<(usize, usize)> = self.ledger.at_one_moment(|reservations| {
            let all = reservations.iter().flat_map(|it| it.mappings.iter());
            all.map(|(start, record)| (start, record.size)).collect()
        });
        for (start, size) in mappings {
            let unmapped = self.unmap(Operation::Unmap, Range { start, size }, Expected::Any);
            if let Err(error) = unmapped {
                // What its state is does not matter any more, as long as the runtime does not
                // stop with it.
                let answer = self.call_locked(|native| native.unmap(start, size));
                crate::log::warning!(%error, ?answer, "a mapping was unmapped as it was");
            }
        }
        let reservations: Vec<Range> = self.ledger.at_one_moment(|reservations| {
            let all = reservations.iter().map(|it| it.reserved);
            all.filter(|it| !it.is_quarantined()).map(Reserved::range).collect()
        });
        for range in reservations {
            if let Err(error) = self.free(operation, range, None) {
                crate::log::warning!(%error, "a reservation was left behind");
            }
        }
        // Last, because what is in quarantine may still be mapped.
        for record in self.ledger.handles.drain() {
            self.give_back(Operation::Release, &record.payload, record.size);
        }
    }
}
