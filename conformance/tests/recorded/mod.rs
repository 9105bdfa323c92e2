//! Repeats, with this library, calls that were recorded on another vendor's GPUs.
//!
//! Each call has its own fixture, so that a call does not depend on earlier calls.

pub mod absent;
pub mod access;
pub mod addresses;
pub mod differences;
pub mod mapping;
pub mod memory;
pub mod sharing;

use hsa_vmm::hip::HipError;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Error, Handle, HandleType,
    Runtime, Vmm,
};

/// The recorded name of a call, and a function that makes the call. The function returns the result as
/// written in `data/cuda_h200_edges.tsv`.
pub type Call = (&'static str, fn(&Fixture) -> String);

/// Returns the recorded calls that this library can make. [`absent`] lists the other recorded calls.
pub fn calls() -> impl Iterator<Item = &'static Call> {
    [addresses::CALLS, memory::CALLS, mapping::CALLS, access::CALLS, sharing::CALLS]
        .into_iter()
        .flatten()
}

/// A new `Vmm` for a call, and functions that create the objects of the call.
pub struct Fixture {
    pub vmm: Vmm,
    pub granule: usize,
}

/// Formats a verdict as written in `data/cuda_h200_edges.tsv`.
pub fn verdict<T>(result: Result<T, Error>) -> String {
    let Err(error) = result else { return "SUCCESS".to_owned() };
    match error.hip(hsa_vmm::hip::HipProfile::Hip7) {
        HipError::InvalidValue => "INVALID_VALUE",
        HipError::OutOfMemory => "OUT_OF_MEMORY",
        HipError::InvalidDevice => "INVALID_DEVICE",
        HipError::NotSupported => "NOT_SUPPORTED",
        other => return other.name(),
    }
    .to_owned()
}

/// Formats a boolean as written in `data/cuda_h200_edges.tsv`.
pub fn flag(value: bool) -> String {
    u8::from(value).to_string()
}

/// Returns the address `bytes` bytes after `at`.
pub fn offset_by(at: Address, bytes: usize) -> Address {
    at.checked_add(bytes).unwrap()
}

impl Fixture {
    pub fn new(runtime: &Runtime) -> Self {
        let vmm = Vmm::open(runtime).unwrap();
        let pool = runtime.gpus().next().unwrap().vmem_pool().unwrap();
        Self { granule: pool.granule, vmm }
    }

    pub fn gpu(&self, number: usize) -> AgentId {
        self.vmm.runtime().gpus().nth(number).unwrap().id()
    }

    /// Returns a GPU that does not exist.
    pub fn invented_gpu(&self) -> AgentId {
        AgentId::from_bits(self.gpu(0).to_bits() | 0xffff_ff00)
    }

    /// Returns the properties that the recorded program used.
    pub fn properties(&self) -> AllocationProperties {
        AllocationProperties::on(self.gpu(0)).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR)
    }

    pub fn reserve(&self, granules: usize) -> Address {
        self.vmm.address_reserve(granules * self.granule, 0, None).unwrap()
    }

    pub fn create(&self, granules: usize) -> Handle {
        self.vmm.create(granules * self.granule, &self.properties()).unwrap()
    }

    pub fn map(&self, at: Address, granules: usize, handle: Handle) -> Result<(), Error> {
        self.vmm.map(at, granules * self.granule, 0, handle)
    }

    pub fn unmap(&self, at: Address, granules: usize) -> Result<(), Error> {
        self.vmm.unmap(at, granules * self.granule)
    }

    /// Sets the first GPU's access to `granules` granules.
    pub fn set_access(&self, at: Address, granules: usize, access: Access) -> Result<(), Error> {
        let list = [AccessDescriptor { agent: self.gpu(0), access }];
        self.vmm.set_access(at, granules * self.granule, &list)
    }

    /// Returns the first GPU's access as a number, as written in `data/cuda_h200_edges.tsv`.
    pub fn access_value(&self, at: Address) -> String {
        self.vmm.get_access(self.gpu(0), at).unwrap().to_bits().to_string()
    }

    /// Maps a handle of two granules at the start of a reservation of eight granules.
    pub fn map_two_granules(&self) -> (Address, Handle) {
        let (at, handle) = (self.reserve(8), self.create(2));
        self.map(at, 2, handle).unwrap();
        (at, handle)
    }

    /// Maps two handles of two granules each, side by side at the start of a reservation of eight granules.
    pub fn map_two_handles(&self) -> (Address, [Handle; 2]) {
        let (at, first) = self.map_two_granules();
        let second = self.create(2);
        self.map(offset_by(at, 2 * self.granule), 2, second).unwrap();
        (at, [first, second])
    }

    /// Makes two adjacent reservations of four granules each. Returns their addresses.
    pub fn reserve_adjacent(&self) -> (Address, Address) {
        let size = 4 * self.granule;
        // Find free addresses for both reservations.
        let at = self.reserve(8);
        self.vmm.address_free(at, 2 * size).unwrap();
        let reserve = |hint| self.vmm.address_reserve(size, 0, Some(hint)).unwrap();
        let first = reserve(at);
        (first, reserve(offset_by(first, size)))
    }
}
