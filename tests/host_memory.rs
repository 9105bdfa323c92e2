//! Physical memory of the host, on each release. The library allocates the memory from a CPU's pool, or from the
//! driver.

mod machine;
mod process;
mod segments;

use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode};
use hsa_vmm::error::{Argument, Feature, Problem};
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_EXCEPTION, HSA_STATUS_ERROR_INVALID_ALLOCATION,
    HSA_STATUS_ERROR_INVALID_SYMBOL_NAME, HSA_STATUS_ERROR_OUT_OF_RESOURCES,
};
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::vmm::{AllocationKind, Granularity, Location, VmmOptions};
use hsa_vmm::{
    Access, Address, AgentId, AllocationProperties, Error, ErrorKind, Handle, HandleType,
};
use machine::{Machine, access, at, with_two_cpus, without_cpu_mapping};
use process::End;
use process::handover::{receive, send};
use segments::{Reader, pattern};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn host_properties() -> AllocationProperties {
    AllocationProperties::at(Location::Host).shareable_as(DESCRIPTOR)
}

/// Maps a handle for the CPU and all GPUs.
fn map_for_all(machine: &Machine, handle: Handle, size: usize) -> Address {
    let base = machine.reserve(size);
    machine.map(base, size, handle);
    let agents = machine.gpus().into_iter().chain([machine.cpu(0)]);
    let all: Vec<_> = agents.map(|id| access(id, Access::ReadWrite)).collect();
    machine.vmm.set_access(base, size, &all).unwrap();
    base
}

fn run_on_releases(test: impl Fn(&str, Machine)) {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        test(release, Machine::new(config));
    }
}

