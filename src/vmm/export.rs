//! Exports ranges of addresses as dma-bufs.

use super::ledger::AddressRange;
use super::shareable::size_of_buffer;
use super::{Address, Handle, Shared, Vmm};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::memory::{Record, Registry};
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::{AsFd, OwnedFd};

/// A part of an exported range: consecutive bytes of one dma-buf ([`Vmm::export_address_range`]).
///
/// The descriptor gives access to the whole dma-buf, not only to the segment. For a mapping, the dma-buf is the whole
/// physical memory of the handle. For pool memory, the dma-buf can contain other allocations: AMD's runtime puts small
/// allocations of pool memory into one dma-buf of 2 MiB. A process that receives the descriptor of one of these
/// allocations can read and write the others.
///
/// ```
/// # use hsa_vmm::{PoolMemory, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let memory = PoolMemory::allocate(&runtime, gpu, 1 << 20)?;
/// let segments = vmm.export_address_range(memory.address(), memory.size())?;
/// // Pool memory is one segment.
/// assert_eq!((segments.len(), segments[0].length), (1, 1 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ExportedSegment {
    /// The dma-buf. Close-on-exec is set for the descriptor.
    pub descriptor: OwnedFd,
    /// The start of the segment in the dma-buf, in bytes.
    pub offset: usize,
    /// The size of the segment in bytes.
    pub length: usize,
}

/// A part of a mapped range: consecutive bytes of one handle's memory.
#[derive(Debug)]
struct Part {
    handle: Handle,
    offset: usize,
    length: usize,
}

impl Vmm {
    /// Exports a range of addresses as dma-bufs, for a network adapter, another driver or another process
    /// (`hipMemGetHandleForAddressRange`, `hsa_amd_vmem_export_shareable_handle`,
    /// `hsa_amd_portable_export_dmabuf`).
    ///
    /// The range is either mapped completely, in one reservation, or inside one [`PoolMemory`](crate::PoolMemory) of a
    /// GPU. The range may begin and end at any byte, also inside mappings. Returns the segments of the range in the
    /// order of addresses. Adjacent mappings are one segment if they map consecutive bytes of one handle. Physical
    /// memory need not be [shareable](super::AllocationProperties::shareable_as).
    ///
    /// Each segment has its own descriptor, which keeps the memory alive, even after the memory is unmapped or freed. A
    /// descriptor gives access to the whole dma-buf ([`ExportedSegment`]). If the call fails, no descriptor stays open.
    ///
    /// ```
    /// # use hsa_vmm::{Allocation, AllocationProperties, Reservation, Runtime, Vmm};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let vmm = Vmm::open(&runtime)?;
    /// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// let reservation = Reservation::builder(8 << 20).reserve(&vmm)?;
    /// let memory = [(); 2].map(|()| Allocation::create(&vmm, 4 << 20, &AllocationProperties::on(gpu)));
    /// let [first, second] = memory;
    /// let (_first, _second) = (reservation.map(0, &first?)?, reservation.map(4 << 20, &second?)?);
    ///
    /// let start = reservation.address().checked_add(1 << 20).ok_or("overflow")?;
    /// let segments = vmm.export_address_range(start, 4 << 20)?;
    /// let parts: Vec<_> = segments.iter().map(|it| (it.offset, it.length)).collect();
    /// assert_eq!(parts, [(1 << 20, 3 << 20), (0, 1 << 20)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is empty, is not mapped completely in one reservation, extends past
    /// the end of pool memory, or is pool memory of a CPU; [`ErrorKind::NotSupported`] if the runtime cannot export
    /// pool memory, or for memory that was imported over a fabric; [`ErrorKind::OutOfDescriptors`];
    /// [`ErrorKind::OutsideDmaBuf`] if the runtime returns a dma-buf that does not contain the range.
    pub fn export_address_range(
        &self,
        address: Address,
        size: usize,
    ) -> Result<Vec<ExportedSegment>, Error> {
        self.run(Operation::ExportAddressRange, |shared| {
            let range = AddressRange::new(address, size)?;
            match shared.runtime.attachment::<Registry>().containing(range.start) {
                Some(record) => shared.export_pool_memory(range, &record).map(|it| vec![it]),
                None => shared.export_mappings(range),
            }
        })
    }
}

