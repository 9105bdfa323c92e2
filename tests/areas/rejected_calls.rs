//! Areas reject invalid calls, and rejected calls change nothing. Copies between all kinds of memory work.

use crate::fixture::{Fixture, on_amd};
use crate::process::{self, End};
use crate::{AML_FAILURE, AML_INVALID_VALUE, AML_OUT_OF_MEMORY, GIB, MIB};
use hsa_vmm::area::{AreaFlags, AreaMemory, Device, MmapOptions};
use hsa_vmm::error::{Argument, Feature, Operation, Problem, Rejected};
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Area, Error, ErrorKind, Runtime, Vmm};

fn all_flags() -> impl Iterator<Item = AreaFlags> {
    (0..16).map(AreaFlags::from_bits_retain)
}

fn maps_host_memory(flags: AreaFlags) -> bool {
    flags & !AreaFlags::GLOBAL == AreaFlags::MAPPED
}

#[test]
fn new_rejects_undefined_flags() {
    let fixture = Fixture::simulated(Config::mi300x(1));
    for bits in [0x10, 0x1f, 0x8000_0000, u32::MAX] {
        let error = fixture.area(0, AreaFlags::from_bits_retain(bits)).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::UndefinedFlags(0xf)), "{error}");
        assert_eq!(error.aml(), AML_INVALID_VALUE);
    }
}

#[test]
fn new_rejects_agents_that_are_not_gpus() {
    let [fixture, foreign_fixture] = [(); 2].map(|()| Fixture::simulated(Config::mi300x(1)));
    let foreign = foreign_fixture.runtime.gpus().next().unwrap().id();
    for agent in [foreign, fixture.runtime.host().id()] {
        let error = fixture.area(agent, AreaFlags::DEFAULT).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotAGpu), "{error}");
        assert_eq!(error.hip(HipProfile::default()), HipError::InvalidDevice);
        let area = fixture.area(Device::Current, AreaFlags::DEFAULT).unwrap();
        let error = area.mmap(1, MmapOptions::new().with_device(agent)).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::NotAGpu), "{error}");
    }
}

/// Even host memory needs a GPU. AML translates `hipErrorNoDevice` to "not supported".
#[test]
fn areas_need_a_gpu() {
    let mut config = Config::mi300x(1);
    config.gpus.clear();
    let runtime = Runtime::simulated(config).unwrap();
    for flags in all_flags() {
        let area = Area::without_vmm(&runtime, Device::Current, flags).unwrap();
        let mut bytes = [0; 8];
        let options = if maps_host_memory(flags) {
            MmapOptions::new().with_host_memory(&mut bytes)
        } else {
            MmapOptions::new()
        };
        let error = area.mmap(8, options).unwrap_err();
        assert_eq!(error.operation(), Operation::Mmap, "{flags}");
        assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::Gpu), "{flags}");
        assert_eq!(error.hip(HipProfile::default()), HipError::NotSupported, "{flags}");
        let error = Area::without_vmm(&runtime, 0, flags).unwrap_err();
        assert_eq!(error.aml(), AML_INVALID_VALUE, "{error}");
    }
}

