//! The library exports address ranges as dma-bufs.

mod log;
mod machine;
mod process;
mod segments;

use hsa_vmm::error::{Argument, Feature, Problem};
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_INVALID_ARGUMENT, HSA_STATUS_ERROR_INVALID_SYMBOL_NAME,
    HSA_STATUS_ERROR_OUT_OF_RESOURCES,
};
use hsa_vmm::pool::PoolFlags;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::vmm::{ExportedSegment, VmmOptions};
use hsa_vmm::{Access, Address, AllocationProperties, Error, ErrorKind, HandleType, PoolMemory};
use machine::{Machine, access, at, without_cpu_mapping};
use segments::{Reader, pattern};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn offsets_and_lengths(segments: &[ExportedSegment]) -> Vec<(usize, usize)> {
    segments.iter().map(|segment| (segment.offset, segment.length)).collect()
}

/// Maps new memory at adjacent addresses, and fills it with a pattern. `sizes` are in granules.
fn map_with_pattern(machine: &Machine, sizes: &[usize]) -> (Address, Vec<u8>) {
    let granule = machine.granule();
    let size = sizes.iter().sum::<usize>() * granule;
    let base = machine.reserve(size);
    let mut offset = 0;
    for (number, granules) in sizes.iter().enumerate() {
        let handle = machine.create(number % 2, granules * granule);
        machine.map(at(base, offset), granules * granule, handle);
        machine.vmm.release(handle).unwrap();
        offset += granules * granule;
    }
    machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
    let bytes = pattern(sizes.len(), size);
    machine.vmm.write(base, &bytes).unwrap();
    (base, bytes)
}

#[test]
fn another_process_reads_every_byte() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let mut reader = Reader::start();
        let machine = Machine::new(config);
        let granule = machine.granule();
        let (base, bytes) = map_with_pattern(&machine, &[1, 3, 2]);
        let ranges = [
            (0, 6 * granule),
            (0, granule),
            (granule, 3 * granule),
            (granule / 2, granule),
            (3, 1),
            (granule - 1, 3 * granule + 2),
            (2 * granule + 5, granule + 7),
            (6 * granule - 1, 1),
        ];
        for (start, size) in ranges {
            let segments = machine.vmm.export_address_range(at(base, start), size).unwrap();
            let read = reader.read_all(&segments);
            assert!(read == bytes[start..start + size], "{release}: {start:#x} + {size:#x}");
        }
        // The segments show a write made after the export, and stay valid after the memory is unmapped.
        let segments = machine.vmm.export_address_range(base, 6 * granule).unwrap();
        let bytes = pattern(99, 6 * granule);
        machine.vmm.write(base, &bytes).unwrap();
        machine.vmm.unmap(base, 6 * granule).unwrap();
        machine.vmm.address_free(base, 6 * granule).unwrap();
        assert!(reader.read_all(&segments) == bytes, "{release}");
        drop(segments);
        machine.assert_empty();
        reader.finish();
    }
}

#[test]
fn segments_begin_and_end_inside_mappings() {
    let machine = Machine::new(Config::mi300x(2));
    let granule = machine.granule();
    let (base, _) = map_with_pattern(&machine, &[2, 1, 4]);
    let export = |start: usize, size: usize| {
        offsets_and_lengths(&machine.vmm.export_address_range(at(base, start), size).unwrap())
    };
    let whole = [(0, 2 * granule), (0, granule), (0, 4 * granule)];
    assert_eq!(export(0, 7 * granule), whole);
    assert_eq!(export(granule, 2), [(granule, 2)]);
    assert_eq!(export(2 * granule - 1, 2), [(2 * granule - 1, 1), (0, 1)]);
    assert_eq!(
        export(granule + 5, 3 * granule),
        [(granule + 5, granule - 5), (0, granule), (0, granule + 5)]
    );
}

