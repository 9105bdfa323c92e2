//! Pausable buffers release their memory, and later map new memory at the same address.
//!
//! ROCm 7.2 frees the addresses for a moment, in which another thread may take them. Tests that pause buffers therefore
//! run in a process of their own, which has one thread.

use crate::errors::out_of_bounds;
use crate::fault_injection::ERROR;
use crate::machine::{KIB, MIB, Machine, generations, with_two_cpus};
use crate::process::{End, assert_inaccessible, descriptors, in_child, regions};
use hsa_vmm::Error;
use hsa_vmm::buffer::{PausableBuffer, PauseMode};
use hsa_vmm::error::{Argument, ErrorKind, Operation, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, GpuPermissions};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Reservation};

const RESERVE: &str = "hsa_amd_vmem_address_reserve_align";

/// Runs a function in a forked child, which has only one thread. Fails unless the child succeeds.
pub fn run_in_child(function: impl FnOnce()) {
    assert_eq!(in_child(function), End::Success);
}

/// Returns bytes that differ from page to page.
pub fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|offset| (offset % 251) as u8 ^ (offset >> 12) as u8 ^ seed).collect()
}

/// Returns a buffer with contents, to which the CPU and the owner have access.
pub fn filled_buffer(machine: &Machine, size: usize) -> PausableBuffer {
    let buffer = PausableBuffer::create(&machine.vmm, size, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer.write(0, &pattern(size, 1)).unwrap();
    buffer
}

pub fn contents(buffer: &PausableBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.size()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

fn used_vram(machine: &Machine) -> u64 {
    machine.simulation.usage().vram_used[0]
}

#[test]
fn resume_restores_contents_and_address() {
    run_in_child(|| {
        for (generation, config) in generations() {
            for size in [1, 32, 4 * KIB, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1] {
                let context = format!("{generation}: {size}");
                let machine = Machine::new(config.clone());
                let mut buffer = filled_buffer(&machine, size);
                buffer.grant(&[machine.gpu(1)], Access::Read).unwrap();
                let (address, extent) = (buffer.address(), buffer.extent());
                assert!(extent >= size && extent - size < machine.granule(), "{context}");
                assert_eq!(used_vram(&machine), extent as u64, "{context}");

                buffer.pause(PauseMode::Save).unwrap();
                assert!(buffer.is_paused() && buffer.holds_addresses(), "{context}");
                assert_eq!((buffer.address(), buffer.saved_size()), (address, size), "{context}");
                assert_eq!(used_vram(&machine), 0, "{context}: the memory is freed");
                assert_eq!(machine.vmm.reservations(), [(address, extent)], "{context}");
                assert_inaccessible(address.get(), extent, &context);

                buffer.resume().unwrap();
                assert_eq!((buffer.address(), buffer.saved_size()), (address, 0), "{context}");
                assert!(contents(&buffer) == pattern(size, 1), "{context}: the contents");
                let expected = [Access::ReadWrite, Access::ReadWrite, Access::Read];
                let agents = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
                for (agent, expected) in agents.into_iter().zip(expected) {
                    assert_eq!(buffer.access(agent), Ok(expected), "{context}");
                    assert_eq!(machine.vmm.get_access(agent, address), Ok(expected), "{context}");
                }

                buffer.pause(PauseMode::Discard).unwrap();
                assert_eq!((buffer.saved_size(), used_vram(&machine)), (0, 0), "{context}");
                buffer.resume().unwrap();
                buffer.write(size - 1, &[7]).unwrap();
                if size >= 32 {
                    buffer.fill(8, 0x0403_0201, 16).unwrap();
                    let found = &contents(&buffer)[8..24];
                    assert_eq!(found, [1, 2, 3, 4].repeat(4), "{context}");
                    let expected_error = out_of_bounds(size - 3, 4, size);
                    assert_eq!(
                        buffer.fill(size - 3, 0, 4).map_err(Error::into_kind),
                        Err(expected_error),
                        "{context}"
                    );
                }
                drop(buffer);
                machine.assert_empty();
            }
        }
    });
}

#[test]
fn pause_releases_three_gibibytes() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let machine = Machine::new(config);
            let size = 3 << 30;
            let mut buffer =
                PausableBuffer::create(&machine.vmm, size, &machine.shareable_on(0)).unwrap();
            buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
            let address = buffer.address();
            for _ in 0..3 {
                buffer.write(size - 5, b"there").unwrap();
                assert_eq!(used_vram(&machine), size as u64, "{generation}");
                buffer.pause(PauseMode::Discard).unwrap();
                assert_eq!(used_vram(&machine), 0, "{generation}");
                buffer.resume().unwrap();
                assert_eq!(buffer.address(), address, "{generation}");
            }
            let result = buffer.write(size - 4, b"there");
            let expected = out_of_bounds(size - 4, 5, size);
            assert_eq!(result.map_err(Error::into_kind), Err(expected), "{generation}");
        }
    });
}

