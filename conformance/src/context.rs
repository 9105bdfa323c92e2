//! The context of a case: a new `Vmm`, functions that create objects, and checks that rejected calls change nothing.

use crate::case::{describe_quarantined, ensure, ensure_eq};
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use crate::{NotPassed, Options, TestResult, raw_calls};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{
    Access, AccessDescriptor, Address, Agent, AgentId, AllocationProperties, Error, Handle,
    HandleType, Runtime, Vmm,
};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

/// The context of a case. Most sizes are in granules.
#[derive(Debug)]
pub struct Context {
    runtime: Runtime,
    vmm: Vmm,
    vmm_options: VmmOptions,
    gpus: Vec<AgentId>,
    granule: usize,
    count_descriptors: bool,
    peer_command: Vec<OsString>,
    peer_time_limit: Duration,
    handles: RefCell<Vec<Handle>>,
    expected_errors: RefCell<Vec<HipError>>,
    /// The values that [`fill`](Context::fill) has written.
    filled_with: RefCell<Vec<u32>>,
}

/// The maximum number of references per handle that the cleanup after a case releases.
const MAX_REFERENCES: usize = 64;
/// The time after which a free that takes effect late has ended.
const LATE_LIMIT: Duration = Duration::from_millis(100);

impl Context {
    pub(crate) fn open(runtime: &Runtime, options: &Options) -> TestResult<Self> {
        let vmm_options = VmmOptions::new()
            .with_page_tables(options.page_tables)
            .with_profile(options.profile)
            .with_quirks(options.quirks);
        let vmm = Vmm::open_with(runtime, vmm_options)?;
        let gpus: Vec<&Agent> =
            runtime.gpus().filter(|agent| agent.vmem_pool().is_some()).collect();
        let granules = gpus.iter().filter_map(|agent| agent.vmem_pool()).map(|p| p.granule);
        let Some(granule) = granules.max() else {
            return Err(NotPassed::Skipped("no GPU has memory for handles".to_owned()));
        };
        Ok(Self {
            vmm,
            vmm_options,
            granule,
            gpus: gpus.iter().map(|agent| agent.id()).collect(),
            runtime: runtime.clone(),
            count_descriptors: options.count_descriptors,
            peer_command: options.peer.clone(),
            peer_time_limit: options.peer_time_limit,
            handles: RefCell::default(),
            expected_errors: RefCell::default(),
            filled_with: RefCell::default(),
        })
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the `Vmm` of this case.
    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    /// Returns whether the run detects leaked file descriptors. In such a run, no other thread of the process opens or
    /// closes descriptors.
    pub fn counts_descriptors(&self) -> bool {
        self.count_descriptors
    }

    /// Returns the HIP version whose results are expected.
    pub fn profile(&self) -> HipProfile {
        self.vmm.profile()
    }

    /// Returns the error of a reservation with an invalid size or address. HIP 6 returns out of memory.
    pub fn rejected_reservation_error(&self) -> HipError {
        match self.profile() {
            HipProfile::Hip6 => HipError::OutOfMemory,
            _ => HipError::InvalidValue,
        }
    }

    /// Starts a second process with the same runtime.
    pub(crate) fn start_peer(&self) -> TestResult<Peer> {
        Peer::start(&self.peer_command, None, self.peer_time_limit)
    }

    /// Starts a second process with the same runtime, and a variable in its environment.
    pub(crate) fn start_peer_with_variable(&self, variable: &str, value: &str) -> TestResult<Peer> {
        Peer::start(&self.peer_command, Some((variable, value)), self.peer_time_limit)
    }

    /// Opens another `Vmm` on the same runtime.
    pub fn open_vmm(&self, profile: HipProfile) -> TestResult<Vmm> {
        let options = self.vmm_options.with_profile(profile);
        Ok(Vmm::open_with(&self.runtime, options)?)
    }

    /// Returns the largest granule of all GPUs, in bytes. Multiples of this granule are valid sizes for every GPU.
    pub fn granule(&self) -> usize {
        self.granule
    }

    /// Returns the GPUs that have a pool from which handles are created.
    pub fn gpus(&self) -> &[AgentId] {
        &self.gpus
    }

    /// Returns the first GPU of [`gpus`](Self::gpus).
    pub fn gpu(&self) -> AgentId {
        // `open` has checked that there is a GPU.
        self.gpus.first().copied().unwrap_or_else(|| self.host())
    }

    /// Returns properties of memory on the first GPU.
    pub fn properties(&self) -> AllocationProperties {
        AllocationProperties::on(self.gpu())
    }

    /// Returns a second GPU. The first and the second GPU can access each other's memory. Skips the case if there is no
    /// such GPU.
    pub fn other_gpu(&self) -> TestResult<AgentId> {
        let has_access = |agent: AgentId, owner: AgentId| {
            self.runtime.agent(agent).is_some_and(|agent| agent.can_access(owner))
        };
        let first = self.gpu();
        let mut others = self.gpus.iter().skip(1).copied();
        others.find(|&gpu| has_access(gpu, first) && has_access(first, gpu)).ok_or_else(|| {
            let why = match self.gpus.len() {
                0 | 1 => "needs two GPUs; there is one",
                _ => "needs two GPUs that can access each other's memory",
            };
            NotPassed::Skipped(why.to_owned())
        })
    }

    /// Returns the number of bytes of a GPU's memory that no process uses. Fails if the query fails: each driver that
    /// supports virtual memory management supports this query. According to the kernel's
    /// `include/uapi/linux/kfd_ioctl.h`, the query needs KFD 1.9, and dma-bufs KFD 1.12. Mappings by `GEM_VA`, which
    /// AMD's runtime uses for virtual memory, need KFD 1.15.
    pub(crate) fn available_memory(&self, gpu: AgentId) -> TestResult<usize> {
        let agent = self.runtime.agent(gpu).ok_or_else(|| format!("{gpu} is unknown"));
        agent
            .and_then(|agent| raw_calls::available_memory(&self.runtime, agent))
            .map_err(NotPassed::Failed)
    }

    /// Returns the reason for which an allocation has failed: skips the case if the GPU has less than `size` bytes of
    /// available memory, and otherwise returns `failure`.
    pub(crate) fn skip_if_too_small(
        &self,
        gpu: AgentId,
        size: usize,
        failure: NotPassed,
    ) -> NotPassed {
        match self.available_memory(gpu) {
            Ok(available) if available < size => NotPassed::Skipped(format!(
                "needs {size:#x} bytes of {gpu}'s memory; {available:#x} are available"
            )),
            _ => failure,
        }
    }

    /// Returns the CPU agent that performs this process's loads and stores.
    pub fn host(&self) -> AgentId {
        self.runtime.host().id()
    }

    /// Returns whether the CPU can access a GPU's memory.
    pub fn cpu_can_access(&self, gpu: AgentId) -> bool {
        self.runtime.host().can_access(gpu)
    }

    /// Skips the case if the CPU cannot access the first GPU's memory.
    pub fn require_cpu_access(&self) -> TestResult {
        if self.cpu_can_access(self.gpu()) {
            return Ok(());
        }
        Err(NotPassed::Skipped("the CPU cannot access this GPU's memory (no large BAR)".into()))
    }

    /// Returns the first GPU, and the CPU if it can access that GPU's memory.
    pub fn default_agents(&self) -> Vec<AgentId> {
        self.gpu_and_cpu(self.gpu())
    }

    /// Returns a GPU, and the CPU if it can access that GPU's memory.
    pub fn gpu_and_cpu(&self, gpu: AgentId) -> Vec<AgentId> {
        let host = self.cpu_can_access(gpu).then(|| self.host());
        [gpu].into_iter().chain(host).collect()
    }

    /// Returns an identifier that no agent of this runtime has.
    pub fn invented_agent(&self) -> AgentId {
        AgentId::from_bits(self.host().to_bits() | 0xffff_ff4d)
    }

    /// Reserves addresses.
    pub fn reserve(&self, granules: usize) -> TestResult<Address> {
        Ok(self.vmm.address_reserve(granules * self.granule, 0, None)?)
    }

    /// Creates memory on the first GPU.
    pub fn create(&self, granules: usize) -> TestResult<Handle> {
        self.create_on(self.gpu(), granules)
    }

    /// Creates memory on a GPU.
    pub fn create_on(&self, gpu: AgentId, granules: usize) -> TestResult<Handle> {
        self.create_with(granules, &AllocationProperties::on(gpu))
    }

    /// Creates memory on the first GPU, with a handle that can be exported as a file descriptor.
    pub fn create_shareable(&self, granules: usize) -> TestResult<Handle> {
        self.create_shareable_on(self.gpu(), granules)
    }

    /// Creates memory on a GPU, with a handle that can be exported as a file descriptor.
    pub fn create_shareable_on(&self, gpu: AgentId, granules: usize) -> TestResult<Handle> {
        let properties = AllocationProperties::on(gpu);
        self.create_with(granules, &properties.shareable_as(HandleType::POSIX_FILE_DESCRIPTOR))
    }

    fn create_with(
        &self,
        granules: usize,
        properties: &AllocationProperties,
    ) -> TestResult<Handle> {
        Ok(self.release_at_end(self.vmm.create(granules * self.granule, properties)?))
    }

    /// Records and returns a handle. When the case ends, the context releases all references to the handle.
    pub fn release_at_end(&self, handle: Handle) -> Handle {
        self.handles.borrow_mut().push(handle);
        handle
    }

    /// Maps the first granules of a handle.
    pub fn map(&self, at: Address, granules: usize, handle: Handle) -> TestResult {
        Ok(self.vmm.map(at, granules * self.granule, 0, handle)?)
    }

    /// Sets agents' access to granules.
    pub fn set_access(
        &self,
        at: Address,
        granules: usize,
        agents: &[AgentId],
        access: Access,
    ) -> TestResult {
        let descriptors: Vec<_> =
            agents.iter().map(|&agent| AccessDescriptor { agent, access }).collect();
        Ok(self.vmm.set_access(at, granules * self.granule, &descriptors)?)
    }

    /// Reserves addresses, maps new memory, grants the [default agents](Self::default_agents) access, and fills the
    /// memory with a value. `granules` is the size. The value is arbitrary: different values show which memory a later
    /// check reads.
    pub fn map_filled(&self, granules: usize, value: u32) -> TestResult<(Address, Handle)> {
        let at = self.reserve(granules)?;
        let handle = self.create(granules)?;
        self.map(at, granules, handle)?;
        self.set_access(at, granules, &self.default_agents(), Access::ReadWrite)?;
        self.fill(at, granules, value)?;
        Ok((at, handle))
    }

    /// Fills memory with a value, by the GPU that owns the memory.
    pub fn fill(&self, at: Address, granules: usize, value: u32) -> TestResult {
        self.filled_with.borrow_mut().push(value);
        Ok(self.vmm.fill(at, value, granules * self.granule)?)
    }

    /// Returns whether [`fill`](Self::fill) has written this value.
    pub(crate) fn has_filled(&self, value: u32) -> bool {
        self.filled_with.borrow().contains(&value)
    }

    /// Returns the address `granules` granules after `at`.
    pub fn granule_at(&self, at: Address, granules: usize) -> Address {
        offset_by(at, granules * self.granule)
    }

    /// Checks that a call is rejected with the error `expected` and changes nothing. Returns the library's error.
    pub fn expect_error<T: fmt::Debug>(
        &self,
        expected: HipError,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> TestResult<Error> {
        self.expect_error_as(expected, Error::hip, call)
    }

    fn expect_error_as<T: fmt::Debug, E: fmt::Display>(
        &self,
        expected: HipError,
        hip: impl FnOnce(&E, HipProfile) -> HipError,
        call: impl FnOnce() -> Result<T, E>,
    ) -> TestResult<E> {
        let before = Snapshot::of(&self.vmm, self.count_descriptors);
        let error = match call() {
            Ok(value) => {
                let why = format!("returned {value:?} where {expected} was expected");
                return Err(NotPassed::Failed(why));
            }
            Err(error) => error,
        };
        ensure_eq!(hip(&error, self.profile()), expected, "{error}");
        let after = Snapshot::of(&self.vmm, self.count_descriptors);
        if let Some(difference) = before.difference(&after) {
            std::thread::sleep(LATE_LIMIT);
            let later = Snapshot::of(&self.vmm, self.count_descriptors);
            let why = before.explain(&later, &difference, &error);
            return Err(NotPassed::Failed(why));
        }
        ensure_eq!(self.vmm.check(), Ok(()), "the ledger after {error}");
        self.record_expected_error(expected);
        Ok(error)
    }

    /// Records the expected error of a rejected call.
    pub(crate) fn record_expected_error(&self, error: HipError) {
        self.expected_errors.borrow_mut().push(error);
    }

    /// Returns the errors that [`record_expected_error`](Self::record_expected_error) has recorded so far.
    pub(crate) fn expected_errors(&self) -> Vec<HipError> {
        self.expected_errors.borrow().clone()
    }

    /// Checks that a call is [rejected](Self::expect_error) with `hipErrorInvalidValue`, and that the error names
    /// `argument`.
    pub fn expect_invalid_argument<T: fmt::Debug>(
        &self,
        argument: Argument,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> TestResult {
        let error = self.expect_error(HipError::InvalidValue, call)?;
        ensure_eq!(error.argument(), Some(argument), "{error}");
        Ok(())
    }

    /// Releases the case's resources, and checks that no resource remains. Calls `on_failure` if a release or the check
    /// fails.
    pub(crate) fn close(self, on_failure: &mut dyn FnMut(&Vmm)) -> TestResult {
        let vmm = self.vmm.clone();
        self.release_all().inspect_err(|_| on_failure(&vmm))
    }

    fn release_all(self) -> TestResult {
        let Self { vmm, handles, .. } = self;
        let failed = |error: Error| NotPassed::Failed(format!("cleaning up: {error}"));
        for mapping in vmm.mappings() {
            vmm.unmap(mapping.address, mapping.size).map_err(failed)?;
        }
        for handle in handles.into_inner() {
            let mut references = 0;
            while vmm.allocation_properties(handle).is_ok() && references < MAX_REFERENCES {
                vmm.release(handle).map_err(failed)?;
                references += 1;
            }
        }
        for (address, size) in vmm.reservations() {
            vmm.address_free(address, size).map_err(failed)?;
        }
        let usage = vmm.usage();
        let remaining = usage.reservations + usage.handles + usage.mappings;
        ensure!(remaining == 0, "left behind: {usage:?}");
        ensure_eq!(vmm.check(), Ok(()), "the ledger at the end");
        let quarantine = vmm.quarantined_ranges();
        ensure!(quarantine.is_empty(), "{}", describe_quarantined(&quarantine));
        Ok(())
    }
}

/// Returns the address `bytes` bytes after `at`.
pub(crate) fn offset_by(at: Address, bytes: usize) -> Address {
    Address::new(at.get().wrapping_add(bytes))
}