#[test]
fn contiguous_neighbours_are_one_segment() {
    let options = VmmOptions::new().with_page_tables(true);
    let machine = Machine::with_options(Config::mi300x(1), options);
    let granule = machine.granule();
    let (first, second) = (machine.create(0, 4 * granule), machine.create(0, 2 * granule));
    let base = machine.reserve(8 * granule);
    // Offset in granules, size in granules, handle.
    let mappings = [
        (0, 1, first),
        (1, 2, first),
        (3, 1, first),
        (0, 1, second),
        (0, 2, second),
        (2, 1, first),
    ];
    let mut mapped_size = 0;
    for (offset, size, handle) in mappings {
        let (address, size) = (at(base, mapped_size), size * granule);
        machine.vmm.map(address, size, offset * granule, handle).unwrap();
        mapped_size += size;
    }
    let segments = machine.vmm.export_address_range(base, 8 * granule).unwrap();
    let expected =
        [(0, 4), (0, 1), (0, 2), (2, 1)].map(|(offset, size)| (offset * granule, size * granule));
    assert_eq!(offsets_and_lengths(&segments), expected);
    let segments = machine.vmm.export_address_range(at(base, granule + 1), granule).unwrap();
    assert_eq!(offsets_and_lengths(&segments), [(granule + 1, granule)]);
}

#[test]
fn pool_memory_is_one_segment() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let mut reader = Reader::start();
        let machine = Machine::new(config);
        let memory = PoolMemory::allocate(&machine.runtime, machine.gpu(1), 100_000).unwrap();
        let bytes = pattern(7, memory.size());
        memory.write(0, &bytes).unwrap();
        for (start, size) in [(0, 100_000), (0, 1), (5000, 4096), (99_999, 1)] {
            let address = at(memory.address(), start);
            let segments = machine.vmm.export_address_range(address, size).unwrap();
            assert_eq!(segments.len(), 1, "{release}");
            let read = reader.read_all(&segments);
            assert!(read == bytes[start..start + size], "{release}: {start} + {size}");
        }
        let segments = machine.vmm.export_address_range(memory.address(), 100_000).unwrap();
        memory.free().unwrap();
        assert!(reader.read_all(&segments) == bytes, "{release}: after the memory was freed");
        reader.finish();
    }
}

#[test]
fn descriptors_are_new_and_closed_on_exec() {
    let machine = Machine::new(Config::mi300x(2));
    let granule = machine.granule();
    let (base, _) = map_with_pattern(&machine, &[1, 1]);
    let memory = PoolMemory::allocate(&machine.runtime, machine.gpu(0), 4096).unwrap();
    let mut segments = machine.vmm.export_address_range(base, 2 * granule).unwrap();
    segments.extend(machine.vmm.export_address_range(base, granule).unwrap());
    segments.extend(machine.vmm.export_address_range(memory.address(), 4096).unwrap());
    let mut numbers: Vec<_> = segments.iter().map(|it| it.descriptor.as_raw_fd()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
    for number in numbers {
        // SAFETY: the descriptor is open, and the call only reads its flags.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert!(flags >= 0 && flags & libc::FD_CLOEXEC != 0, "{number}: {flags}");
    }
}

/// Makes calls that the library rejects. Returns each result with the expected argument and problem.
fn make_rejected_calls(
    machine: &Machine,
) -> Vec<(Result<Vec<ExportedSegment>, Error>, Argument, Problem)> {
    let (vmm, granule) = (&machine.vmm, machine.granule());
    let (base, _) = map_with_pattern(machine, &[1, 1]);
    let with_gap = machine.reserve(3 * granule);
    let handle = machine.create(0, granule);
    machine.map(with_gap, granule, handle);
    machine.map(at(with_gap, 2 * granule), granule, handle);
    let memory = PoolMemory::allocate(&machine.runtime, machine.gpu(0), 8192).unwrap();
    let host = machine.runtime.host().id();
    let host_memory =
        PoolMemory::allocate_with(&machine.runtime, host, 4096, PoolFlags::FINE_GRAINED).unwrap();
    let pool_end = memory.address().get() + 8192;
    let export = |address, size| vmm.export_address_range(address, size);
    let unmapped = Problem::NotMapped(at(with_gap, granule));
    vec![
        (export(Address::NULL, granule), Argument::Address, Problem::Null),
        (export(base, 0), Argument::Size, Problem::Zero),
        (export(base, usize::MAX), Argument::Size, Problem::Overflow),
        (export(Address::new(4096), 4096), Argument::Address, Problem::NotReserved),
        (export(base, 3 * granule), Argument::Address, Problem::NotReserved),
        (export(with_gap, 2 * granule), Argument::Address, unmapped),
        (export(with_gap, 3 * granule), Argument::Address, unmapped),
        (export(at(with_gap, granule), granule), Argument::Address, unmapped),
        (
            export(at(memory.address(), 4096), 4097),
            Argument::Address,
            Problem::OutOfBounds { size: 4097, end: pool_end },
        ),
        (export(host_memory.address(), 4096), Argument::Address, Problem::HostMemory),
    ]
}

#[test]
fn rejected_calls_leave_no_descriptor() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        // In ROCm 7.14, each handle owns a descriptor. Only this call creates handles, so the count is stable
        // afterwards.
        let results = make_rejected_calls(&machine);
        let before = process::descriptors();
        for (result, argument, problem) in results {
            let error = result.expect_err(release);
            assert_eq!(error.argument(), Some(argument), "{release}: {error}");
            assert_eq!(error.problem(), Some(problem), "{release}: {error}");
        }
        let (base, size) = machine.vmm.reservation_at(machine.vmm.mappings()[0].address).unwrap();
        for _ in 0..10 {
            machine.vmm.export_address_range(base, usize::MAX).unwrap_err();
            machine.vmm.export_address_range(base, size + 1).unwrap_err();
        }
        assert_eq!(process::descriptors(), before, "{release}");
    }
}