/// `mmap` rejects zero, and sizes that are too large, for every kind of memory.
fn check_invalid_sizes(fixture: &Fixture) {
    let largest_pool =
        |agent: &hsa_vmm::Agent| agent.pools.iter().map(|pool| pool.size).max().unwrap();
    let largest = fixture.runtime.agents().iter().map(largest_pool).max().unwrap();
    for flags in all_flags().filter(|flags| !maps_host_memory(*flags)) {
        let area = fixture.area(0, flags).unwrap();
        let error = area.mmap(0, MmapOptions::new()).unwrap_err();
        assert_eq!(error.operation(), Operation::Mmap, "{flags}");
        let reported = error.argument().zip(error.problem());
        assert_eq!(reported, Some((Argument::Size, Problem::Zero)), "{flags}");
        for size in [largest + GIB, 1 << 47, usize::MAX - 4095, usize::MAX] {
            let error = area.mmap(size, MmapOptions::new()).unwrap_err();
            assert_eq!(error.aml(), AML_OUT_OF_MEMORY, "{flags}, {size:#x}: {error}");
            assert_eq!(error.hip(HipProfile::default()), HipError::OutOfMemory);
        }
        area.mmap(1, MmapOptions::new()).unwrap().munmap().unwrap();
    }
    // AMD's runtime 6.4.3 would accept these sizes.
    let vmm = Vmm::open(&fixture.runtime).unwrap();
    for size in [1 << 63, usize::MAX - 4095] {
        let error = vmm.address_reserve(size, 0, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
    }
    drop(vmm);
    fixture.assert_idle();
}

#[test]
fn mmap_rejects_invalid_sizes_on_the_simulation() {
    check_invalid_sizes(&Fixture::simulated(Config::mi300x(1)));
}

#[test]
fn mmap_rejects_invalid_sizes_on_amds_runtime() {
    on_amd("rejected_calls::mmap_rejects_invalid_sizes_on_amds_runtime", check_invalid_sizes);
}

/// Allocates all memory and frees it, three times.
#[test]
fn exhausted_memory_is_usable_after_free() {
    let fixture = Fixture::simulated(Config::mi300x(1).with_vram(8 << 20));
    for flags in [AreaFlags::DEFAULT, AreaFlags::UNIFIED] {
        let area = fixture.area(0, flags).unwrap();
        for _ in 0..3 {
            let mut memories: Vec<AreaMemory<'_>> = Vec::new();
            let error = loop {
                match area.mmap(MIB - 1, MmapOptions::new()) {
                    Ok(memory) => memories.push(memory),
                    Err(error) => break error,
                }
            };
            assert_eq!((memories.len(), error.aml()), (8, AML_OUT_OF_MEMORY), "{error}");
        }
    }
    fixture.assert_idle();
}

#[test]
fn copy_rejects_invalid_ranges() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    for flags in all_flags().filter(|flags| !maps_host_memory(*flags)) {
        let area = fixture.area(1, flags).unwrap();
        let memory = area.mmap(1000, MmapOptions::new()).unwrap();
        let smaller = area.mmap(500, MmapOptions::new()).unwrap();
        memory.write(0, &[7; 1000]).unwrap();
        for (offset, source_offset, size, argument) in [
            (1, 0, 1000, Argument::Offset),
            (1001, 0, 0, Argument::Offset),
            (0, 1, 500, Argument::Source),
            (usize::MAX, 0, 2, Argument::Offset),
            (0, usize::MAX, 2, Argument::Source),
        ] {
            let error = memory.copy(offset, &smaller, source_offset, size).unwrap_err();
            assert_eq!(error.argument(), Some(argument), "{flags}: {error}");
        }
        for (offset, source_offset, size) in [(0, 0, 1), (0, 10, 11), (10, 0, 11), (500, 1, 500)] {
            let error = memory.copy(offset, &memory, source_offset, size).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::Overlapping), "{flags}");
        }
        memory.write(0, &[8; 500]).unwrap();
        memory.copy(500, &memory, 0, 500).unwrap();
        memory.copy(3, &memory, 3, 0).unwrap();
        let mut bytes = [0; 1000];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [8; 1000], "{flags}");
        for (offset, size, argument) in
            [(1, 4, Argument::Offset), (0, 5, Argument::Size), (2, 2, Argument::Offset)]
        {
            let error = memory.fill(offset, 0, size).unwrap_err();
            assert_eq!(error.operation(), Operation::Fill, "{flags}");
            let reported = error.argument().zip(error.problem());
            assert_eq!(reported, Some((argument, Problem::NotMultipleOfFour)), "{flags}");
        }
    }
    fixture.assert_idle();
}

