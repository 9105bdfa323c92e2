//! A buffer's pool of handles, which a thread creates before the buffer needs them.

use crate::fault_injection::{ERROR, OUT_OF_RESOURCES};
use crate::machine::{KIB, Machine, generations};
use crate::process::{End, in_child, within};
use hsa_vmm::buffer::PagedBuffer;
use hsa_vmm::error::{ErrorKind, Operation, Problem};
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Access, Allocation, GrowableBuffer, Reservation};
use std::time::{Duration, Instant};

const STEP: usize = 16 * KIB;

fn new_buffer(machine: &Machine, pool: usize) -> GrowableBuffer {
    let options = GrowableBuffer::builder(64 * STEP).with_step(STEP).with_handle_pool(pool);
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer
}

/// Waits until the pool has this number of handles.
#[track_caller]
fn wait_for_handles(buffer: &GrowableBuffer, handles: usize) {
    let begun = Instant::now();
    while buffer.pooled_handles() != handles {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} are ready", buffer.pooled_handles());
        std::thread::yield_now();
    }
}

#[test]
fn growth_within_the_pool_creates_nothing() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let mut buffer = new_buffer(&machine, 4);
        wait_for_handles(&buffer, 4);
        let plan = FaultPlan::none().always("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES);
        machine.simulation.set_faults(plan);
        buffer.grow(STEP).expect("one handle is ready");
        buffer.grow(3 * STEP).expect("three handles are ready");
        buffer.write(0, &[7; 4 * STEP]).unwrap();
        let error = buffer.grow(1).expect_err("the pool is empty, and no handle can be created");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{generation}: {error}");
        assert_eq!((buffer.size(), buffer.mapped_size()), (4 * STEP, 4 * STEP), "{generation}");
        machine.simulation.set_faults(FaultPlan::none());
        buffer.grow(1).unwrap();
        wait_for_handles(&buffer, 4);
        drop(buffer);
        machine.assert_empty();
    }
}

/// A buffer without a pool keeps memory that the runtime has not released.
#[test]
fn trim_releases_what_unmap_could_not() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = PagedBuffer::builder(8 * STEP).with_page_size(STEP);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.map(0..2).unwrap();
    let plan = FaultPlan::none().always("hsa_amd_vmem_handle_release", ERROR);
    machine.simulation.set_faults(plan);
    buffer.unmap(0..2).unwrap();
    assert_eq!((buffer.statistics().ready, machine.vmm.usage().handles), (2, 2));
    machine.simulation.set_faults(FaultPlan::none());
    buffer.trim().unwrap();
    assert_eq!((buffer.statistics().ready, machine.vmm.usage().handles), (0, 0));
}

#[test]
fn shrink_refills_the_pool_first() {
    let machine = Machine::new(Config::mi300x(2));
    let mut buffer = new_buffer(&machine, 3);
    buffer.grow(10 * STEP).unwrap();
    wait_for_handles(&buffer, 3);
    buffer.grow(2 * STEP).unwrap();
    wait_for_handles(&buffer, 3);
    let create_calls = || machine.simulation.calls("hsa_amd_vmem_handle_create");
    let before = create_calls();
    buffer.shrink(6 * STEP).unwrap();
    assert_eq!(buffer.pooled_handles(), 3);
    assert_eq!(machine.vmm.usage().handles, 6 + 3, "the other handles are released");
    buffer.grow(3 * STEP).unwrap();
    wait_for_handles(&buffer, 3);
    assert_eq!(create_calls(), before + 3, "three were in the pool, three more refill it");
}

