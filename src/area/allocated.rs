//! The memory of an area: mapped memory of a GPU, pool memory, or locked memory of the caller.

use crate::agent::{Agent, AgentId};
use crate::error::{Argument, Error, ErrorKind, Problem};
use crate::memory::PoolMemory;
use crate::native::{ForkCount, locked_ranges, overlapping_lock};
use crate::runtime::Runtime;
use crate::vmm::{
    Access, Address, Allocation, AllocationProperties, Granularity, Mapping, Reservation, Vmm,
};

/// The memory, the GPU that it was allocated for, and the agents with access.
pub(super) struct Allocated {
    pub device: AgentId,
    pub agents: Vec<AgentId>,
    pub memory: Memory,
}

pub(super) enum Memory {
    Mapped(MappedMemory),
    Pool(PoolMemory),
    Locked(LockedMemory),
}

/// Mapped memory. Rust drops the fields in this order: it unmaps the memory, releases it and frees its addresses.
pub(super) struct MappedMemory {
    /// `None` if the memory was unmapped, but not all of it could be freed.
    pub mapping: Option<Mapping>,
    /// `None` if the physical memory was freed.
    allocation: Option<Allocation>,
    /// `None` if the addresses were freed, but not the physical memory.
    reservation: Option<Reservation>,
}

impl MappedMemory {
    /// Reserves addresses, creates memory, maps it and grants access. Returns the value and the address of the
    /// memory.
    pub fn new(
        vmm: &Vmm,
        device: AgentId,
        agents: &[AgentId],
        size: usize,
    ) -> Result<(Self, Address), Error> {
        // If rounding up overflows, uses the largest multiple of the granule. Reserving that size fails.
        let granule = vmm.reservation_granule();
        let size = size.checked_next_multiple_of(granule).unwrap_or(usize::MAX / granule * granule);
        let properties = AllocationProperties::on(device);
        let recommended = vmm.allocation_granularity(&properties, Granularity::Recommended)?;
        // Sizes are not rounded up to the recommended granularity, 2 MiB, because areas also hold small
        // objects. The addresses of large areas are aligned to 2 MiB, so that the driver can use large pages.
        let alignment = if size >= recommended { recommended } else { 0 };
        let reservation = Reservation::builder(size).aligned_to(alignment).reserve(vmm)?;
        let allocation = Allocation::create(vmm, size, &properties)?;
        let mapping = reservation.map(0, &allocation)?;
        mapping.grant(agents, Access::ReadWrite)?;
        let address = reservation.address();
        let (mapping, reservation) = (Some(mapping), Some(reservation));
        Ok((Self { mapping, allocation: Some(allocation), reservation }, address))
    }

    /// Returns the size in bytes, in whole granules; 0 if the memory was freed.
    pub fn allocated_size(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::size)
    }

    /// Unmaps and frees the memory, and frees its addresses. After an error other than [`ErrorKind::PartlyFreed`] and
    /// [`ErrorKind::Quarantined`], the memory is mapped for `agents`, as before.
    pub fn free(&mut self, agents: &[AgentId]) -> Result<(), ErrorKind> {
        if let Some(Err(rejected)) = self.mapping.take().map(Mapping::unmap) {
            self.mapping = Some(rejected.value);
            return Err(rejected.error.into_kind());
        }
        if let Some(Err(rejected)) = self.reservation.take().map(Reservation::free) {
            let reservation = self.reservation.insert(rejected.value);
            // Maps the memory again. It is still allocated, with its contents.
            let restored = self.allocation.as_ref().map_or(Ok(()), |allocation| {
                let mapping = self.mapping.insert(reservation.map(0, allocation)?);
                mapping.grant(agents, Access::ReadWrite)
            });
            return Err(match restored {
                Ok(()) => rejected.error.into_kind(),
                Err(error) => {
                    let address = reservation.address();
                    crate::log::event!(WARN, %error, %address, "an area was not restored");
                    ErrorKind::PartlyFreed(Box::new(rejected.error))
                }
            });
        }
        if let Some(Err(rejected)) = self.allocation.take().map(Allocation::release) {
            self.allocation = Some(rejected.value);
            return Err(ErrorKind::PartlyFreed(Box::new(rejected.error)));
        }
        Ok(())
    }
}

