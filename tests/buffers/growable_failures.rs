//! Each runtime call of operations on growable buffers fails in turn. The buffers keep their state and contents.

use crate::fault_injection::{
    ERROR, OUT_OF_RESOURCES, Operation, RuntimeState, Setup, configurations, fail_all_calls_from,
    fail_one_call,
};
use crate::machine::{KIB, Machine};
use crate::pausable::run_in_child;
use hsa_vmm::buffer::{GrowableVec, RingBuffer};
use hsa_vmm::error::ErrorKind;
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, GrowableBuffer};
use std::sync::LazyLock;

const STEP: usize = 16 * KIB;

/// Two buffers and a ring, with contents.
struct Buffers {
    /// Two of its six steps are used. Its first reservation has four steps, its second has two.
    small: GrowableVec<u8>,
    /// Six of six steps are used.
    full: GrowableBuffer,
    ring: RingBuffer,
    machine: Machine,
}

/// The contents of buffers, created only once, because the tests compare them thousands of times.
static TEST_BYTES: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..6 * STEP).map(|index| (index % 253) as u8 + 1).collect());

fn test_bytes(length: usize) -> &'static [u8] {
    &TEST_BYTES[..length]
}

impl Setup for Buffers {
    /// The size, the mapped bytes and the maximum of each buffer.
    type State = ([(usize, usize, usize); 2], RuntimeState);

    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let agents = [machine.cpu(0), machine.gpu(0)];
        let new_buffer = |steps: usize| {
            let mut buffer = machine.extended_buffer(STEP, &[2]);
            buffer.grant(&agents, Access::ReadWrite).unwrap();
            buffer.grow(steps * STEP).unwrap();
            buffer.write(0, test_bytes(steps * STEP)).unwrap();
            buffer
        };
        let (small, full) = (GrowableVec::new(new_buffer(2)), new_buffer(6));
        let ring = RingBuffer::create(&machine.vmm, STEP, 3, &machine.shareable_on(1)).unwrap();
        ring.grant(&[machine.cpu(0), machine.gpu(1)], Access::ReadWrite).unwrap();
        ring.write(0, test_bytes(STEP)).unwrap();
        Self { small, full, ring, machine }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn state(&self) -> Self::State {
        let buffers = [&self.small.buffer, &self.full];
        (
            buffers.map(|buffer| (buffer.size(), buffer.mapped_size(), buffer.maximum())),
            RuntimeState::of(&self.machine),
        )
    }
}

impl Buffers {
    /// Checks that the buffers still have their contents.
    fn assert_contents(&self, context: &str) {
        for buffer in [&self.small.buffer, &self.full] {
            let size = buffer.size().min(6 * STEP);
            let mut found = vec![0; size];
            buffer.read(0, &mut found).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(found == test_bytes(size), "{context}: the contents have changed");
        }
        let mut found = vec![0; STEP];
        self.ring.read(STEP as u64, &mut found).unwrap();
        assert!(found == test_bytes(STEP), "{context}: the ring's contents have changed");
    }
}

const OPERATIONS: &[(&str, Operation<Buffers>)] = &[
    ("grow by one step", |s| s.small.buffer.grow(1)),
    ("grow into the next reservation", |s| s.small.buffer.grow(4 * STEP)),
    ("add values", |s| s.small.extend(&test_bytes(3 * STEP)[2 * STEP..])),
    ("shrink by one step", |s| s.full.shrink(STEP)),
    ("shrink to the end of a reservation", |s| s.full.shrink(2 * STEP)),
    ("shrink into the first reservation", |s| s.full.shrink(4 * STEP + 1)),
    ("shrink to nothing", |s| s.full.resize(0)),
    ("grant a peer", |s| s.full.grant(&[s.machine.gpu(1)], Access::Read)),
    ("change the CPU's access", |s| {
        s.full.grant(&[s.machine.cpu(0), s.machine.gpu(0)], Access::Read)
    }),
    ("grant a peer and change the CPU's access", |s| {
        s.full.grant(&[s.machine.gpu(1), s.machine.cpu(0)], Access::Read)
    }),
    ("revoke", |s| s.full.revoke(&[s.machine.gpu(0)])),
    ("make a buffer and grow it", |s| {
        let options = GrowableBuffer::builder(4 * STEP).with_step(STEP);
        let mut buffer = options.reserve(&s.machine.vmm, &s.machine.shareable_on(1))?;
        buffer.grant(&[s.machine.gpu(1)], Access::ReadWrite)?;
        buffer.grow(3 * STEP)
    }),
    ("make a ring", |s| {
        RingBuffer::create(&s.machine.vmm, STEP, 3, &s.machine.shareable_on(1)).map(drop)
    }),
    ("grant a peer the ring", |s| s.ring.grant(&[s.machine.gpu(0)], Access::ReadWrite)),
    ("revoke the ring", |s| s.ring.revoke(&[s.machine.gpu(1)])),
];