/// Copies between every two kinds of memory, on two devices of each of two runtimes.
#[test]
fn copy_works_between_all_kinds_of_memory() {
    let fixtures = [Fixture::simulated(Config::mi300x(2)), Fixture::simulated(Config::mi300x(2))];
    let mut host_memory: Vec<Vec<u8>> = vec![vec![0; 3000]; 128];
    let mut host_memory = host_memory.iter_mut();
    let mut memories = Vec::new();
    for fixture in &fixtures {
        for flags in all_flags() {
            for device in [0usize, 1] {
                let area = fixture.area(device, flags).unwrap();
                let options = if maps_host_memory(flags) {
                    MmapOptions::new().with_host_memory(host_memory.next().unwrap())
                } else {
                    MmapOptions::new()
                };
                memories.push((flags, area.mmap(3000, options).unwrap()));
            }
        }
    }
    for (index, (flags, memory)) in memories.iter().enumerate() {
        memory.fill(0, index as u32, 3000).unwrap();
        for (source_index, (source_flags, source)) in memories.iter().enumerate() {
            if source_index == index {
                continue;
            }
            source.fill(0, (0x100 + source_index) as u32, 3000).unwrap();
            memory
                .copy(1000, source, 8, 1000)
                .unwrap_or_else(|e| panic!("{flags}, {source_flags}: {e}"));
            let mut bytes = [0; 3000];
            memory.read(0, &mut bytes).unwrap();
            let expected_before = (index as u32).to_ne_bytes().repeat(750);
            let expected_copy = ((0x100 + source_index) as u32).to_ne_bytes().repeat(250);
            assert!(bytes[1000..2000] == expected_copy[..], "{flags} from {source_flags}");
            assert!(
                bytes[..1000] == expected_before[..1000],
                "{flags} from {source_flags}: before"
            );
        }
    }
    drop(memories);
    fixtures.iter().for_each(Fixture::assert_idle);
}

/// Calls by address free memory. Other memory then has the same address, or contains the address.
#[test]
fn copy_rejects_memory_freed_by_its_address() {
    if process::rerun_in_own_process() {
        return;
    }
    const SIZE: usize = 8192;
    let fixture = Fixture::simulated(Config::mi300x(1));
    let vmm = Vmm::open(&fixture.runtime).unwrap();
    let area = Area::new(&vmm, 0, AreaFlags::DEFAULT).unwrap();
    let mmap = |size| area.mmap(size, MmapOptions::new()).unwrap();
    for memory_size in [SIZE, 2 * SIZE] {
        let freed: Vec<_> = (0..40).map(|_| mmap(SIZE)).collect();
        for memory in &freed {
            vmm.unmap(memory.address(), SIZE).unwrap();
            vmm.address_free(memory.address(), SIZE).unwrap();
        }
        // The kernel places the new memory at the freed addresses, some of which are adjacent.
        let memories: Vec<_> = (0..10).map(|_| mmap(memory_size)).collect();
        let mut offsets = Vec::new();
        for memory in &memories {
            let start = memory.address().get();
            for freed in &freed {
                let Some(offset) = freed.address().get().checked_sub(start) else { continue };
                if offset >= memory_size {
                    continue;
                }
                offsets.push(offset);
                // The addresses of these parts do not overlap.
                let part = if offset == 0 { SIZE / 2 } else { 0 };
                for error in [
                    memory.copy(0, freed, part, 1024).unwrap_err(),
                    freed.copy(part, memory, 0, 1024).unwrap_err(),
                ] {
                    assert_eq!(error.operation(), Operation::Copy, "{error}");
                    assert!(matches!(error.problem(), Some(Problem::NotMapped(_))), "{error}");
                }
            }
        }
        assert!(offsets.contains(&(memory_size - SIZE)), "{memory_size:#x}: {offsets:?}");
    }
    fixture.assert_idle();
}