#[test]
fn each_failing_call_leaves_no_descriptor() {
    const STATUSES: [u32; 4] = [
        HSA_STATUS_ERROR,
        HSA_STATUS_ERROR_INVALID_ARGUMENT,
        HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        HSA_STATUS_ERROR_INVALID_SYMBOL_NAME,
    ];
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let (base, bytes) = map_with_pattern(&machine, &[1, 1, 1]);
        let memory = PoolMemory::allocate(&machine.runtime, machine.gpu(0), 8192).unwrap();
        // From ROCm 7.14 on, the first export of a handle opens a descriptor that the runtime keeps.
        drop(machine.vmm.export_address_range(base, 3 * granule).unwrap());
        let state = || (machine.vmm.snapshot(), machine.simulation.usage(), process::descriptors());
        let before = state();
        for status in STATUSES {
            for call in 1..=3 {
                let function = "hsa_amd_vmem_export_shareable_handle";
                machine.simulation.set_faults(FaultPlan::none().fail(function, call, status));
                let error = machine.vmm.export_address_range(base, 3 * granule).unwrap_err();
                assert!(error.to_string().contains(function), "{release}: {error}");
                assert_eq!(before, state(), "{release}: call {call}, {status:#x}");
            }
            let function = "hsa_amd_portable_export_dmabuf";
            machine.simulation.set_faults(FaultPlan::none().fail(function, 1, status));
            let error = machine.vmm.export_address_range(memory.address(), 8192).unwrap_err();
            assert!(error.to_string().contains(function), "{release}: {error}");
            assert_eq!(before, state(), "{release}: {status:#x}");
        }
        // For a `lost` call, the simulation returns success, but no descriptor.
        for (function, address, size) in [
            ("hsa_amd_vmem_export_shareable_handle", base, granule),
            ("hsa_amd_portable_export_dmabuf", memory.address(), 8192),
        ] {
            machine.simulation.set_faults(format!("{function}=lost").parse().unwrap());
            let error = machine.vmm.export_address_range(address, size).unwrap_err();
            let message = format!("{function} returned success without a result");
            assert!(error.to_string().contains(&message), "{release}: {error}");
            assert_eq!(before, state(), "{release}: {function} lost");
        }
        machine.simulation.set_faults(FaultPlan::none());
        let mut contents = vec![0; 3 * granule];
        machine.vmm.read(base, &mut contents).unwrap();
        assert!(contents == bytes, "{release}");
    }
}