/// Returns whether an operation succeeds although this function fails.
fn tolerates_failure(name: &str, function: &str) -> bool {
    match function {
        // The buffer keeps the memory for its next growth, or until it is dropped.
        "hsa_amd_vmem_handle_release" => name.starts_with("shrink") || name.starts_with("make"),
        // The "make" operations call these functions only to drop a value, which returns no error.
        "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" => name.starts_with("make"),
        // Without aligned reservations, the library retries until the call succeeds.
        "hsa_amd_vmem_address_reserve" => name.starts_with("make"),
        _ => false,
    }
}

#[test]
fn one_failure_changes_nothing() {
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        // The status makes little difference, so only one configuration tests two statuses.
        let statuses = |configuration: &str| {
            if configuration == "generation A" { &[ERROR, OUT_OF_RESOURCES][..] } else { &[ERROR] }
        };
        let failures = fail_one_call(configurations(), OPERATIONS, statuses, |mut failed| {
            let (name, context) = (failed.name, failed.context.clone());
            match &failed.result {
                Ok(()) => assert!(
                    tolerates_failure(name, failed.function),
                    "{context}: the operation succeeded"
                ),
                Err(error) => {
                    let quarantined = matches!(error.kind(), ErrorKind::Quarantined { .. });
                    assert!(!quarantined, "{context}: {error}");
                    failed.assert_unchanged();
                    failed.setup.assert_contents(&context);
                    failed.repeat();
                }
            }
            let Buffers { small, full, ring, machine } = failed.setup;
            drop((small, full, ring));
            if name.starts_with("make") {
                machine.close();
            } else {
                machine.assert_empty();
            }
        });
        println!("{failures} failures");
        assert!(failures > 800, "only {failures}");
    });
}

#[test]
fn repeated_failures_lose_no_contents() {
    // Another thread might take addresses that a runtime frees for a moment.
    run_in_child(|| {
        let runs = fail_all_calls_from(configurations(), OPERATIONS, |mut failed| {
            let context = failed.context.clone();
            let vmm = failed.setup.machine.vmm.clone();
            if vmm.quarantined_ranges().is_empty() {
                failed.setup.assert_contents(&context);
                if failed.result.is_err() && failed.setup.full.size() == 6 * STEP {
                    failed.repeat();
                }
                // A failed operation may leave memory past the end of a buffer. The next change of size removes it.
                let Buffers { small, full, .. } = &mut failed.setup;
                for buffer in [&mut small.buffer, full] {
                    let steps = buffer.mapped_size() / STEP;
                    buffer.resize((steps + 1) % 2 * STEP).unwrap();
                    buffer.resize(2 * STEP).unwrap();
                }
                // Each buffer has two mappings, the ring three. The "make" operations drop a new value. If this drop
                // fails, memory stays mapped.
                if !failed.name.starts_with("make") {
                    assert_eq!(vmm.usage().mappings, 2 + 2 + 3, "{context}");
                }
            }
            let Buffers { small, full, ring, machine } = failed.setup;
            drop((small, full, ring, vmm));
            if machine.vmm.quarantined_ranges().is_empty() {
                machine.close();
            }
        });
        println!("{runs} runs with a runtime that kept failing");
        assert!(runs > 600, "only {runs}");
    });
}
