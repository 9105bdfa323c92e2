//! Ring buffers map the same memory several times in a row, so that reads and writes can wrap around.

use crate::errors::size_error;
use crate::machine::{KIB, Machine, at, generations, releases, without_cpu_mapping};
use crate::pausable::run_in_child;
use hsa_vmm::Access;
use hsa_vmm::Error;
use hsa_vmm::buffer::RingBuffer;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use std::collections::VecDeque;

const SIZE: usize = 8 * KIB;

#[test]
fn reads_and_writes_wrap_around() {
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        let mut configs = releases();
        configs.extend(
            generations()
                .into_iter()
                .map(|(generation, config)| (generation, without_cpu_mapping(config))),
        );
        for (release, config) in configs {
            let machine = Machine::new(config);
            let agents = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
            for times in [2, 3, 5] {
                let ring = RingBuffer::create(&machine.vmm, SIZE, times, &machine.shareable_on(0))
                    .unwrap();
                ring.grant(&agents, Access::ReadWrite).unwrap();
                assert_eq!(
                    machine.simulation.usage().vram_used[0],
                    SIZE as u64,
                    "{release}: the memory is allocated once"
                );
                let written_bytes: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
                let position = (10 * SIZE + SIZE / 2 + 3) as u64;
                ring.write(position, &written_bytes).unwrap();
                // Positions that differ by a multiple of the size refer to the same bytes.
                let mut found = vec![0; SIZE];
                for repetition in 0..4 {
                    ring.read(position % SIZE as u64 + repetition * SIZE as u64, &mut found)
                        .unwrap();
                    assert!(found == written_bytes, "{release}, {times} times");
                }
                // A GPU also reads across the end.
                let copy_address = machine.map_new_memory(1, SIZE).0;
                machine.grant(copy_address, SIZE, machine.gpu(1), Access::ReadWrite);
                machine.grant(copy_address, SIZE, machine.cpu(0), Access::Read);
                let source = ring.address_of(position);
                machine.vmm.copy(machine.gpu(1), copy_address, source, SIZE).unwrap();
                machine.vmm.read(copy_address, &mut found).unwrap();
                assert!(found == written_bytes, "{release}, {times} times, by a GPU");
                assert_eq!(ring.address_of(position), at(ring.address(), SIZE / 2 + 3));
                // A GPU's fill also wraps around.
                let near_end = (SIZE - 8) as u64;
                ring.fill(near_end, 0x0403_0201, 16).unwrap();
                let mut found = [0; 16];
                ring.read(near_end, &mut found).unwrap();
                assert_eq!(found[..], [1, 2, 3, 4].repeat(4), "{release}, {times} times");
            }
        }
    });
}

#[test]
fn ring_rejects_more_than_its_size() {
    let machine = Machine::new(Config::mi300x(1));
    let ring = RingBuffer::create(&machine.vmm, SIZE, 4, &machine.shareable_on(0)).unwrap();
    ring.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    let mut bytes = vec![0; SIZE + 1];
    let expected =
        || Err(size_error(SIZE + 1, Problem::TooLarge { maximum: SIZE, whole: Argument::Buffer }));
    assert_eq!(ring.read(u64::MAX, &mut bytes).map_err(Error::into_kind), expected());
    assert_eq!(ring.write(u64::MAX, &bytes).map_err(Error::into_kind), expected());
    assert_eq!(ring.fill(u64::MAX, 0, SIZE + 1).map_err(Error::into_kind), expected());
    ring.write(u64::MAX, &bytes[1..]).unwrap();
}

#[test]
fn revoke_covers_every_mapping() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let ring = RingBuffer::create(&machine.vmm, SIZE, 3, &machine.shareable_on(0)).unwrap();
        ring.grant(&[machine.gpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
        ring.revoke(&[machine.gpu(1)]).unwrap();
        assert_eq!(ring.access(machine.gpu(0)), Ok(Access::ReadWrite), "{generation}");
        assert_eq!(ring.access(machine.gpu(1)), Ok(Access::None), "{generation}");
        for repetition in 0..3 {
            let address = ring.address().get() + repetition * SIZE;
            assert!(machine.simulation.page(0, address).is_some(), "{generation}");
            assert!(machine.simulation.page(1, address).is_none(), "{generation}");
        }
        drop(ring);
        machine.assert_empty();
    }
}

/// Sends messages of random sizes through a ring and through a `VecDeque`. Both must return the same bytes.
#[test]
fn stream_passes_through_a_ring() {
    let machine = Machine::new(Config::mi300x(1));
    let ring = RingBuffer::create(&machine.vmm, 4 * KIB, 2, &machine.shareable_on(0)).unwrap();
    ring.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
    let mut queue = VecDeque::new();
    let (mut written, mut consumed) = (0u64, 0u64);
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..2000 {
        // Xorshift, a generator of pseudo-random values.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let free = ring.size() - (written - consumed) as usize;
        let bytes: Vec<u8> = (0..(seed >> 32) as usize % (free + 1))
            .map(|index| (seed >> 8) as u8 ^ index as u8)
            .collect();
        ring.write(written, &bytes).unwrap();
        written += bytes.len() as u64;
        queue.extend(bytes);
        let mut found = vec![0; seed as u16 as usize % (queue.len() + 1)];
        ring.read(consumed, &mut found).unwrap();
        consumed += found.len() as u64;
        assert_eq!(found, queue.drain(..found.len()).collect::<Vec<_>>());
    }
    assert!(written > 100 * ring.size() as u64, "{written:#x} bytes passed through the ring");
}

#[test]
fn ring_of_too_many_mappings_is_rejected() {
    let machine = Machine::new(Config::mi300x(1));
    let times = 1 << 33;
    let created = RingBuffer::create(&machine.vmm, 4 * KIB, times, &machine.shareable_on(0));
    let error = created.unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Times), "{error}");
    assert_eq!(error.problem(), Some(Problem::OutOfMemory), "{error}");
    machine.assert_empty();
}