#[test]
fn pool_has_at_most_the_steps_of_the_buffer() {
    let machine = Machine::new(Config::mi300x(1));
    let expect_handles = |buffer: &GrowableBuffer, handles| {
        wait_for_handles(buffer, handles);
        // If the pool had no limit, the thread would create further handles during this time.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(buffer.pooled_handles(), handles);
    };
    // Other tests can take the addresses that `extend` needs.
    let has_passed = (0..100).any(|_| {
        let free = Reservation::builder(6 * STEP).reserve(&machine.vmm).unwrap();
        let start = free.address();
        drop(free);
        let options = GrowableBuffer::builder(4 * STEP).with_step(STEP).exactly_at(start);
        let options = options.with_handle_pool(1 << 40);
        let Ok(mut buffer) = options.reserve(&machine.vmm, &machine.shareable_on(0)) else {
            return false;
        };
        expect_handles(&buffer, 4);
        let is_extended = buffer.extend(2 * STEP).is_ok();
        if is_extended {
            expect_handles(&buffer, 6);
        }
        is_extended
    });
    assert!(has_passed, "the addresses were taken each time");
    machine.assert_empty();
}

#[test]
fn failed_growth_returns_pooled_handles() {
    let machine = Machine::new(Config::mi300x(2));
    let mut buffer = new_buffer(&machine, 3);
    wait_for_handles(&buffer, 3);
    machine.simulation.set_faults(FaultPlan::none().fail("hsa_amd_vmem_map", 3, ERROR));
    buffer.grow(5 * STEP).expect_err("the third handle cannot be mapped");
    wait_for_handles(&buffer, 3);
    let usage = machine.vmm.usage();
    assert_eq!((usage.handles, usage.mappings, buffer.size()), (3, 0, 0));
    buffer.grow(5 * STEP).unwrap();
}

/// If the pool is creating a handle with the last memory, growth waits for that handle and uses it.
#[test]
fn pool_takes_no_memory_from_growth() {
    for _ in 0..200 {
        let machine = Machine::new(Config::mi300x(1).with_vram(8 * STEP as u64));
        let mut buffer = new_buffer(&machine, 2);
        for _ in 0..8 {
            buffer.grow(STEP).unwrap();
        }
        buffer.grow(1).expect_err("all memory is used");
        assert_eq!(machine.vmm.usage().mappings, 8);
    }
}

#[test]
fn memory_is_reused_after_a_failed_release() {
    for pool in [0, 1] {
        let machine = Machine::new(Config::mi300x(2));
        let mut buffer = new_buffer(&machine, pool);
        wait_for_handles(&buffer, pool);
        buffer.grow(4 * STEP).unwrap();
        wait_for_handles(&buffer, pool);
        machine.simulation.set_faults(FaultPlan::none().fail(
            "hsa_amd_vmem_handle_release",
            2,
            ERROR,
        ));
        buffer.shrink(4 * STEP).expect("the memory is unmapped anyway");
        assert_eq!(buffer.pooled_handles(), pool + 1, "one handle was not released");
        machine.simulation.set_faults(FaultPlan::none());
        buffer.grow(4 * STEP).unwrap();
        drop(buffer);
        machine.assert_empty();
    }
}

