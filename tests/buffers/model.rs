//! Compares a growable buffer with a plain vector under random operations.

use crate::fault_injection::ERROR;
use crate::machine::{KIB, Machine, generations};
use hsa_rocr::test::count_to_run;
use hsa_vmm::Error;
use hsa_vmm::simulation::FaultPlan;
use hsa_vmm::{Access, GrowableBuffer};
use proptest::prelude::*;

const STEP: usize = 4 * KIB;
/// The agents are the CPU, the owner of the memory and another GPU.
const AGENTS: usize = 3;
const CPU: usize = 0;
const OWNER: usize = 1;

#[derive(Clone, Debug)]
enum Operation {
    Resize(usize),
    Grow(usize),
    Shrink(usize),
    Write { offset: usize, size: usize, seed: u8 },
    Read { offset: usize, size: usize },
    Fill { offset: usize, size: usize, value: u32 },
    Grant(Vec<usize>, Access),
    Revoke(usize),
    Extend(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Sizes near whole steps are more likely, because they find more defects.
    let size = || {
        prop_oneof![
            0..8 * STEP,
            (0..9usize, 0..3usize)
                .prop_map(|(steps, bytes)| { (steps * STEP + bytes).saturating_sub(1) })
        ]
    };
    let access = prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::ReadWrite)];
    prop_oneof![
        3 => size().prop_map(Operation::Resize),
        3 => size().prop_map(Operation::Grow),
        3 => size().prop_map(Operation::Shrink),
        5 => (size(), size(), any::<u8>())
            .prop_map(|(offset, size, seed)| Operation::Write { offset, size, seed }),
        3 => (size(), size()).prop_map(|(offset, size)| Operation::Read { offset, size }),
        1 => (size(), size(), any::<u32>()).prop_map(|(offset, size, value)| {
            Operation::Fill { offset: offset & !3, size: (size & !3) + 4, value }
        }),
        2 => (proptest::collection::vec(0..AGENTS, 1..4), access)
            .prop_map(|(agents, access)| Operation::Grant(agents, access)),
        1 => (0..AGENTS).prop_map(Operation::Revoke),
        1 => (1..3usize).prop_map(Operation::Extend),
    ]
}

/// The expected state of the buffer. A byte that was never written may have any value.
struct Model {
    bytes: Vec<Option<u8>>,
    maximum: usize,
    access: [Access; AGENTS],
}

impl Model {
    fn contains_range(&self, offset: usize, size: usize) -> bool {
        offset + size <= self.bytes.len()
    }

    /// Returns whether an agent can access `size` bytes. Any agent can access 0 bytes.
    fn has_access(&self, agent: usize, access: Access, size: usize) -> bool {
        size == 0 || self.access[agent] >= access
    }

    /// Applies an operation to the model. Returns whether the operation should succeed.
    fn apply(&mut self, operation: &Operation) -> bool {
        let len = self.bytes.len();
        let resized = match *operation {
            Operation::Resize(size) => Some(size),
            Operation::Grow(by) => Some(len + by),
            Operation::Shrink(by) if by > len => return false,
            Operation::Shrink(by) => Some(len - by),
            _ => None,
        };
        if let Some(size) = resized {
            let fits = size <= self.maximum;
            if fits {
                self.bytes.resize(size, None);
            }
            return fits;
        }
        match *operation {
            Operation::Write { offset, size, seed } => {
                let succeeds = self.contains_range(offset, size)
                    && self.has_access(CPU, Access::ReadWrite, size);
                if succeeds {
                    let new_bytes = pattern(seed, size).into_iter().map(Some);
                    self.bytes.splice(offset..offset + size, new_bytes);
                }
                succeeds
            }
            Operation::Read { offset, size } => {
                self.contains_range(offset, size) && self.has_access(CPU, Access::Read, size)
            }
            Operation::Fill { offset, size, value } => {
                let succeeds = self.contains_range(offset, size)
                    && self.has_access(OWNER, Access::ReadWrite, size);
                if succeeds {
                    let new_bytes = value.to_ne_bytes().into_iter().map(Some).cycle().take(size);
                    self.bytes.splice(offset..offset + size, new_bytes);
                }
                succeeds
            }
            Operation::Grant(ref agents, access) => {
                agents.iter().for_each(|&agent| self.access[agent] = access);
                true
            }
            Operation::Revoke(agent) => {
                self.access[agent] = Access::None;
                true
            }
            _ => true,
        }
    }
}

fn pattern(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect()
}

/// A buffer, and the model with its expected state.
struct Pair {
    model: Model,
    buffer: GrowableBuffer,
    machine: Machine,
    /// Whether a failed unlock has left memory of this process locked.
    locked: bool,
}