#[test]
fn exports_without_free_descriptors_fail() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let (base, _) = map_with_pattern(&machine, &[1, 1, 1]);
        let memory = PoolMemory::allocate(&machine.runtime, machine.gpu(0), 8192).unwrap();
        memory.write(0, b"text").unwrap();
        drop(machine.vmm.export_address_range(base, 3 * granule).unwrap());
        drop(machine.vmm.export_address_range(memory.address(), 8192).unwrap());
        for (address, size, needed) in [(base, 3 * granule, 3), (memory.address(), 8192, 1)] {
            for free_descriptors in 0..needed {
                let before = process::descriptors();
                let result = process::with_free_descriptors(free_descriptors, || {
                    machine.vmm.export_address_range(address, size)
                });
                let error = result.expect_err(release);
                assert_eq!(*error.kind(), ErrorKind::OutOfDescriptors, "{release}: {error}");
                assert_eq!(process::descriptors(), before, "{release}");
            }
            let result = process::with_free_descriptors(needed, || {
                machine.vmm.export_address_range(address, size)
            });
            assert_eq!(result.unwrap().len(), needed, "{release}");
        }
    }
}

#[test]
fn exports_race_with_unmapping() {
    if process::rerun_in_own_process() {
        return;
    }
    let mut reader = Reader::start();
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let base = machine.reserve(2 * granule);
    let (exported, rejected) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    // Changes the mapping at least 300 times, and until exports have both succeeded and failed.
    let is_complete = |number| {
        let counts = [&exported, &rejected].map(|count| count.load(Ordering::Relaxed));
        let was_tested = number >= 300 && counts.iter().all(|count| *count > 0);
        was_tested || begun.elapsed() > Duration::from_secs(60)
    };
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for number in (0..).take_while(|number| !is_complete(*number)) {
                let handle = machine.create(0, 2 * granule);
                machine.map(base, 2 * granule, handle);
                machine.vmm.release(handle).unwrap();
                machine.grant(base, 2 * granule, machine.cpu(0), Access::ReadWrite);
                machine.vmm.write(base, &[number as u8; 8]).unwrap();
                machine.vmm.unmap(base, 2 * granule).unwrap();
            }
        });
        while !changes.is_finished() {
            match machine.vmm.export_address_range(base, granule + 1) {
                Ok(segments) => {
                    assert_eq!(offsets_and_lengths(&segments), [(0, granule + 1)]);
                    let read = reader.read_all(&segments);
                    assert!(read[..8].iter().all(|byte| *byte == 0 || *byte == read[7]));
                    exported.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error.problem(), Some(Problem::NotMapped(base)), "{error}");
                    rejected.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let (exported, rejected) = (exported.into_inner(), rejected.into_inner());
    assert!(exported > 0 && rejected > 0, "{exported} exported, {rejected} rejected");
    machine.vmm.address_free(base, 2 * granule).unwrap();
    machine.assert_empty();
    reader.finish();
}

#[test]
fn quarantined_ranges_are_not_exported() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let base = machine.reserve(granule);
    let handle = machine.create(0, granule);
    machine.map(base, granule, handle);
    machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
    machine.simulation.set_faults(
        FaultPlan::none()
            .always("hsa_amd_vmem_map", HSA_STATUS_ERROR)
            .always("hsa_amd_vmem_set_access", HSA_STATUS_ERROR),
    );
    machine.vmm.revoke(base, granule, &[machine.gpu(0)]).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    assert_eq!(machine.vmm.quarantined_ranges().len(), 1);
    let error = machine.vmm.export_address_range(base, granule).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quarantined { .. }), "{error}");
}