#[test]
fn all_agents_see_the_same_bytes() {
    run_on_releases(|release, machine| {
        let (vmm, size) = (&machine.vmm, 2 * machine.granule());
        let handle =
            vmm.create(size, &host_properties()).unwrap_or_else(|e| panic!("{release}: {e}"));
        let base = map_for_all(&machine, handle, size);
        let mut bytes = vec![1; size];
        vmm.read(base, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{release}: new memory is zero");
        let written = pattern(1, size);
        vmm.write(base, &written).unwrap();
        for gpu in machine.gpus() {
            vmm.copy_to_host(gpu, &mut bytes, base).unwrap();
            assert!(bytes == written, "{release}: {gpu}");
            vmm.copy_from_host(gpu, at(base, 64), b"from a GPU").unwrap();
            vmm.read(at(base, 64), &mut bytes[..10]).unwrap();
            assert_eq!(&bytes[..10], b"from a GPU", "{release}: {gpu}");
            vmm.write(base, &written).unwrap();
        }
        vmm.fill(at(base, 4), 0x0102_0304, size - 4).unwrap();
        vmm.copy_to_host(machine.gpu(0), &mut bytes, base).unwrap();
        assert_eq!(bytes[..4], written[..4], "{release}");
        assert!(bytes[4..].chunks(4).all(|word| word == [4, 3, 2, 1]), "{release}");
        // The contents outlive the mapping.
        vmm.unmap(base, size).unwrap();
        let second_base = map_for_all(&machine, handle, size);
        vmm.read(second_base, &mut bytes[..8]).unwrap();
        assert_eq!(bytes[4..8], [4, 3, 2, 1], "{release}");
        vmm.unmap(second_base, size).unwrap();
        vmm.release(handle).unwrap();
        for address in [base, second_base] {
            vmm.address_free(address, size).unwrap();
        }
        machine.assert_empty();
    });
}

#[test]
fn properties_and_location_name_the_host() {
    run_on_releases(|release, machine| {
        let (vmm, size) = (&machine.vmm, machine.granule());
        for granularity in [Granularity::Minimum, Granularity::Recommended] {
            assert_eq!(
                vmm.allocation_granularity(&host_properties(), granularity),
                Ok(size),
                "{release}"
            );
        }
        let node = machine.runtime.host().numa_node.unwrap();
        for location in [Location::Host, Location::HostNuma(node)] {
            let properties = AllocationProperties::at(location).shareable_as(DESCRIPTOR);
            let handle = vmm.create(size, &properties).unwrap();
            assert_eq!(vmm.allocation_properties(handle), Ok(properties), "{release}");
            assert_eq!(vmm.allocation_size(handle), Ok(size), "{release}");
            let base = map_for_all(&machine, handle, size);
            assert_eq!(vmm.location_at(base), Some(location), "{release}");
            let (reservations, memory) = vmm.snapshot();
            let host = Some(machine.cpu(0));
            assert_eq!((memory[0].agent, memory[0].imported), (host, false), "{release}");
            assert_eq!(reservations[0].mappings[0].agent, host, "{release}");
            let descriptors = [access(machine.gpu(0), Access::ReadWrite)];
            assert_eq!(vmm.check_access(&properties, &descriptors), Ok(()), "{release}");
            vmm.release(handle).unwrap();
            vmm.unmap(base, size).unwrap();
            vmm.address_free(base, size).unwrap();
            machine.assert_empty();
        }
    });
}

#[test]
fn access_is_granted_and_revoked() {
    run_on_releases(|release, machine| {
        let (vmm, size) = (&machine.vmm, machine.granule());
        let [first, second] = [machine.gpu(0), machine.gpu(1)];
        let handle = vmm.create(size, &host_properties()).unwrap();
        let base = machine.reserve(size);
        machine.map(base, size, handle);
        machine.grant(base, size, second, Access::ReadWrite);
        machine.grant(base, size, machine.cpu(0), Access::Read);
        machine.grant(base, size, first, Access::ReadWrite);
        let has_page = |gpu| machine.simulation.page(gpu, base.get()).is_some();
        assert!(has_page(0) && has_page(1), "{release}");
        vmm.write(base, b"text").unwrap_err();
        machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
        vmm.write(base, b"text").unwrap();
        vmm.revoke(base, size, &[second]).unwrap();
        assert!(has_page(0) && !has_page(1), "{release}");
        assert_eq!(vmm.get_access(second, base), Ok(Access::None), "{release}");
        let mut text = [0; 4];
        vmm.copy_to_host(first, &mut text, base).unwrap();
        assert_eq!(&text, b"text", "{release}");
        machine.grant(base, size, second, Access::ReadWrite);
        vmm.copy_to_host(second, &mut text, base).unwrap();
        assert_eq!(&text, b"text", "{release}");
        assert_eq!(vmm.quarantined_ranges(), [], "{release}");
    });
}

#[test]
fn controlled_page_tables_enforce_access() {
    for (generation, config) in machine::generations() {
        let machine = Machine::with_options(config, VmmOptions::new().with_page_tables(true));
        let granule = machine.granule();
        let handle = machine.vmm.create(2 * granule, &host_properties()).unwrap();
        let base = machine.reserve(granule);
        machine.vmm.map(base, granule, granule, handle).unwrap();
        machine.grant(base, granule, machine.gpu(0), Access::Read);
        let page = machine.simulation.page(0, base.get()).unwrap();
        assert!(page.readable && !page.writable, "{generation}: {page:?}");
        assert_eq!(page.offset, granule as u64, "{generation}");
    }
}

#[test]
fn cpu_access_needs_no_large_bar() {
    for generation in Generation::ALL {
        let machine = Machine::new(Config::consumer().with_generation(generation));
        let size = machine.granule();
        let handle = machine.vmm.create(size, &host_properties()).unwrap();
        let base = map_for_all(&machine, handle, size);
        machine.vmm.write(base, b"text").unwrap();
        let mut text = [0; 4];
        machine.vmm.copy_to_host(machine.gpu(0), &mut text, base).unwrap();
        assert_eq!(&text, b"text", "{generation}");
    }
}

#[test]
fn another_process_shares_the_memory() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config.clone());
        let size = 2 * machine.granule();
        let handle = machine.vmm.create(size, &host_properties()).unwrap();
        let base = map_for_all(&machine, handle, size);
        machine.vmm.write(base, &pattern(1, size)).unwrap();
        let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
        send(&parent_socket, &machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap());
        let end = process::in_child(|| {
            let machine = Machine::new(config);
            let imported = machine
                .vmm
                .import_from_shareable_handle(receive(&child_socket), DESCRIPTOR)
                .unwrap();
            assert_eq!(machine.vmm.allocation_size(imported), Ok(size));
            let base = map_for_all(&machine, imported, size);
            let mut bytes = vec![0; size];
            machine.vmm.copy_to_host(machine.gpu(1), &mut bytes, base).unwrap();
            assert!(bytes == pattern(1, size));
            machine.vmm.write(base, &pattern(2, size)).unwrap();
            child_socket.write_all(b"!").unwrap();
        });
        assert_eq!(end, End::Success, "{release}");
        parent_socket.read_exact(&mut [0]).unwrap();
        let mut bytes = vec![0; size];
        machine.vmm.copy_to_host(machine.gpu(0), &mut bytes, base).unwrap();
        assert!(bytes == pattern(2, size), "{release}");
    }
}

