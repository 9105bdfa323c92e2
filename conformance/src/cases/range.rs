//! `hipMemGetHandleForAddressRange`: ranges of addresses as dma-bufs.

use super::sharing::{import, map_for_default_agents};
use crate::Context;
use crate::case::{Case, TestResult, ensure_bytes, ensure_eq};
use crate::context::offset_by;
use hsa_vmm::error::Argument;
use hsa_vmm::vmm::ExportedSegment;
use hsa_vmm::{Access, Address, PoolMemory};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "share.range.segments",
        "HIP: hipMemGetHandleForAddressRange; rocm-systems#3557",
        "a range of several mappings is exported; each segment contains the bytes that were written at its part of the range",
        exports_bytes_of_range,
    ),
    Case::new(
        "share.range.one_handle",
        "CUDA: cuMemGetHandleForAddressRange",
        "adjacent mappings are one segment only if they map consecutive parts of one handle, for which mappings need an offset",
        joins_consecutive_parts,
    ),
    Case::new(
        "share.range.outlives_mapping",
        "HIP: hipMemExportToShareableHandle keeps the memory",
        "a segment keeps its bytes after the memory was unmapped and released",
        segment_outlives_mapping,
    ),
    Case::new(
        "share.range.pool_memory",
        "HIP: hipMemGetHandleForAddressRange; hipMalloc",
        "a part of pool memory is one segment, at the offset that the runtime returns",
        exports_bytes_of_pool_memory,
    ),
    Case::new(
        "share.range.pool_memory_end",
        "HSA: hsa_amd_portable_export_dmabuf",
        "a range that extends past the end of pool memory is rejected",
        rejects_range_past_pool_memory,
    ),
    Case::new(
        "share.range.hole",
        "CUDA: cuMemGetHandleForAddressRange",
        "a range that is not mapped completely is rejected",
        rejects_hole,
    ),
    Case::new(
        "share.range.not_reserved",
        "CUDA: cuMemGetHandleForAddressRange",
        "addresses that are neither mapped nor pool memory are rejected",
        rejects_other_addresses,
    ),
    Case::new(
        "share.range.zero_size",
        "HIP: hipMemGetHandleForAddressRange",
        "a size of 0 and the null address are rejected",
        rejects_zero_size_and_null,
    ),
];

/// Returns bytes that differ at neighbouring offsets.
fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 7 + index / 256 * 13 + seed) as u8).collect()
}

/// Reads a segment through a new mapping of its dma-buf.
fn read_segment(context: &Context, segment: &ExportedSegment) -> TestResult<Vec<u8>> {
    let imported = import(context, &segment.descriptor)?;
    let size = context.vmm().allocation_size(imported)?;
    let at = map_for_default_agents(context, imported, size / context.granule())?;
    let mut bytes = vec![0; segment.length];
    context.vmm().copy_to_host(context.gpu(), &mut bytes, offset_by(at, segment.offset))?;
    Ok(bytes)
}

/// Writes bytes with the first GPU.
fn write(context: &Context, at: Address, bytes: &[u8]) -> TestResult {
    Ok(context.vmm().copy_from_host(context.gpu(), at, bytes)?)
}

fn exports_bytes_of_range(context: &Context) -> TestResult {
    let (vmm, granule) = (context.vmm(), context.granule());
    let at = context.reserve(3)?;
    let handles = [context.create(1)?, context.create(2)?];
    context.map(at, 1, handles[0])?;
    context.map(context.granule_at(at, 1), 2, handles[1])?;
    context.set_access(at, 3, &[context.gpu()], Access::ReadWrite)?;
    let written = pattern(3 * granule, 1);
    write(context, at, &written)?;
    let (start, size) = (granule / 2 + 3, 2 * granule);
    let segments = vmm.export_address_range(offset_by(at, start), size)?;
    let parts: Vec<_> = segments.iter().map(|it| (it.offset, it.length)).collect();
    let expected = [(start, granule - start), (0, size + start - granule)];
    ensure_eq!(parts, expected, "offset and size of each segment");
    let mut read = Vec::new();
    for segment in &segments {
        read.extend(read_segment(context, segment)?);
    }
    ensure_bytes!(read, written[start..start + size], "the segments");
    Ok(())
}