#[test]
fn imported_memory_can_be_exported_by_address() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let mut reader = Reader::start();
        let machine = Machine::new(config);
        let granule = machine.granule();
        let original = machine.create(0, 2 * granule);
        let shared =
            machine.vmm.export_to_shareable_handle(original, HandleType::POSIX_FILE_DESCRIPTOR);
        let imported = machine
            .vmm
            .import_from_shareable_handle(shared.unwrap(), HandleType::POSIX_FILE_DESCRIPTOR)
            .unwrap();
        let base = machine.reserve(2 * granule);
        machine.map(base, 2 * granule, imported);
        machine.grant(base, 2 * granule, machine.cpu(0), Access::ReadWrite);
        let bytes = pattern(3, 2 * granule);
        machine.vmm.write(base, &bytes).unwrap();
        let segments = machine.vmm.export_address_range(at(base, 17), granule).unwrap();
        assert!(reader.read_all(&segments) == bytes[17..17 + granule], "{release}");
        reader.finish();
    }
}

/// The runtime calls that were logged, each with its flags.
static CALLS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

#[test]
fn gpu_direct_rdma_sets_flags_of_both_calls() {
    if process::rerun_in_own_process() {
        return;
    }
    log::subscribe(
        |metadata| metadata.target().starts_with("hsa_vmm::native"),
        |fields| {
            let value = |name| {
                let found = fields.iter().find(|(field, _)| *field == name);
                found.map(|(_, value)| value.clone())
            };
            if let (Some(call), Some(flags)) = (value("calling"), value("flags")) {
                CALLS.lock().unwrap().push((call, flags));
            }
        },
    );
    for (release, config) in machine::releases() {
        // rocddi rejects the flag for GPUDirect RDMA.
        let supports_rdma = config.extension_minor >= 9 && release != "rocddi";
        let machine = Machine::new(config);
        let granule = machine.granule();
        let properties = AllocationProperties::on(machine.gpu(0)).with_gpu_direct_rdma();
        CALLS.lock().unwrap().clear();
        let created = machine.vmm.create(granule, &properties);
        if !supports_rdma {
            let error = created.expect_err(release);
            assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::GpuDirectRdma), "{release}");
            continue;
        }
        let handle = created.unwrap_or_else(|error| panic!("{release}: {error}"));
        assert!(machine.vmm.allocation_properties(handle).unwrap().gpu_direct_rdma);
        let base = machine.reserve(granule);
        machine.map(base, granule, handle);
        drop(machine.vmm.export_address_range(base, granule).unwrap());
        let calls = CALLS.lock().unwrap();
        let flags_of = |name: &str| {
            let found = calls.iter().rfind(|(call, _)| call == name);
            found.map(|(_, flags)| flags.as_str())
        };
        assert_eq!(flags_of("hsa_amd_vmem_handle_create"), Some("0x1"), "{release}");
        assert_eq!(flags_of("hsa_amd_vmem_export_shareable_handle"), Some("1"), "{release}");
    }
    let mut small_bar = Config::mi300x(1);
    small_bar.gpus[0].large_bar = false;
    let machine = Machine::new(small_bar);
    let properties = AllocationProperties::on(machine.gpu(0)).with_gpu_direct_rdma();
    let error = machine.vmm.create(machine.granule(), &properties).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::GpuDirectRdma), "{error}");
}

/// If a dma-buf cannot be mapped for writing, the runtime, not the library, maps the memory for the CPU. Another
/// process can still read the exported segments.
#[test]
fn read_only_dma_bufs_are_exported() {
    if process::rerun_in_own_process() {
        return;
    }
    let mut reader = Reader::start();
    let config = without_cpu_mapping(Config::mi300x(2).with_generation(Generation::B));
    let machine = Machine::new(config);
    let granule = machine.granule();
    let (base, bytes) = map_with_pattern(&machine, &[1, 2]);
    let both = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
    machine.vmm.set_access(base, 3 * granule, &both).unwrap();
    let segments = machine.vmm.export_address_range(base, 3 * granule).unwrap();
    assert!(reader.read_all(&segments) == bytes);
    reader.finish();
}