#[test]
fn ranges_of_host_memory_are_exported() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let mut reader = Reader::start();
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        for (offset, handle) in [
            (0, machine.vmm.create(granule, &host_properties()).unwrap()),
            (granule, machine.create(0, granule)),
        ] {
            machine.map(at(base, offset), granule, handle);
        }
        machine.grant(base, 2 * granule, machine.cpu(0), Access::ReadWrite);
        let bytes = pattern(6, 2 * granule);
        machine.vmm.write(base, &bytes).unwrap();
        let segments = machine.vmm.export_address_range(at(base, 7), 2 * granule - 7).unwrap();
        assert_eq!(segments.len(), 2, "{release}");
        assert!(reader.read_all(&segments) == bytes[7..], "{release}");
        reader.finish();
    }
}

fn kind(result: Result<Handle, Error>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

#[test]
fn invalid_properties_are_rejected() {
    run_on_releases(|release, machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let error = vmm.create(0, &host_properties()).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::Zero), "{release}");
        let error = vmm.create(granule + 1, &host_properties()).unwrap_err();
        assert_eq!(error.argument(), Some(Argument::Size), "{release}");
        let on_unknown_node = AllocationProperties::at(Location::HostNuma(77));
        let error = vmm.create(granule, &on_unknown_node).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotANumaNode), "{release}");
        let error = vmm.allocation_granularity(&on_unknown_node, Granularity::Minimum).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotANumaNode), "{release}");
        for (properties, feature) in [
            (
                host_properties().of_kind(AllocationKind::Uncached),
                Feature::HostProperty("the kind Uncached"),
            ),
            (host_properties().with_gpu_direct_rdma(), Feature::HostProperty("GPUDirect RDMA")),
            (
                host_properties().shareable_as(HandleType::FABRIC),
                Feature::HostProperty("a type of shareable handle other than descriptors"),
            ),
            (AllocationProperties::on(machine.cpu(0)), Feature::CpuMemory(machine.cpu(0))),
        ] {
            let found = kind(vmm.create(granule, &properties));
            assert_eq!(found, ErrorKind::NotSupported(feature), "{release}");
        }
        let not_shareable = AllocationProperties::at(Location::Host);
        let handle = vmm.create(granule, &not_shareable).unwrap();
        let error = vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotRequested), "{release}");
        vmm.release(handle).unwrap();
        machine.assert_empty();
    });
}

#[test]
fn error_names_the_missing_driver_call() {
    for generation in Generation::ALL {
        let mut config = Config::mi300x(1).with_generation(generation);
        config.host_buffers = false;
        let machine = Machine::new(config);
        let created = machine.vmm.create(machine.granule(), &host_properties());
        match generation {
            Generation::D | Generation::E => drop(created.unwrap()),
            _ => {
                let error = created.unwrap_err();
                let names_the_call = matches!(
                    error.kind(),
                    ErrorKind::NotSupported(Feature::HostMemory(what)) if what.contains("GEM_CREATE")
                );
                assert!(names_the_call, "{generation}: {error}");
            }
        }
    }
}

