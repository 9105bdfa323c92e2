//! The library exports address ranges as dma-bufs, and another process reads the dma-bufs.

use crate::machine::{Library, access, at};
use crate::process::descriptors;
use crate::segments::{Reader, pattern};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_vmm::error::{Feature, Problem};
use hsa_vmm::vmm::{ExportedSegment, VmmOptions};
use hsa_vmm::{Access, Address, AllocationProperties, ErrorKind, PoolMemory, Runtime};

/// The size of the smallest handle, a multiple of the granule.
const SIZE: usize = 64 << 10;

fn offsets_and_lengths(segments: &[ExportedSegment]) -> Vec<(usize, usize)> {
    segments.iter().map(|segment| (segment.offset, segment.length)).collect()
}

/// Maps new memory of these sizes at adjacent addresses, and fills it with a pattern.
fn map_with_pattern(library: &Library, sizes: &[usize]) -> (Address, Vec<u8>) {
    let size = sizes.iter().sum();
    let base = library.reserve(size);
    let mut offset = 0;
    for (number, &size) in sizes.iter().enumerate() {
        let handle = library.create(number % 2, size);
        library.map(at(base, offset), size, handle);
        library.vmm.release(handle).unwrap();
        offset += size;
    }
    let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let all = agents.map(|id| access(id, Access::ReadWrite));
    library.vmm.set_access(base, size, &all).unwrap();
    let bytes = pattern(sizes.len(), size);
    library.vmm.write(base, &bytes).unwrap();
    (base, bytes)
}

#[test]
fn another_process_reads_every_byte() {
    run_on_releases(
        "ranges::another_process_reads_every_byte",
        &Emulation::with_gpus(2),
        |fixture| {
            let mut reader = Reader::start();
            let library = Library::load(fixture.runtime());
            let (base, bytes) = map_with_pattern(&library, &[SIZE, 3 * SIZE, 2 * SIZE]);
            let before = descriptors();
            let ranges = [
                (0, 6 * SIZE),
                (SIZE / 2, SIZE),
                (SIZE - 1, 3 * SIZE + 2),
                (3, 1),
                (2 * SIZE + 5, SIZE + 7),
                (6 * SIZE - 1, 1),
            ];
            for (start, size) in ranges {
                let segments = library.vmm.export_address_range(at(base, start), size).unwrap();
                assert!(
                    reader.read_all(&segments) == bytes[start..start + size],
                    "{start}, {size}"
                );
            }
            assert_eq!(descriptors(), before);
            // The segments show a GPU's writes, and stay valid after the memory is unmapped and freed.
            let segments = library.vmm.export_address_range(base, 6 * SIZE).unwrap();
            library.vmm.fill(base, 0x5a5a_5a5a, 6 * SIZE).unwrap();
            library.vmm.unmap(base, 6 * SIZE).unwrap();
            library.vmm.address_free(base, 6 * SIZE).unwrap();
            library.assert_everything_freed();
            assert!(reader.read_all(&segments).iter().all(|byte| *byte == 0x5a));
            reader.finish();
        },
    );
}

#[test]
fn pool_memory_has_its_offset_in_the_dma_buf() {
    let name = "ranges::pool_memory_has_its_offset_in_the_dma_buf";
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        let mut reader = Reader::start();
        let library = Library::load(fixture.runtime());
        for size in [4096, 100_000, 3 << 20] {
            let memory = [0, 1, 2].map(|seed| {
                let memory = PoolMemory::allocate(&library.runtime, library.gpu(1), size).unwrap();
                memory.write(0, &pattern(seed, size)).unwrap();
                memory
            });
            let before = descriptors();
            for (seed, memory) in memory.iter().enumerate() {
                let bytes = pattern(seed, size);
                for (start, length) in [(0, size), (1, 1), (4095, 1), (size / 2, size / 2)] {
                    let address = at(memory.address(), start);
                    let segments = library.vmm.export_address_range(address, length).unwrap();
                    assert_eq!(segments.len(), 1);
                    let read = reader.read_all(&segments);
                    assert!(read == bytes[start..start + length], "{size}: {start} + {length}");
                }
            }
            let end = at(memory[0].address(), size - 1);
            let error = library.vmm.export_address_range(end, 2).unwrap_err();
            assert!(matches!(error.problem(), Some(Problem::OutOfBounds { .. })), "{error}");
            let host = library.runtime.host().id();
            let host_memory = PoolMemory::allocate(&library.runtime, host, 4096).unwrap();
            let error = library.vmm.export_address_range(host_memory.address(), 4096).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::HostMemory));
            assert_eq!(descriptors(), before);
        }
        reader.finish();
    });
}

#[test]
fn contiguous_neighbours_are_one_segment() {
    let name = "ranges::contiguous_neighbours_are_one_segment";
    run_on_releases(name, &Emulation::with_gpus(1), |fixture| {
        let mut reader = Reader::start();
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let library = Library::open(runtime, VmmOptions::new().with_page_tables(true));
        assert!(library.vmm.can_map_offsets());
        let (whole, handle) = library.map_new_memory(0, 4 * SIZE);
        library.grant(whole, 4 * SIZE, library.cpu(0), Access::ReadWrite);
        let bytes = pattern(4, 4 * SIZE);
        library.vmm.write(whole, &bytes).unwrap();
        let base = library.reserve(4 * SIZE);
        for (number, offset) in [1, 2, 0, 3].into_iter().enumerate() {
            let address = at(base, number * SIZE);
            library.vmm.map(address, SIZE, offset * SIZE, handle).unwrap();
        }
        let segments = library.vmm.export_address_range(at(base, 9), 4 * SIZE - 9).unwrap();
        let expected = [(SIZE + 9, 2 * SIZE - 9), (0, SIZE), (3 * SIZE, SIZE)];
        assert_eq!(offsets_and_lengths(&segments), expected);
        for (segment, (offset, length)) in segments.iter().zip(expected) {
            assert!(reader.read(segment) == bytes[offset..offset + length], "{offset:#x}");
        }
        reader.finish();
    });
}

/// ROCm 7 can export a dma-buf with a mapping type. Earlier releases cannot.
#[test]
fn gpu_direct_rdma_needs_mapping_types() {
    let name = "ranges::gpu_direct_rdma_needs_mapping_types";
    run_on_releases(name, &Emulation::with_gpus(1), |fixture| {
        let mut reader = Reader::start();
        let library = Library::load(fixture.runtime());
        let properties = AllocationProperties::on(library.gpu(0)).with_gpu_direct_rdma();
        let created = library.vmm.create(SIZE, &properties);
        if library.runtime.info().extension < (1, 9) {
            let error = created.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::GpuDirectRdma), "{error}");
            return;
        }
        let handle = created.unwrap();
        let base = library.reserve(SIZE);
        library.map(base, SIZE, handle);
        library.grant(base, SIZE, library.cpu(0), Access::ReadWrite);
        library.vmm.write(base, &pattern(5, SIZE)).unwrap();
        let segments = library.vmm.export_address_range(base, SIZE).unwrap();
        assert!(reader.read_all(&segments) == pattern(5, SIZE));
        reader.finish();
    });
}