impl Shared {
    fn export_mappings(&self, range: AddressRange) -> Result<Vec<ExportedSegment>, ErrorKind> {
        let parts = self.use_parts(range)?;
        let exported = parts.iter().map(|part| self.export_part(part)).collect();
        for part in parts {
            self.end_use(Operation::ExportAddressRange, part.handle);
        }
        exported
    }

    /// Returns the parts of a mapped range. Counts a use of each part's handle; the use keeps the memory alive. The
    /// caller must end the uses.
    fn use_parts(&self, range: AddressRange) -> Result<Vec<Part>, ErrorKind> {
        let not_reserved = || range.invalid(Problem::NotReserved);
        let parts = self.ledger.reservations.at(range.start, |reservation| {
            reservation.check_usable()?;
            if !reservation.contains_range(range) {
                return Err(not_reserved());
            }
            // The mappings are locked, so no other thread removes them, and their handles stay alive.
            let mappings = reservation.mappings();
            let mut parts: Vec<Part> = Vec::new();
            for mapping in mappings.covering(range)? {
                let start = mapping.start.max(range.start);
                let offset = mapping.offset + (start - mapping.start);
                let length = mapping.range().end().min(range.end()) - start;
                match parts.last_mut() {
                    Some(last)
                        if last.handle == mapping.handle && last.offset + last.length == offset =>
                    {
                        last.length += length;
                    }
                    _ => parts.push(Part { handle: mapping.handle, offset, length }),
                }
            }
            for part in &parts {
                self.ledger.handles.with_live(part.handle, |record| {
                    record.uses += 1;
                    record.exported = true;
                });
            }
            Ok(parts)
        });
        parts.unwrap_or_else(|| Err(not_reserved()))
    }

    fn export_part(&self, part: &Part) -> Result<ExportedSegment, ErrorKind> {
        // SAFETY: `use_parts` has counted a use of the handle, which keeps the memory alive.
        let descriptor = unsafe { self.export_live(part.handle) }?;
        segment(descriptor, part.offset as u64, part.length)
    }

    fn export_pool_memory(
        &self,
        range: AddressRange,
        record: &Record,
    ) -> Result<ExportedSegment, ErrorKind> {
        let end = record.start + record.size;
        if range.end() > end {
            let problem = Problem::OutOfBounds { size: range.size, end };
            return Err(ErrorKind::invalid(Argument::Address, range.address(), problem));
        }
        if !record.on_gpu {
            return Err(range.invalid(Problem::HostMemory));
        }
        let exported =
            record.while_allocated(|| self.native().export_dmabuf(range.start, range.size));
        let freed = || range.invalid(Problem::NotAllocated);
        let exported = exported.ok_or_else(freed)?;
        let (descriptor, offset) =
            exported.map_err(|failure| ErrorKind::of_call(failure, range.size))?;
        // AMD's runtime sets close-on-exec; other runtimes may not.
        fcntl_setfd(&descriptor, FdFlags::CLOEXEC)
            .map_err(|errno| ErrorKind::of_system("fcntl", errno))?;
        segment(descriptor, offset, range.size)
    }
}

/// Returns a segment of `length` bytes at `offset` of a dma-buf. Fails if the dma-buf does not contain these bytes.
fn segment(descriptor: OwnedFd, offset: u64, length: usize) -> Result<ExportedSegment, ErrorKind> {
    let size = size_of_buffer(descriptor.as_fd())?;
    let inside = |&offset: &usize| offset.checked_add(length).is_some_and(|end| end <= size);
    let outside = || ErrorKind::OutsideDmaBuf { offset, length, size };
    let offset = usize::try_from(offset).ok().filter(inside).ok_or_else(outside)?;
    Ok(ExportedSegment { descriptor, offset, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn segment_rejects_ranges_outside_the_dma_buf() {
        let export = |offset, length| {
            let file = memfd_create("buffer", MemfdFlags::empty()).unwrap();
            ftruncate(&file, 8192).unwrap();
            segment(file, offset, length).map(|it| (it.offset, it.length))
        };
        assert_eq!(export(0, 8192), Ok((0, 8192)));
        assert_eq!(export(8191, 1), Ok((8191, 1)));
        for (offset, length) in [(1, 8192), (8192, 1), (u64::MAX, 1), (u64::MAX - 4095, 4096)] {
            let outside = ErrorKind::OutsideDmaBuf { offset, length, size: 8192 };
            assert_eq!(export(offset, length), Err(outside));
        }
    }
}