/// Memory keeps its name while the caller holds it, and loses the name when the pool takes it back.
#[test]
fn pooled_memory_has_no_name() {
    for is_held in [false, true] {
        let machine = Machine::new(Config::mi300x(1));
        let mut buffer = new_buffer(&machine, 1);
        wait_for_handles(&buffer, 1);
        buffer.grow(STEP).unwrap();
        // The thread cannot refill the pool, so the pool has room for the memory that shrinking frees.
        let plan = FaultPlan::none().always("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES);
        machine.simulation.set_faults(plan);
        let memory = Allocation::at(&machine.vmm, buffer.address()).unwrap().named("layer 0");
        let held = is_held.then_some(memory);
        buffer.shrink(STEP).unwrap();
        let (_, entries) = machine.vmm.snapshot();
        let has_name = entries.iter().any(|it| it.name.as_deref() == Some("layer 0"));
        assert_eq!(has_name, is_held);
        drop(held);
    }
}

/// The caller clones, retains or maps the memory of a buffer. The buffer then shrinks and grows.
#[test]
fn memory_used_by_the_caller_is_not_reused() {
    for pool in [0, 2] {
        for case in ["cloned", "retained", "mapped"] {
            let machine = Machine::new(Config::mi300x(1));
            let mut buffer = new_buffer(&machine, pool);
            wait_for_handles(&buffer, pool);
            // The thread cannot refill the pool, so the pool has room for the memory that shrinking frees.
            let plan = FaultPlan::none().always("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES);
            machine.simulation.set_faults(if pool > 0 { plan } else { FaultPlan::none() });
            buffer.grow(STEP).unwrap();
            let memory = buffer.allocations().next().unwrap();
            let handle = memory.handle();
            let (mut held, mut address) = (None, None);
            match case {
                "cloned" => held = Some(memory.clone()),
                "retained" => held = Some(Allocation::at(&machine.vmm, buffer.address()).unwrap()),
                _ => {
                    address = Some(machine.reserve(STEP));
                    machine.map(address.unwrap(), STEP, handle);
                }
            }
            buffer.shrink(STEP).unwrap();
            assert_eq!(buffer.pooled_handles(), pool.saturating_sub(1), "{case}");
            machine.simulation.set_faults(FaultPlan::none());
            buffer.grow(3 * STEP).unwrap();
            let reused = buffer.allocations().any(|memory| memory.handle() == handle);
            assert!(!reused, "{case}, {pool} pooled");
            wait_for_handles(&buffer, pool);
            assert_eq!(machine.vmm.usage().handles, 3 + pool + 1, "{case}");
            drop(held);
            if let Some(address) = address {
                machine.vmm.unmap(address, STEP).unwrap();
                machine.vmm.address_free(address, STEP).unwrap();
            }
            assert_eq!(machine.vmm.usage().handles, 3 + pool, "{case}: the memory is released");
            drop(buffer);
            machine.assert_empty();
        }
    }
}

/// The pool reuses memory, but not its handle.
#[test]
fn handle_of_pooled_memory_is_released() {
    let machine = Machine::new(Config::mi300x(1));
    let mut buffer = new_buffer(&machine, 2);
    wait_for_handles(&buffer, 2);
    let plan = FaultPlan::none().always("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    buffer.grow(2 * STEP).unwrap();
    let handles: Vec<_> = buffer.allocations().map(|memory| memory.handle()).collect();
    buffer.shrink(2 * STEP).unwrap();
    assert_eq!(buffer.pooled_handles(), 2);
    for grows in [false, true] {
        if grows {
            buffer.grow(2 * STEP).unwrap();
        }
        for handle in &handles {
            let error = machine.vmm.allocation_size(*handle).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::Released), "{error}");
        }
    }
    drop(buffer);
    machine.assert_empty();
}

#[test]
fn pool_is_released_with_its_buffer() {
    within(Duration::from_secs(120), || {
        for round in 0..200 {
            let machine = Machine::new(Config::mi300x(1));
            let mut buffer = new_buffer(&machine, 1 + round % 5);
            if round % 2 == 0 {
                buffer.grow(1).unwrap();
            }
            drop(buffer);
            machine.assert_empty();
        }
    });
}

#[test]
fn forked_child_gets_an_error_and_can_exit() {
    let machine = Machine::new(Config::mi300x(1));
    let mut parent_buffer = Some(new_buffer(&machine, 2));
    for round in 0..20 {
        // The pool's thread may be creating a handle during the fork.
        parent_buffer.as_mut().unwrap().resize(STEP * (1 + round % 2)).unwrap();
        let end = in_child(|| {
            let mut buffer = parent_buffer.take().unwrap();
            for size in [0, 3 * STEP] {
                let error = buffer.resize(size).expect_err("the buffer belongs to the parent");
                assert_eq!(error.operation(), Operation::Resize);
                assert_eq!(error.kind(), &ErrorKind::Forked);
            }
            assert_eq!(buffer.pooled_handles(), 0);
            drop(buffer);
        });
        assert_eq!(end, End::Success);
    }
}