#[test]
fn many_pauses_change_nothing() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let rounds = hsa_rocr::test::count_to_run(10_000).min(1_000) as u32;
            let machine = Machine::new(config);
            let mut buffer = filled_buffer(&machine, 5000);
            let address = buffer.address();
            let state = |machine: &Machine| {
                let usage = (machine.vmm.usage(), machine.simulation.usage());
                (usage, machine.vmm.mappings(), descriptors())
            };
            // The simulation's heap and the number of its threads grow only in the first rounds.
            let (mut before, mut regions_before) = (None, 0);
            for round in 0..rounds {
                let saved = round % 50 == 0;
                if saved {
                    buffer.write(0, &round.to_ne_bytes()).unwrap();
                }
                buffer.pause(if saved { PauseMode::Save } else { PauseMode::Discard }).unwrap();
                buffer.resume().unwrap();
                if saved {
                    let mut bytes = [0; 4];
                    buffer.read(0, &mut bytes).unwrap();
                    assert_eq!(u32::from_ne_bytes(bytes), round, "{generation}");
                }
                // The simulation opens a file at the first access to memory. The write makes sure that the file is open
                // in every compared state.
                buffer.write(0, &[1]).unwrap();
                if round == 200 {
                    (before, regions_before) = (Some(state(&machine)), regions().len());
                }
            }
            assert_eq!(Some(state(&machine)), before, "{generation}");
            // Heaps and stacks also change the number of regions. A leak would add a region in each round.
            let current_regions = regions().len();
            assert!(
                current_regions < regions_before + 100,
                "{generation}: {current_regions} regions, before {regions_before}"
            );
            assert_eq!(buffer.address(), address, "{generation}");
            machine.vmm.check().unwrap();
            drop(buffer);
            machine.assert_empty();
        }
    });
}

#[test]
fn paused_buffer_rejects_pause_and_transfers() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let machine = Machine::new(config);
            let mut buffer = filled_buffer(&machine, 100);
            assert_eq!(
                buffer.resume().map_err(Error::into_kind),
                Err(ErrorKind::NotPaused),
                "{generation}"
            );
            assert_eq!(
                buffer.resume_anywhere().map_err(Error::into_kind),
                Err(ErrorKind::NotPaused),
                "{generation}"
            );
            buffer.pause(PauseMode::Save).unwrap();
            let calls = machine.simulation.all_calls();
            for mode in [PauseMode::Save, PauseMode::Discard] {
                assert_eq!(
                    buffer.pause(mode).map_err(Error::into_kind),
                    Err(ErrorKind::Paused),
                    "{generation}"
                );
            }
            assert_eq!(
                buffer.read(0, &mut [0]).map_err(Error::into_kind),
                Err(ErrorKind::Paused),
                "{generation}"
            );
            assert_eq!(
                buffer.write(0, &[0]).map_err(Error::into_kind),
                Err(ErrorKind::Paused),
                "{generation}"
            );
            assert_eq!(
                buffer.fill(0, 0, 4).map_err(Error::into_kind),
                Err(ErrorKind::Paused),
                "{generation}"
            );
            assert_eq!(
                machine.simulation.all_calls(),
                calls,
                "{generation}: the runtime was not called"
            );
            buffer.resume().unwrap();
            assert!(contents(&buffer) == pattern(100, 1), "{generation}");
            drop(buffer);
            // Dropping a paused buffer leaves nothing behind.
            let mut buffer = filled_buffer(&machine, 100);
            buffer.pause(PauseMode::Save).unwrap();
            drop(buffer);
            machine.assert_empty();
        }
    });
}