/// Locked host memory of the caller. Dropping the value unlocks the memory.
pub(super) struct LockedMemory {
    runtime: Runtime,
    start: usize,
    is_locked: bool,
}

impl LockedMemory {
    /// Locks memory for GPUs. Returns the value and the address at which the GPUs access the memory.
    ///
    /// # Safety
    /// The memory is allocated and writable while the new value exists and is not forgotten. Later, no agent accesses
    /// the memory, even if it is still locked.
    pub unsafe fn new(
        runtime: &Runtime,
        start: usize,
        size: usize,
        gpus: &[&Agent],
    ) -> Result<(Self, usize), ErrorKind> {
        let overflow = ErrorKind::invalid(Argument::Host, Address::new(start), Problem::Overflow);
        let end = start.checked_add(size).ok_or(overflow)?;
        let key = (ForkCount::current(), start);
        {
            let mut locked = locked_ranges();
            if let Some(locked_start) = overlapping_lock(&locked, start, end) {
                return Err(ErrorKind::HostMemoryMapped(Address::new(locked_start)));
            }
            locked.insert(key, end);
        }
        let native_agents: Vec<_> = gpus.iter().map(|gpu| gpu.native).collect();
        // SAFETY: the caller guarantees that agents only access allocated memory, and no locked range overlaps it.
        let device_address = unsafe { runtime.native().lock(start, size, &native_agents) };
        let device_address = device_address.map_err(|failure| {
            locked_ranges().remove(&key);
            ErrorKind::of_call(failure, size)
        })?;
        Ok((Self { runtime: runtime.clone(), start, is_locked: true }, device_address))
    }

    /// Unlocks the memory, unless it was unlocked before. After a failure, the memory is still locked.
    ///
    /// # Safety
    /// After a success, no transfer uses the memory any more.
    pub unsafe fn unlock(&mut self) -> Result<(), ErrorKind> {
        if !self.is_locked {
            return Ok(());
        }
        // SAFETY: `new` locked the memory, and it is still locked. The caller guarantees that no transfer uses it.
        unsafe { self.runtime.native().unlock(self.start) }?;
        locked_ranges().remove(&(ForkCount::current(), self.start));
        self.is_locked = false;
        Ok(())
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if !self.runtime.has_forked()
            // SAFETY: the `AreaMemory` that owns this value is being dropped, so no transfer uses the memory.
            && let Err(kind) = unsafe { self.unlock() }
        {
            let address = Address::new(self.start);
            // The range stays in the list, so that no other area locks it: AMD's runtime 7.2 aborts the process when
            // memory that was locked twice is unlocked.
            crate::log::event!(WARN, ?kind, %address, "memory stays locked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::Config;

    /// Another value may have locked the memory since the first unlock.
    #[test]
    fn unlocking_twice_keeps_the_lock_of_others() {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let gpus: Vec<_> = runtime.gpus().collect();
        let host = vec![0u8; 8192];
        let start = host.as_ptr() as usize;
        let lock = || {
            // SAFETY: `host` stays allocated, and no agent accesses it.
            unsafe { LockedMemory::new(&runtime, start, host.len(), &gpus) }.unwrap().0
        };
        let mut first = lock();
        // SAFETY: no transfer uses the memory.
        unsafe { first.unlock() }.unwrap();
        let mut second = lock();
        // SAFETY: as above.
        unsafe { first.unlock() }.unwrap();
        assert!(overlapping_lock(&locked_ranges(), start, start + 1).is_some());
        // SAFETY: as above.
        unsafe { second.unlock() }.unwrap();
    }
}
