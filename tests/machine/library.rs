//! The library on a runtime: on the simulation or on AMD's runtime.

use hsa_vmm::error::Problem;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, GrowableBuffer, Handle,
    HandleType, Reservation, Runtime, Vmm,
};
use std::path::Path;

/// A started runtime, and a `Vmm` on it.
pub struct Library {
    pub runtime: Runtime,
    pub vmm: Vmm,
}

impl Library {
    /// Loads the runtime in a file, and opens the library on it.
    #[track_caller]
    pub fn load(runtime: impl AsRef<Path>) -> Self {
        // SAFETY: all callers pass the file of a runtime that the tests compiled or fetched.
        Self::open(
            unsafe { Runtime::load_from(runtime) }.expect("the runtime starts"),
            VmmOptions::default(),
        )
    }

    #[track_caller]
    pub fn open(runtime: Runtime, options: VmmOptions) -> Self {
        let vmm = Vmm::open_with(&runtime, options).expect("virtual memory is supported");
        Self { runtime, vmm }
    }

    pub fn gpu(&self, number: usize) -> AgentId {
        self.runtime.gpus().nth(number).expect("the GPU exists").id()
    }

    pub fn gpus(&self) -> Vec<AgentId> {
        self.runtime.gpus().map(|gpu| gpu.id()).collect()
    }

    pub fn cpu(&self, number: usize) -> AgentId {
        let id = self.runtime.agents()[number].id();
        assert_eq!(self.runtime.agents()[number].kind(), hsa_vmm::agent::AgentKind::Cpu);
        id
    }

    /// Returns the granule of the first GPU's memory.
    pub fn granule(&self) -> usize {
        let gpu = self.runtime.gpus().next().expect("a GPU exists");
        gpu.vmem_pool().expect("the GPU has memory").granule
    }

    /// Returns the properties of shareable memory on a GPU.
    pub fn shareable_on(&self, gpu: usize) -> AllocationProperties {
        AllocationProperties::on(self.gpu(gpu)).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR)
    }

    #[track_caller]
    pub fn reserve(&self, size: usize) -> Address {
        self.vmm.address_reserve(size, 0, None).expect("addresses")
    }

    #[track_caller]
    pub fn create(&self, gpu: usize, size: usize) -> Handle {
        self.vmm.create(size, &self.shareable_on(gpu)).expect("memory")
    }

    #[track_caller]
    pub fn map(&self, address: Address, size: usize, handle: Handle) {
        self.vmm.map(address, size, 0, handle).expect("a mapping");
    }

    #[track_caller]
    pub fn grant(&self, address: Address, size: usize, agent: AgentId, access: Access) {
        let granted = self.vmm.set_access(address, size, &[AccessDescriptor { agent, access }]);
        granted.expect("access");
    }

    /// Reserves addresses, and maps new memory of a GPU at all of them.
    #[track_caller]
    pub fn map_new_memory(&self, gpu: usize, size: usize) -> (Address, Handle) {
        let (base, handle) = (self.reserve(size), self.create(gpu, size));
        self.map(base, size, handle);
        (base, handle)
    }

    /// Makes two adjacent reservations, and returns their addresses. Retries if another thread takes the addresses.
    #[track_caller]
    pub fn adjacent_reservations(&self, size: usize) -> [Address; 2] {
        for _ in 0..1000 {
            // Finds free addresses: makes a reservation of twice the size, and drops it at once.
            let low =
                Reservation::builder(2 * size).reserve(&self.vmm).expect("addresses").address();
            let high = low.checked_add(size).expect("no overflow");
            if self.vmm.address_reserve_at(low, size).is_err() {
                continue;
            }
            if self.vmm.address_reserve_at(high, size).is_ok() {
                return [low, high];
            }
            self.vmm.address_free(low, size).expect("nothing is mapped");
        }
        panic!("the addresses after a reservation were taken each time");
    }

    /// Creates a buffer of four steps of `step` bytes on the first GPU, and extends it several times. `extensions`
    /// contains the number of steps of each extension.
    ///
    /// Retries if another thread takes the addresses.
    #[track_caller]
    pub fn extended_buffer(&self, step: usize, extensions: &[usize]) -> GrowableBuffer {
        self.extended_buffer_before_free_steps(step, extensions, 0)
    }

    /// Does the same as [`extended_buffer`](Self::extended_buffer), but chooses addresses after which `free_steps` more
    /// steps are free. Another thread can take these addresses before the function returns.
    #[track_caller]
    fn extended_buffer_before_free_steps(
        &self,
        step: usize,
        extensions: &[usize],
        free_steps: usize,
    ) -> GrowableBuffer {
        for _ in 0..1000 {
            // Finds free addresses: makes a reservation for all steps, and drops it before the buffer reserves them.
            let steps = 4 + extensions.iter().sum::<usize>() + free_steps;
            let free = Reservation::builder(steps * step).reserve(&self.vmm).expect("addresses");
            let base = free.address();
            drop(free);
            let options = GrowableBuffer::builder(4 * step).with_step(step).exactly_at(base);
            let Ok(mut buffer) = options.reserve(&self.vmm, &self.shareable_on(0)) else {
                continue;
            };
            assert_eq!(buffer.address(), base);
            let extend = |&steps: &usize| match buffer.extend(steps * step) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.problem(), Some(Problem::AddressTaken), "{error}");
                    false
                }
            };
            if extensions.iter().all(extend) {
                return buffer;
            }
        }
        panic!("the addresses after a reservation were taken each time");
    }

    /// Returns a buffer of four steps with an extension of two, and a reservation exactly at the buffer's end.
    #[track_caller]
    pub fn extended_buffer_and_neighbour(&self, step: usize) -> (GrowableBuffer, Reservation) {
        for _ in 0..1000 {
            let buffer = self.extended_buffer_before_free_steps(step, &[2], 1);
            let end = buffer.address().checked_add(buffer.maximum()).expect("no overflow");
            if let Ok(neighbour) = Reservation::builder(step).exactly_at(end).reserve(&self.vmm) {
                return (buffer, neighbour);
            }
        }
        panic!("the addresses after a buffer were taken each time");
    }

    /// Fails unless the ledger is consistent and empty, and no range is quarantined.
    #[track_caller]
    pub fn assert_everything_freed(&self) {
        self.vmm.check().expect("the ledger is consistent");
        let usage = self.vmm.usage();
        assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "{usage:?}");
        assert_eq!(self.vmm.quarantined_ranges(), []);
    }
}