#[test]
fn only_some_runtimes_allocate_on_a_numa_node() {
    for generation in Generation::ALL {
        let machine = Machine::new(with_two_cpus(Config::mi300x(1).with_generation(generation)));
        let nodes: Vec<u32> =
            machine.runtime.agents()[..2].iter().map(|cpu| cpu.numa_node.unwrap()).collect();
        let owner_of = |handle| -> Option<AgentId> {
            let (_, memory) = machine.vmm.snapshot();
            memory.iter().find(|entry| entry.handle == handle).and_then(|entry| entry.agent)
        };
        for (number, node) in nodes.into_iter().enumerate() {
            let properties = AllocationProperties::at(Location::HostNuma(node));
            let created = machine.vmm.create(machine.granule(), &properties);
            match generation {
                Generation::D | Generation::E => {
                    assert_eq!(owner_of(created.unwrap()), Some(machine.cpu(number)));
                }
                _ => {
                    let found = kind(created);
                    let expected = ErrorKind::NotSupported(Feature::HostMemory(
                        "a runtime that allocates on a NUMA node (ROCm 10)",
                    ));
                    assert_eq!(found, expected, "{generation}");
                }
            }
        }
        // Without a node in the properties, the kernel may choose the node.
        machine.vmm.create(machine.granule(), &host_properties()).unwrap();
    }
}

#[test]
fn rejected_pools_are_tried_once() {
    run_on_releases(|release, machine| {
        let granule = machine.granule();
        let count_creations = || machine.simulation.calls("hsa_amd_vmem_handle_create");
        let before = count_creations();
        let handles = [(); 3].map(|()| machine.vmm.create(granule, &host_properties()).unwrap());
        let uses_pool =
            [Generation::D, Generation::E].contains(&machine.simulation.config().generation);
        assert_eq!(count_creations() - before, if uses_pool { 3 } else { 1 }, "{release}");
        for handle in handles {
            machine.vmm.release(handle).unwrap();
        }
        machine.assert_empty();
    });
}

#[test]
fn failed_creation_leaves_nothing_behind() {
    const STATUSES: [u32; 5] = [
        HSA_STATUS_ERROR,
        HSA_STATUS_ERROR_INVALID_ALLOCATION,
        HSA_STATUS_ERROR_OUT_OF_RESOURCES,
        HSA_STATUS_ERROR_INVALID_SYMBOL_NAME,
        HSA_STATUS_ERROR_EXCEPTION,
    ];
    run_on_releases(|release, machine| {
        let granule = machine.granule();
        // Later creations skip the rejected pool.
        let first = machine.vmm.create(granule, &host_properties()).unwrap();
        machine.vmm.release(first).unwrap();
        let state = || (machine.vmm.snapshot(), machine.simulation.usage(), process::descriptors());
        let before = state();
        let uses_pool =
            [Generation::D, Generation::E].contains(&machine.simulation.config().generation);
        let function = match uses_pool {
            true => "hsa_amd_vmem_handle_create",
            false => "hsa_amd_vmem_import_shareable_handle",
        };
        for status in STATUSES {
            machine.simulation.set_faults(FaultPlan::none().fail(function, 1, status));
            machine.vmm.create(granule, &host_properties()).unwrap_err();
            assert_eq!(before, state(), "{release}: {status:#x}");
        }
        machine.simulation.set_faults(FaultPlan::none());
        if !uses_pool {
            for free_descriptors in 0..2 {
                let created = process::with_free_descriptors(free_descriptors, || {
                    machine.vmm.create(granule, &host_properties())
                });
                if let Ok(handle) = created {
                    machine.vmm.release(handle).unwrap();
                } else {
                    assert_eq!(
                        kind(created),
                        ErrorKind::OutOfDescriptors,
                        "{release}: {free_descriptors}"
                    );
                }
                assert_eq!(before, state(), "{release}: {free_descriptors} free descriptors");
            }
        }
    });
}