#[test]
fn grants_while_paused_apply_on_resume() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let machine = Machine::new(with_two_cpus(config));
            let other_machine = Machine::new(Config::mi300x(1));
            let mut buffer = filled_buffer(&machine, 100);
            buffer.pause(PauseMode::Save).unwrap();
            buffer.grant(&[machine.gpu(1), machine.cpu(1)], Access::Read).unwrap();
            buffer.grant(&[machine.gpu(0)], Access::None).unwrap();
            buffer.revoke(&[machine.cpu(0)]).unwrap();
            assert_eq!(buffer.access(machine.cpu(0)), Ok(Access::None), "{generation}");
            let error = buffer.grant(&[other_machine.gpu(0)], Access::Read).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::UnknownAgent), "{generation}");
            assert!(
                buffer.revoke(&[other_machine.gpu(0)]).is_err() && buffer.revoke(&[]).is_err(),
                "{generation}"
            );
            buffer.resume().unwrap();
            let agents = [machine.cpu(0), machine.cpu(1), machine.gpu(0), machine.gpu(1)];
            let expected = [Access::None, Access::Read, Access::None, Access::Read];
            for (agent, expected) in agents.into_iter().zip(expected) {
                let found = machine.vmm.get_access(agent, buffer.address());
                assert_eq!(found, Ok(expected), "{generation}");
            }
            // The second CPU has read access, so this process can read the buffer.
            assert!(contents(&buffer) == pattern(100, 1), "{generation}");
        }
    });
}