/// If no GPU can access both memories, the library copies through a buffer: it reads and then writes. Errors still name
/// the copy.
#[test]
fn errors_of_buffered_copies_name_the_copy() {
    let fixtures = [(); 2].map(|()| Fixture::simulated(Config::mi300x(1)));
    let [(first_vmm, first), (_, second)] = fixtures.each_ref().map(|fixture| {
        let vmm = Vmm::open(&fixture.runtime).unwrap();
        let area = Area::new(&vmm, 0, AreaFlags::DEFAULT).unwrap();
        (vmm, area.mmap(4096, MmapOptions::new()).unwrap())
    });
    first_vmm.unmap(first.address(), first.allocated_size()).unwrap();
    for (destination, source) in [(&first, &second), (&second, &first)] {
        let error = destination.copy(0, source, 0, 4096).unwrap_err();
        assert_eq!(error.operation(), Operation::Copy, "{error}");
        assert!(matches!(error.problem(), Some(Problem::NotMapped(_))), "{error}");
    }
}

/// Threads that copy in opposite directions do not deadlock.
#[test]
fn copies_in_both_directions_do_not_deadlock() {
    let fixture = Fixture::simulated(Config::mi300x(2));
    let area = fixture.area(0, AreaFlags::GLOBAL).unwrap();
    let [first, second] = [(); 2].map(|()| area.mmap(4096, MmapOptions::new()).unwrap());
    let (first, second) = (std::sync::Arc::new(first), std::sync::Arc::new(second));
    let (first_clone, second_clone) = (first.clone(), second.clone());
    process::within(std::time::Duration::from_secs(100), move || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..300).for_each(|_| first_clone.copy(0, &second_clone, 0, 4096).unwrap())
            });
            scope.spawn(|| {
                (0..300).for_each(|_| second_clone.copy(0, &first_clone, 0, 4096).unwrap())
            });
            scope.spawn(|| {
                (0..300).for_each(|_| first_clone.copy(0, &first_clone, 2048, 2048).unwrap())
            });
        });
    });
    drop((first, second, area));
    fixture.assert_idle();
}

#[test]
fn forked_child_gets_errors() {
    if process::rerun_in_own_process() {
        return;
    }
    let fixture = Fixture::simulated(Config::mi300x(2));
    let mut first = [5u8; 100];
    let mut second = [5u8; 100];
    let areas: Vec<_> = all_flags().map(|flags| fixture.area(0, flags).unwrap()).collect();
    let mut host_memory = [&mut first[..], &mut second[..]].into_iter();
    let memories: Vec<_> = areas
        .iter()
        .map(|area| match maps_host_memory(area.flags()) {
            true => area
                .mmap(100, MmapOptions::new().with_host_memory(host_memory.next().unwrap()))
                .unwrap(),
            false => area.mmap(100, MmapOptions::new()).unwrap(),
        })
        .collect();
    let end = process::in_child(|| {
        let assert_forked = |error: Error| {
            assert_eq!(*error.kind(), ErrorKind::Forked, "{error}");
            assert_eq!(
                (error.aml(), error.hip(HipProfile::default())),
                (AML_FAILURE, HipError::NotInitialized)
            );
        };
        assert_forked(Area::without_vmm(&fixture.runtime, 0, AreaFlags::DEFAULT).unwrap_err());
        for (area, memory) in areas.iter().zip(memories) {
            assert_forked(area.mmap(1, MmapOptions::new()).unwrap_err());
            assert_forked(memory.read(0, &mut [0]).unwrap_err());
            assert_forked(memory.write(0, &[0]).unwrap_err());
            assert_forked(memory.fill(0, 1, 4).unwrap_err());
            assert_forked(memory.copy(0, &memory, 10, 1).unwrap_err());
            let Rejected { value: memory, error } = memory.munmap().unwrap_err();
            assert_forked(error);
            drop(memory);
        }
    });
    assert_eq!(end, End::Success);
}