/// If the size exceeds the pool, the library creates memory of a size that fits to find out whether the runtime rejects
/// the pool.
#[test]
fn failed_release_of_a_tested_pool_is_reported() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::D));
    let faults = FaultPlan::none()
        .fail("hsa_amd_vmem_handle_create", 1, HSA_STATUS_ERROR_INVALID_ALLOCATION)
        .fail("hsa_amd_vmem_handle_release", 1, HSA_STATUS_ERROR);
    machine.simulation.set_faults(faults);
    machine.vmm.create(machine.granule(), &host_properties()).unwrap_err();
    let [entry] = &machine.vmm.quarantined_ranges()[..] else { panic!("not reported") };
    assert_eq!((entry.address, entry.size), (Address::NULL, machine.granule()));
}

#[test]
fn cpu_access_works_if_dma_bufs_are_read_only() {
    for (generation, config) in machine::generations() {
        let machine = Machine::new(without_cpu_mapping(config));
        let size = machine.granule();
        let handle = machine.vmm.create(size, &host_properties()).unwrap();
        let base = map_for_all(&machine, handle, size);
        machine.vmm.write(base, b"text").unwrap();
        let mut text = [0; 4];
        machine.vmm.copy_to_host(machine.gpu(1), &mut text, base).unwrap();
        assert_eq!(&text, b"text", "{generation}");
    }
}

/// The error does not depend on earlier calls, although only the first call tries a CPU's pool on runtimes that reject
/// such pools.
#[test]
fn too_large_memory_is_out_of_memory() {
    run_on_releases(|release, machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let sizes = [1 << 40, 1 << 47, 1 << 62, 1 << 63, usize::MAX - (granule - 1)];
        let create_too_large = || {
            sizes.map(|size| {
                let found = kind(vmm.create(size, &host_properties()));
                assert!(
                    matches!(found, ErrorKind::OutOfMemory { size: asked, .. } if asked == size),
                    "{release}: {size:#x}: {found:?}"
                );
                found
            })
        };
        let first = create_too_large();
        let handle = vmm.create(granule, &host_properties()).unwrap();
        assert_eq!(create_too_large(), first, "{release}");
        vmm.release(handle).unwrap();
        assert_eq!(create_too_large(), first, "{release}");
        machine.assert_empty();
    });
}

#[test]
fn buffers_use_host_memory() {
    run_on_releases(|release, machine| {
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let (properties, agents) = (host_properties(), [machine.cpu(0), machine.gpu(0)]);
        let mut bytes = [0; 4];
        let mut pausable = PausableBuffer::create(vmm, 5000, &properties).unwrap();
        pausable.grant(&agents, Access::ReadWrite).unwrap();
        pausable.write(4996, b"kept").unwrap();
        pausable.pause(PauseMode::Save).unwrap_or_else(|error| panic!("{release}: {error}"));
        pausable.resume().unwrap_or_else(|error| panic!("{release}: {error}"));
        pausable.read(4996, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{release}");

        let paged = PagedBuffer::builder(4 * granule).with_page_size(granule).with_zero_page();
        let paged =
            paged.reserve(vmm, &properties).unwrap_or_else(|error| panic!("{release}: {error}"));
        paged.grant(&agents, Access::ReadWrite).unwrap();
        paged.map(1..2).unwrap();
        paged.write(granule, b"page").unwrap();
        paged.share_pages(1..2, &paged, 3).unwrap();
        paged.read(3 * granule, &mut bytes).unwrap();
        assert_eq!(&bytes, b"page", "{release}");
        paged.read(0, &mut bytes).unwrap();
        assert!(bytes == [0; 4] && paged.zero_page_is_clean().unwrap(), "{release}");
        drop((pausable, paged));
        machine.assert_empty();
    });
}