/// The GPU that owns the memory copies the contents, even if the GPU has no access to the buffer. The GPU's access does
/// not change.
#[test]
fn pause_saves_without_owner_access() {
    run_in_child(|| {
        for (generation, config) in generations() {
            for owner_access in [Access::None, Access::Read] {
                let config = config.clone().with_gpu_permissions(GpuPermissions::Enforced);
                let machine = Machine::new(config);
                let mut buffer =
                    PausableBuffer::create(&machine.vmm, 5000, &machine.shareable_on(0)).unwrap();
                buffer.grant(&[machine.cpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
                buffer.grant(&[machine.gpu(0)], owner_access).unwrap();
                buffer.write(0, &pattern(5000, 9)).unwrap();
                let page = || {
                    let page = machine.simulation.page(0, buffer_address(&machine));
                    page.map(|page| (page.readable, page.writable))
                };
                let before = page();
                buffer.pause(PauseMode::Save).unwrap();
                buffer.resume().unwrap();
                assert_eq!(
                    page(),
                    before,
                    "{generation}, {owner_access}: the owner's page-table entry"
                );
                assert_eq!(
                    machine.vmm.get_access(machine.gpu(0), buffer.address()),
                    Ok(owner_access)
                );
                assert!(contents(&buffer) == pattern(5000, 9), "{generation}, {owner_access}");
                drop(buffer);
                machine.assert_empty();
            }
        }
    });
}

fn buffer_address(machine: &Machine) -> usize {
    machine.vmm.reservations()[0].0.get()
}

#[test]
fn failed_resume_anywhere_changes_nothing() {
    run_in_child(|| {
        let machine = Machine::new(Config::mi300x(2));
        let mut buffer = filled_buffer(&machine, 5000);
        buffer.pause(PauseMode::Save).unwrap();
        let (before, extent) = (buffer.address(), buffer.extent());
        machine.vmm.address_free(before, extent).unwrap();
        let taken = Reservation::builder(extent).exactly_at(before).reserve(&machine.vmm).unwrap();
        for function in [RESERVE, "hsa_amd_vmem_handle_create", "hsa_amd_vmem_map"] {
            // The first reservation fails, because the addresses are taken.
            let call = if function == RESERVE { 2 } else { 1 };
            machine.simulation.set_faults(FaultPlan::none().fail(function, call, ERROR));
            buffer.resume_anywhere().unwrap_err();
            machine.simulation.set_faults(FaultPlan::none());
            assert_eq!((buffer.address(), buffer.saved_size()), (before, 5000), "{function}");
            assert!(buffer.is_paused() && !buffer.holds_addresses(), "{function}");
            assert_eq!(machine.vmm.usage().reservations, 1, "{function}");
        }
        let new_address = buffer.resume_anywhere().unwrap();
        assert_eq!(buffer.address(), new_address);
        assert_ne!(new_address, before);
        assert!(contents(&buffer) == pattern(5000, 1));
        assert_eq!(machine.vmm.get_access(machine.gpu(0), new_address), Ok(Access::ReadWrite));
        // The buffer keeps the new address.
        buffer.pause(PauseMode::Save).unwrap();
        assert_eq!(buffer.resume_anywhere(), Ok(new_address));
        drop((buffer, taken));
        machine.assert_empty();
    });
}

/// The pause fails, and the buffer cannot be restored. Then the program unmaps the memory that is still mapped.
#[test]
fn paused_buffer_maps_unmapped_memory_again() {
    let machine = Machine::new(Config::mi300x(2));
    let mut buffer = filled_buffer(&machine, 5000);
    let faults = FaultPlan::none().fail("hsa_amd_vmem_handle_release", 1, ERROR);
    machine.simulation.set_faults(faults.fail("hsa_amd_vmem_set_access", 1, ERROR));
    buffer.pause(PauseMode::Discard).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    assert!(buffer.is_paused());
    machine.vmm.unmap(buffer.address(), buffer.extent()).unwrap();
    buffer.resume().unwrap();
    assert!(contents(&buffer) == pattern(5000, 1));
    drop(buffer);
    machine.assert_empty();
}

#[test]
fn freed_addresses_of_a_paused_buffer_are_lost() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let machine = Machine::new(config);
            let mut buffer = filled_buffer(&machine, 5000);
            let (address, extent) = (buffer.address(), buffer.extent());
            let free_paused = |buffer: &mut PausableBuffer| {
                buffer.pause(PauseMode::Save).unwrap();
                assert!(buffer.holds_addresses(), "{generation}");
                machine.vmm.address_free(address, extent).unwrap();
                assert!(!buffer.holds_addresses(), "{generation}");
            };
            // No other code reserves the addresses.
            free_paused(&mut buffer);
            buffer.resume().unwrap();
            assert!(buffer.address() == address && buffer.holds_addresses(), "{generation}");
            assert!(contents(&buffer) == pattern(5000, 1), "{generation}");

            free_paused(&mut buffer);
            let builder = Reservation::builder(extent).exactly_at(address);
            let taken = builder.reserve(&machine.vmm).unwrap();
            for _ in 0..2 {
                let error = buffer.resume().unwrap_err();
                let is_lost = matches!(error.kind(), ErrorKind::AddressLost { .. });
                assert!(is_lost && !buffer.holds_addresses(), "{generation}: {error}");
                assert!(error.to_string().contains("anywhere"), "{error}");
                assert!(buffer.is_paused(), "{generation}");
                assert_eq!((buffer.saved_size(), used_vram(&machine)), (5000, 0), "{generation}");
            }
            assert_ne!(buffer.resume_anywhere().unwrap(), address, "{generation}");
            assert!(contents(&buffer) == pattern(5000, 1), "{generation}");
            drop((buffer, taken));
            machine.assert_empty();
        }
    });
}