fn joins_consecutive_parts(context: &Context) -> TestResult {
    let (vmm, granule) = (context.vmm(), context.granule());
    let (at, handle) = (context.reserve(3)?, context.create(2)?);
    // Map the first half of the memory, the second half, and the first half again. If mappings cannot have an offset,
    // map the first half three times.
    let offsets = if vmm.can_map_offsets() { [0, 1, 0] } else { [0; 3] };
    for (number, offset) in offsets.into_iter().enumerate() {
        vmm.map(context.granule_at(at, number), granule, offset * granule, handle)?;
    }
    let expected = match vmm.can_map_offsets() {
        true => vec![(0, 2 * granule), (0, granule)],
        false => vec![(0, granule); 3],
    };
    let segments = vmm.export_address_range(at, 3 * granule)?;
    let parts: Vec<_> = segments.iter().map(|it| (it.offset, it.length)).collect();
    ensure_eq!(parts, expected, "offset and size of each segment");
    Ok(())
}

fn segment_outlives_mapping(context: &Context) -> TestResult {
    let (vmm, granule) = (context.vmm(), context.granule());
    let (at, handle) = context.map_filled(1, 0)?;
    let written = pattern(granule, 2);
    write(context, at, &written)?;
    let segments = vmm.export_address_range(at, granule)?;
    vmm.unmap(at, granule)?;
    vmm.release(handle)?;
    ensure_eq!(segments.len(), 1, "the number of segments");
    ensure_bytes!(read_segment(context, &segments[0])?, written, "the segment");
    Ok(())
}

fn exports_bytes_of_pool_memory(context: &Context) -> TestResult {
    let size = 100_000;
    let memory = PoolMemory::allocate(context.runtime(), context.gpu(), size)?;
    let written = pattern(size, 3);
    memory.write(0, &written)?;
    for (start, length) in [(0, size), (4097, 4096), (size - 1, 1)] {
        let at = offset_by(memory.address(), start);
        let segments = context.vmm().export_address_range(at, length)?;
        ensure_eq!(segments.len(), 1, "the number of segments");
        let read = read_segment(context, &segments[0])?;
        ensure_bytes!(read, written[start..start + length], "the segment");
    }
    Ok(())
}

fn rejects_range_past_pool_memory(context: &Context) -> TestResult {
    let memory = PoolMemory::allocate(context.runtime(), context.gpu(), 8192)?;
    for (start, length) in [(0, 8193), (8191, 2), (4096, usize::MAX - (1 << 48))] {
        let at = offset_by(memory.address(), start);
        let export = || context.vmm().export_address_range(at, length);
        context.expect_invalid_argument(Argument::Address, export)?;
    }
    Ok(())
}

fn rejects_hole(context: &Context) -> TestResult {
    let granule = context.granule();
    let (at, handle) = (context.reserve(3)?, context.create(1)?);
    context.map(at, 1, handle)?;
    context.map(context.granule_at(at, 2), 1, handle)?;
    for (start, size) in
        [(0, 3 * granule), (granule - 1, 2), (granule, granule), (2 * granule, granule + 1)]
    {
        let export = || context.vmm().export_address_range(offset_by(at, start), size);
        context.expect_invalid_argument(Argument::Address, export)?;
    }
    Ok(())
}

fn rejects_other_addresses(context: &Context) -> TestResult {
    let heap = vec![0_u8; 8192];
    let export = || context.vmm().export_address_range(Address::new(heap.as_ptr().addr()), 4096);
    context.expect_invalid_argument(Argument::Address, export)
}

fn rejects_zero_size_and_null(context: &Context) -> TestResult {
    let (at, _) = context.map_filled(1, 0)?;
    let vmm = context.vmm();
    context.expect_invalid_argument(Argument::Size, || vmm.export_address_range(at, 0))?;
    context.expect_invalid_argument(Argument::Address, || {
        vmm.export_address_range(Address::NULL, 4096)
    })
}
