//! Buffers accept any size of at least one byte, and map whole granules.

use crate::errors::{out_of_bounds, size_error};
use crate::fault_injection::ERROR;
use crate::machine::{KIB, MIB, Machine, generations};
use hsa_vmm::Error;
use hsa_vmm::buffer::{PagedBuffer, RingBuffer};
use hsa_vmm::error::{Argument, Operation, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::{Access, GrowableBuffer};

const GIB: usize = 1 << 30;
const SIZES: [usize; 8] = [1, 32, 4096, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * GIB];

#[test]
fn buffers_accept_any_size() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let mut buffer = GrowableBuffer::builder(4 * GIB)
            .reserve(&machine.vmm, &machine.shareable_on(0))
            .unwrap();
        assert_eq!((buffer.step(), buffer.maximum()), (2 * MIB, 4 * GIB), "{generation}");
        buffer.grant(&[machine.gpu(0), machine.cpu(0)], Access::ReadWrite).unwrap();
        let address = buffer.address();
        for size in SIZES {
            let context = format!("{generation}, {size:#x}");
            buffer.resize(size).unwrap();
            assert_eq!((buffer.size(), buffer.address()), (size, address), "{context}");
            assert_eq!(buffer.mapped_size(), size.next_multiple_of(2 * MIB), "{context}");
            assert_eq!(machine.used_by(0), buffer.mapped_size(), "{context}");
            // The first and the last byte are accessible. The byte after the last is not.
            buffer.write(0, b"a").unwrap();
            buffer.write(size - 1, b"z").unwrap();
            let mut byte = [0];
            buffer.read(size - 1, &mut byte).unwrap();
            assert_eq!(&byte, b"z", "{context}");
            let expected = out_of_bounds(size, 1, size);
            assert_eq!(
                buffer.read(size, &mut byte).map_err(Error::into_kind),
                Err(expected.clone()),
                "{context}"
            );
            assert_eq!(
                buffer.write(size, b"!").map_err(Error::into_kind),
                Err(expected),
                "{context}"
            );
            buffer.resize(0).unwrap();
            assert_eq!((buffer.size(), buffer.mapped_size()), (0, 0), "{context}");
            assert_eq!(machine.used_by(0), 0, "{context}");
        }
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn rings_accept_any_size() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        for size in SIZES {
            let context = format!("{generation}, {size:#x}");
            let ring = RingBuffer::create(&machine.vmm, size, 2, &machine.shareable_on(0)).unwrap();
            let rounded = size.next_multiple_of(4 * KIB);
            assert_eq!((ring.size(), ring.times()), (rounded, 2), "{context}");
            ring.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
            ring.write(rounded as u64 - 1, b"ab").unwrap();
            let mut bytes = [0; 1];
            ring.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"b", "{context}: data written past the end is at the beginning");
        }
        machine.assert_empty();
    }
}

#[test]
fn maximum_and_step_are_rounded_up() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    for (maximum, step, rounded) in [
        (1, None, (2 * MIB, 2 * MIB)),
        (2 * MIB + 1, None, (4 * MIB, 2 * MIB)),
        (10 * KIB, Some(1), (12 * KIB, 4 * KIB)),
        (10 * KIB, Some(5 * KIB), (16 * KIB, 8 * KIB)),
        (GIB, Some(96 * MIB), (11 * 96 * MIB, 96 * MIB)),
    ] {
        let mut options = GrowableBuffer::builder(maximum);
        if let Some(step) = step {
            options = options.with_step(step);
        }
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        assert_eq!((buffer.maximum(), buffer.step()), rounded, "{maximum:#x}, {step:x?}");
    }
    machine.assert_empty();
}

#[test]
fn invalid_sizes_are_rejected() {
    let machine = Machine::new(Config::mi300x(2).with_generation(Generation::A));
    let (vmm, properties) = (&machine.vmm, machine.shareable_on(0));
    let reported = |error: Error| (error.argument(), error.problem());
    let zero = (Some(Argument::Size), Some(Problem::Zero));
    let overflow = (Some(Argument::Size), Some(Problem::Overflow));
    let too_many_times = (Some(Argument::Times), Some(Problem::Overflow));
    for (options, expected) in [
        (GrowableBuffer::builder(0), zero),
        (GrowableBuffer::builder(usize::MAX), overflow),
        (GrowableBuffer::builder(1).with_step(0), (Some(Argument::Step), Some(Problem::Zero))),
        (
            GrowableBuffer::builder(1).with_step(usize::MAX),
            (Some(Argument::Step), Some(Problem::Overflow)),
        ),
    ] {
        let error = options.reserve(vmm, &properties).expect_err("an invalid size");
        assert_eq!(reported(error), expected, "{options:?}");
    }
    for (size, times, expected) in
        [(0, 2, zero), (usize::MAX, 2, overflow), (1 << 60, 16, too_many_times)]
    {
        let ring = RingBuffer::create(vmm, size, times, &properties);
        assert_eq!(reported(ring.expect_err("an invalid size")), expected, "{size:#x} × {times}");
    }
    for times in [0, 1] {
        let error = RingBuffer::create(vmm, 1, times, &properties).expect_err("too few mappings");
        assert_eq!(error.problem(), Some(Problem::TooFewTimes));
    }
    let mut buffer = GrowableBuffer::builder(4 * MIB).reserve(vmm, &properties).unwrap();
    let maximum = 4 * MIB;
    buffer.grow(3 * MIB).unwrap();
    for (by, requested) in [(MIB + 1, 4 * MIB + 1), (usize::MAX, usize::MAX)] {
        let error = buffer.grow(by).expect_err("more than is reserved");
        let expected =
            size_error(requested, Problem::TooLarge { maximum, whole: Argument::Reservation });
        assert_eq!(error.into_kind(), expected);
    }
    let error = buffer.shrink(3 * MIB + 1).expect_err("more than the size");
    let end = 3 * MIB;
    assert_eq!(
        error.into_kind(),
        size_error(3 * MIB + 1, Problem::TooLarge { maximum: end, whole: Argument::Buffer })
    );
    assert_eq!((buffer.size(), buffer.mapped_size()), (3 * MIB, 4 * MIB));
    let error = buffer.read(usize::MAX, &mut [0; 2]).expect_err("an invalid offset");
    assert_eq!(error.into_kind(), out_of_bounds(usize::MAX, 2, end));
    drop(buffer);
    machine.assert_empty();
}

/// The buffers have 2^33 pages. The process cannot allocate a list of all of them.
#[test]
fn operations_on_too_many_pages_are_rejected() {
    let machine = Machine::new(Config::mi300x(1));
    let builder = PagedBuffer::builder(1 << 45).with_page_size(4 * KIB);
    let reserved = builder.with_zero_page().reserve(&machine.vmm, &machine.shareable_on(0));
    let error = reserved.unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Capacity), "{error}");
    assert_eq!(error.problem(), Some(Problem::OutOfMemory), "{error}");
    machine.assert_empty();

    let buffer = builder.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    machine.simulation.set_faults(FaultPlan::none().fail("hsa_amd_vmem_handle_create", 9, ERROR));
    let error = buffer.map(0..buffer.page_count()).unwrap_err();
    assert_eq!(error.operation(), Operation::Create, "{error}");
    drop(buffer);
    machine.assert_empty();
}
