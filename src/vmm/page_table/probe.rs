//! Tests whether a GPU uses the page-table entries that the library writes.

use super::ControlFailure;
use crate::access::Access;
use crate::agent::Agent;
use crate::native::{
    AddressSpace, Barrier, Buffer, CopyEngine, Native, NativeAccess, NativeHandle, PagePermissions,
    fill_possible_hole_of_map,
};
use crate::vmm::Quirks;
use hsa_sys::MEMORY_TYPE_PINNED;
use std::os::fd::{AsFd, OwnedFd};

/// The bytes that the probe writes to each half of its memory.
const PATTERNS: [[u8; 64]; 2] = [[0x5a; 64], [0xa5; 64]];

/// A probe of one GPU: the values that are needed to change the GPU's page table and to test the effect.
#[derive(Clone, Copy)]
pub(super) struct PageTableProbe<'a> {
    pub native: &'a Native,
    pub quirks: Quirks,
    pub gpu: &'a Agent,
    pub space: &'a AddressSpace,
    pub barrier: &'a Barrier,
}

/// The probe's memory of two granules, and the addresses that are reserved for the memory.
#[derive(Clone, Copy)]
struct ProbeMemory {
    address: usize,
    /// The size of each half in bytes: one granule.
    half: usize,
    memory: NativeHandle,
}

impl<'a> PageTableProbe<'a> {
    /// Maps memory, makes the entries of the first half point to the second half, and reads the first half with the
    /// GPU. No access can fault.
    ///
    /// The inner result tells whether the GPU uses changed entries. An outer error means that the memory may still be
    /// mapped, or that a GPU may still use it. The memory then stays allocated, and its addresses stay reserved.
    pub fn run(self) -> Result<Result<(), ControlFailure>, ControlFailure> {
        let Some(pool) = self.gpu.vmem_pool() else { return Ok(Err(ControlFailure::NoPool)) };
        let (half, size) = (pool.granule, 2 * pool.granule);
        let reserved = self.native.with_shared_lock(|native| native.address_reserve(size, 0, half));
        let address = match reserved {
            Ok(address) => address,
            Err(failure) => return Ok(Err(failure.into())),
        };
        let created = self.native.with_shared_lock(|native| {
            native.handle_create(pool.native, size, MEMORY_TYPE_PINNED, 0)
        });
        let result = match created {
            Ok(memory) => {
                let result = self.with_memory(ProbeMemory { address, half, memory })?;
                // SAFETY: the memory is not mapped, and no GPU uses it.
                self.native.with_shared_lock(|native| unsafe { native.handle_release(memory) })?;
                result
            }
            Err(error) => Err(error.into()),
        };
        // SAFETY: nothing is mapped in the reserved range.
        self.native.with_shared_lock(|native| unsafe { native.address_free(address, size) })?;
        Ok(result)
    }

    /// Exports and maps the memory, and returns the result of the probe. An outer error has the same meaning as that of
    /// [`run`](Self::run).
    fn with_memory(
        self,
        probe_memory: ProbeMemory,
    ) -> Result<Result<(), ControlFailure>, ControlFailure> {
        let ProbeMemory { address, half, memory } = probe_memory;
        let runtime_keeps = self.quirks.export_keeps_descriptor;
        // SAFETY: the handle is alive.
        let exported = self
            .native
            .with_exclusive_lock(|native| unsafe { native.export(memory, 0, runtime_keeps) });
        let descriptor = match exported {
            Ok(Ok(descriptor)) => descriptor,
            Ok(Err(errno)) => return Ok(Err(ControlFailure::NotCopied(errno))),
            Err(error) => return Ok(Err(error.into())),
        };
        // SAFETY: the range is reserved and empty, and as large as the memory.
        let map = |native: &Native| unsafe { native.map(address, 2 * half, memory) };
        if let Err(error) = self.native.with_shared_lock(map) {
            // A failed map can leave an address-space hole, but not on ROCm 6.1, whose reserved pages are accessible.
            if self.native.reserves_aligned() {
                fill_possible_hole_of_map(address, 2 * half).map_err(|_| error)?;
            }
            return Ok(Err(error.into()));
        }
        let result = self.with_mapping(probe_memory, &descriptor)?;
        // SAFETY: the range is one mapping, which nothing uses.
        self.native.with_shared_lock(|native| unsafe { native.unmap(address, 2 * half) })?;
        self.barrier.wait::<ControlFailure>(self.native)?;
        Ok(result)
    }

    /// Changes entries of the mapping, and returns whether the GPU uses them. An outer error means that entries may
    /// remain after the runtime's unmap.
    fn with_mapping(
        self,
        probe_memory: ProbeMemory,
        descriptor: &OwnedFd,
    ) -> Result<Result<(), ControlFailure>, ControlFailure> {
        let ProbeMemory { address, half, .. } = probe_memory;
        let buffer = match self.prepare(probe_memory, descriptor) {
            Ok(buffer) => buffer,
            Err(reason) => return Ok(Err(reason)),
        };
        let all = PagePermissions::all();
        // SAFETY: the range is the first half of the mapping, and no GPU uses it. The next call of `write_entries` replaces
        // the whole mapping.
        let replaced = unsafe { buffer.write_entries(address, half, half, all) };
        let read = replaced.map_err(ControlFailure::from).and_then(|()| self.read(address));
        // SAFETY: the range is the whole mapping, and no GPU uses it. The runtime's unmap removes the entries.
        unsafe { buffer.write_entries(address, 2 * half, 0, all) }?;
        self.barrier.wait::<ControlFailure>(self.native)?;
        Ok(read.and_then(|read| match read == PATTERNS[1] {
            true => Ok(()),
            false => Err(ControlFailure::NoEffect),
        }))
    }

    /// Grants the GPU access, and writes a pattern to each half of the memory. Imports the memory in the GPU's
    /// address space, and returns the import.
    fn prepare<'b>(
        self,
        probe_memory: ProbeMemory,
        descriptor: &'b OwnedFd,
    ) -> Result<Buffer<'b>, ControlFailure>
    where
        'a: 'b,
    {
        let ProbeMemory { address, half, .. } = probe_memory;
        let access = [NativeAccess::new(self.gpu.native, Access::ReadWrite.to_bits())];
        // SAFETY: the range is one mapping.
        let grant = |native: &Native| unsafe { native.set_access(address, 2 * half, &access) };
        self.native.with_shared_lock(grant)?;
        self.barrier.wait::<ControlFailure>(self.native)?;
        let engine = CopyEngine::Agent(self.gpu.native);
        for (start, pattern) in [address, address + half].into_iter().zip(&PATTERNS) {
            // SAFETY: the mapping is allocated, and the GPU can write it.
            unsafe { self.native.write(engine, start, pattern) }?;
        }
        Ok(self.space.import(descriptor.as_fd())?)
    }

    fn read(self, address: usize) -> Result<[u8; 64], ControlFailure> {
        self.barrier.wait::<ControlFailure>(self.native)?;
        let mut bytes = [0; 64];
        // SAFETY: the mapping is allocated, and the GPU can read it.
        unsafe { self.native.read(CopyEngine::Agent(self.gpu.native), address, &mut bytes) }?;
        Ok(bytes)
    }
}