#[test]
fn pause_rejects_unmapped_and_freed_addresses() {
    let machine = Machine::new(Config::mi300x(2));
    for mode in [PauseMode::Save, PauseMode::Discard] {
        let mut buffer = filled_buffer(&machine, 5000);
        machine.vmm.unmap(buffer.address(), buffer.extent()).unwrap();
        machine.vmm.address_free(buffer.address(), buffer.extent()).unwrap();
        let error = buffer.pause(mode).unwrap_err();
        assert_eq!(
            (error.operation(), error.argument()),
            (Operation::Pause, Some(Argument::Address))
        );
        assert!(!buffer.is_paused(), "{error}");
        assert_eq!(machine.vmm.usage().reservations, 0, "{error}");
    }
    machine.assert_empty();
}

#[test]
fn create_rejects_bad_arguments() {
    let machine = Machine::new(Config::mi300x(1));
    let create = |size, properties: &AllocationProperties| {
        PausableBuffer::create(&machine.vmm, size, properties).unwrap_err()
    };
    assert_eq!(create(0, &machine.shareable_on(0)).problem(), Some(Problem::Zero));
    assert_eq!(create(usize::MAX, &machine.shareable_on(0)).problem(), Some(Problem::Overflow));
    let error = create(1 << 45, &machine.shareable_on(0));
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
    let on_cpu = AllocationProperties::on(machine.cpu(0));
    create(1, &on_cpu);
    let nowhere = AllocationProperties::at(Location::Unknown);
    assert_eq!(create(1, &nowhere).problem(), Some(Problem::MissingLocation));
    machine.assert_empty();
}

#[test]
fn forked_child_cannot_use_the_buffer() {
    run_in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let (mut resident, mut paused) =
            (filled_buffer(&machine, 5000), filled_buffer(&machine, 5000));
        paused.pause(PauseMode::Save).unwrap();
        let mut buffers = Some((resident, paused));
        let end = in_child(|| {
            let (mut resident, mut paused) = buffers.take().unwrap();
            let results = [
                resident.read(0, &mut [0]),
                resident.write(0, &[0]),
                resident.grant(&[machine.gpu(0)], Access::Read),
                resident.revoke(&[machine.gpu(0)]),
                resident.access(machine.gpu(0)).map(drop),
                resident.fill(0, 0, 4),
                resident.pause(PauseMode::Save),
                paused.resume(),
                paused.resume_anywhere().map(drop),
                resident.pause(PauseMode::Discard),
            ];
            for (number, result) in results.into_iter().enumerate() {
                let forked = |error: &Error| matches!(error.kind(), ErrorKind::Forked);
                let is_forked = matches!(&result, Err(error) if forked(error));
                assert!(is_forked, "{number}: {result:?}");
            }
        });
        assert_eq!(end, End::Success);
        (resident, paused) = buffers.take().unwrap();
        paused.resume().unwrap();
        for buffer in [resident, paused] {
            assert!(contents(&buffer) == pattern(5000, 1));
        }
        machine.assert_empty();
    });
}

#[test]
fn resume_keeps_access_set_by_address() {
    run_in_child(|| {
        for (generation, config) in generations() {
            let machine = Machine::new(config);
            let mut buffer = filled_buffer(&machine, 5000);
            let [cpu, gpu, peer] = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
            let access = [(cpu, Access::Read), (gpu, Access::None)];
            let access = access.map(|(agent, access)| AccessDescriptor { agent, access });
            machine.vmm.set_access(buffer.address(), buffer.extent(), &access).unwrap();
            buffer.pause(PauseMode::Save).unwrap();
            buffer.grant(&[peer], Access::Read).unwrap();
            buffer.resume().unwrap();
            for (agent, expected) in
                [(cpu, Access::Read), (gpu, Access::None), (peer, Access::Read)]
            {
                let access = machine.vmm.get_access(agent, buffer.address());
                assert_eq!(access, Ok(expected), "{generation}: {agent}");
                assert_eq!(buffer.access(agent), Ok(expected), "{generation}: {agent}");
            }
            assert!(contents(&buffer) == pattern(5000, 1), "{generation}");
        }
    });
}
