//! Growable buffers grow and shrink in place.

use crate::machine::{KIB, MIB, Machine, at, generations, releases};
use hsa_rocr::test::count_to_run;
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::{Access, GrowableBuffer};

const STEP: usize = 64 * KIB;

#[test]
fn growth_keeps_address_and_contents() {
    for (release, config) in releases() {
        let machine = Machine::new(config);
        let options = GrowableBuffer::builder(16 * STEP).with_step(STEP);
        let mut buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        buffer.grant(&[machine.cpu(0), machine.gpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
        let address = buffer.address();
        let step = buffer.step();
        for number in 0..16u8 {
            buffer.grow(step).unwrap();
            // Writes across the boundary with the previous step, if there is one.
            let start = (number as usize * step).saturating_sub(1);
            buffer.write(start, &[number; 3]).unwrap();
        }
        for number in 0..15u8 {
            let mut bytes = [0; 3];
            buffer.read((number as usize + 1) * step - 1, &mut bytes).unwrap();
            assert_eq!(bytes, [number + 1; 3], "{release}");
        }
        // A GPU reads the same bytes across the end of a mapping.
        let copy_target = machine.map_new_memory(1, 4 * KIB).0;
        machine.grant(copy_target, 4 * KIB, machine.gpu(1), Access::ReadWrite);
        machine.grant(copy_target, 4 * KIB, machine.cpu(0), Access::Read);
        machine.vmm.copy(machine.gpu(1), copy_target, at(address, 5 * step - 1), 3).unwrap();
        let mut bytes = [0; 3];
        machine.vmm.read(copy_target, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 3], "{release}");
        buffer.fill(3 * step - 8, 0x0101_0101, 16).unwrap();
        let mut bytes = [0; 18];
        buffer.read(3 * step - 9, &mut bytes).unwrap();
        assert_eq!(bytes[1..17], [1; 16], "{release}");
        // Shrinking does not change the remaining bytes.
        buffer.shrink(15 * step - 1).unwrap();
        assert_eq!((buffer.size(), buffer.mapped_size()), (step + 1, 2 * step), "{release}");
        assert_eq!(buffer.address(), address, "{release}");
        let mut byte = [0];
        buffer.read(step, &mut byte).unwrap();
        assert_eq!(byte, [1], "{release}");
        crate::process::assert_inaccessible(address.get() + 2 * step, 14 * step, release);
        assert_eq!(machine.used_by(0), 2 * step, "{release}: the memory is freed");
    }
}

#[test]
fn growth_maps_whole_steps() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::B));
    let create_calls = || machine.simulation.calls("hsa_amd_vmem_handle_create");
    let mut buffer =
        GrowableBuffer::builder(64 * MIB).reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    for size in [1, 100, MIB, 2 * MIB] {
        buffer.resize(size).unwrap();
        assert_eq!((buffer.mapped_size(), create_calls()), (2 * MIB, 1), "{size}");
    }
    buffer.grow(1).unwrap();
    assert_eq!((buffer.mapped_size(), create_calls()), (4 * MIB, 2));
    assert_eq!(
        buffer.allocations().map(|allocation| allocation.size()).collect::<Vec<_>>(),
        [2 * MIB; 2]
    );
    buffer.resize(1).unwrap();
    assert_eq!(buffer.mapped_size(), 2 * MIB);
    assert_eq!(buffer.allocations().count(), 1);
}

/// Each step of growth makes the same calls, whatever the size of the buffer.
///
/// Steps are 2 MiB. In ROCm generations C (ROCm 7.14) and E (rocddi), steps are larger, because their runtimes keep a
/// descriptor open for every handle (rocm-systems#10604). The test thus stays below the limit of descriptors.
#[test]
fn every_step_makes_the_same_calls() {
    // 64 GiB with `HSA_VMM_LONG=1`, otherwise 7 GiB.
    let end = count_to_run(64) << 30;
    for (generation, config) in generations() {
        let keeps_descriptors = [Generation::C, Generation::E].contains(&config.generation);
        let step = if keeps_descriptors { 256 * MIB } else { 2 * MIB };
        let steps = end / step;
        let machine = Machine::new(config);
        let (vmm, gpu) = (&machine.vmm, machine.gpu(0));
        let mut buffer = GrowableBuffer::builder(end)
            .with_step(step)
            .reserve(vmm, &machine.shareable_on(0))
            .unwrap();
        buffer.grant(&[gpu, machine.gpu(1)], Access::ReadWrite).unwrap();
        let address = buffer.address();
        let calls = || machine.simulation.all_calls();
        let mut before = calls();
        let mut per_step = None;
        for number in 1..=steps {
            buffer.grow(step).unwrap();
            let after = calls();
            let calls_made: Vec<_> = before
                .iter()
                .zip(&after)
                .map(|(&(name, before), &(_, after))| (name, after - before))
                .filter(|&(_, calls_made)| calls_made > 0)
                .collect();
            before = after;
            let expected = per_step.get_or_insert_with(|| calls_made.clone());
            assert_eq!(*expected, calls_made, "{generation}, step {number}");
        }
        let total_calls: u64 = per_step.into_iter().flatten().map(|(_, calls)| calls).sum();
        assert_eq!(total_calls, 3, "{generation}: create, map and set_access");
        assert_eq!((buffer.address(), buffer.size()), (address, steps * step), "{generation}");
        assert_eq!(vmm.usage().mappings, steps, "{generation}");
        // Both GPUs can access the whole buffer: one GPU writes near the end, and the other GPU reads.
        for gpu in [0, 1] {
            let page = machine.simulation.page(gpu, address.get() + steps * step - 1);
            assert!(page.is_some(), "{generation}, GPU {gpu}");
        }
        let (first, last) = (address, at(address, (steps - 1) * step));
        buffer.fill(0, 0x600d_600d, 64).unwrap();
        vmm.copy(machine.gpu(1), last, first, 64).unwrap();
        let copy_address = machine.map_new_memory(1, 4 * KIB).0;
        machine.grant(copy_address, 4 * KIB, machine.cpu(0), Access::Read);
        machine.grant(copy_address, 4 * KIB, gpu, Access::ReadWrite);
        vmm.copy(gpu, copy_address, last, 64).unwrap();
        let mut word = [0; 4];
        vmm.read(copy_address, &mut word).unwrap();
        assert_eq!(u32::from_ne_bytes(word), 0x600d_600d, "{generation}");
        buffer.resize(0).unwrap();
        assert_eq!(vmm.usage().mappings, 1, "{generation}");
    }
}