impl Pair {
    fn perform(&mut self, operation: &Operation) -> Result<(), Error> {
        let agents = [self.machine.cpu(0), self.machine.gpu(0), self.machine.gpu(1)];
        let buffer = &mut self.buffer;
        match *operation {
            Operation::Resize(size) => buffer.resize(size),
            Operation::Grow(by) => buffer.grow(by),
            Operation::Shrink(by) => buffer.shrink(by),
            Operation::Write { offset, size, seed } => buffer.write(offset, &pattern(seed, size)),
            Operation::Read { offset, size } => {
                let mut found = vec![0; size];
                buffer.read(offset, &mut found)?;
                let expected = &self.model.bytes[offset..offset + size];
                let matches = |(found, expected): (&u8, &Option<u8>)| {
                    expected.is_none_or(|expected| expected == *found)
                };
                assert!(found.iter().zip(expected).all(matches), "the contents match the model");
                Ok(())
            }
            Operation::Fill { offset, size, value } => buffer.fill(offset, value, size),
            Operation::Grant(ref named, access) => {
                let named: Vec<_> = named.iter().map(|&agent| agents[agent]).collect();
                buffer.grant(&named, access)
            }
            Operation::Revoke(agent) => buffer.revoke(&[agents[agent]]),
            Operation::Extend(steps) => buffer.extend(steps * STEP),
        }
    }

    /// Performs one operation on the buffer and the model. If `fault` is a number, the runtime call with this number
    /// fails.
    fn step(&mut self, operation: &Operation, fault: Option<u64>) {
        let plan = fault.map(|call| FaultPlan::none().fail_any(call, ERROR));
        let simulation = self.machine.simulation.clone();
        simulation.set_faults(plan.unwrap_or_default());
        let result = self.perform(operation);
        let failed_calls = simulation.failed_calls();
        let failed = !failed_calls.is_empty();
        // If the unlock during a fill fails, memory of this process stays locked.
        self.locked |= failed_calls.iter().any(|&(name, _)| name == "hsa_amd_memory_unlock");
        simulation.set_faults(FaultPlan::none());
        if let Operation::Extend(steps) = operation {
            // `extend` may fail, because another thread of the process may use the addresses.
            self.model.maximum += result.map_or(0, |()| steps * STEP);
        } else if failed && result.is_err() {
            if let Operation::Fill { offset, size, .. } = *operation {
                // A fill consists of several copies. The library does not roll back copies before the failed copy.
                self.model.bytes[offset..offset + size].fill(None);
            }
        } else {
            let expected = self.model.apply(operation);
            assert_eq!(result.is_ok(), expected, "{result:?}");
        }
        self.assert_equal();
    }

    fn assert_equal(&self) {
        let Self { model, buffer, machine, .. } = self;
        let mapped = model.bytes.len().next_multiple_of(STEP);
        assert_eq!(
            (buffer.size(), buffer.mapped_size(), buffer.maximum()),
            (model.bytes.len(), mapped, model.maximum)
        );
        assert_eq!(machine.vmm.usage().mappings, mapped / STEP);
        machine.vmm.check().unwrap();
        let agents = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
        for (&agent, &access) in agents.iter().zip(&model.access) {
            assert_eq!(buffer.access(agent), Ok(access));
            for mapping in machine.vmm.mappings() {
                assert_eq!(machine.vmm.get_access(agent, mapping.address), Ok(access));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("HSA_VMM_BUFFER_CASES").ok().map_or(count_to_run(640) as u32, |text| text.parse().unwrap()),
    ) })]

    #[test]
    fn growable_buffer_matches_a_vector(
        generation in 0..5usize,
        operations in proptest::collection::vec(
            (operation(), proptest::option::weighted(0.2, 1..12u64)),
            1..40,
        ),
    ) {
        let machine = Machine::new(generations()[generation].1.clone());
        let options = GrowableBuffer::builder(6 * STEP).with_step(STEP);
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        let address = buffer.address();
        let access = [Access::None; AGENTS];
        let model = Model { bytes: Vec::new(), maximum: 6 * STEP, access };
        let mut pair = Pair { model, buffer, machine, locked: false };
        for (operation, fault) in &operations {
            let extends = matches!(operation, Operation::Extend(_));
            pair.step(operation, fault.filter(|_| !extends));
        }
        pair.step(&Operation::Grant(vec![CPU], Access::Read), None);
        pair.step(&Operation::Read { offset: 0, size: pair.model.bytes.len() }, None);
        assert_eq!(pair.buffer.address(), address);
        let Pair { buffer, machine, locked, .. } = pair;
        drop(buffer);
        machine.assert_everything_freed();
        if !locked {
            machine.assert_empty();
        }
    }
}
