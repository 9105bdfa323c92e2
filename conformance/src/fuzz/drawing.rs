//! Generates sequences from seed and number.

use super::{Sequence, faults, machine};
use crate::operations::choices::Choices;
use crate::operations::{ObjectCounts, Operation};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The parameters of generated sequences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawing {
    /// The seed.
    pub seed: u64,
    /// The maximum number of operations in a sequence.
    pub longest: usize,
    /// The runtime they run on.
    pub machine: Machine,
    /// Whether some calls of the simulation fail.
    pub faults: bool,
    /// The number of operations between complete comparisons; `None` for one after each operation.
    pub every: Option<usize>,
}

/// The runtime that sequences run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// A random simulation, of any ROCm generation and number of agents.
    Any,
    /// The simulation with this configuration, as in `HSA_SIM`.
    Simulated(String),
    /// The loaded runtime.
    Loaded,
}

impl Drawing {
    /// Generates the sequence with this number.
    #[must_use]
    pub fn sequence(&self, number: u64) -> Sequence {
        // Give consecutive numbers very different seeds.
        let far = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let random = &mut Rng::with_seed(self.seed.wrapping_add(far));
        let length = random.usize(1..=self.longest.max(1));
        let mut bytes = vec![0; HEAD + length * Operation::BYTES];
        random.fill(&mut bytes);
        bytes[0] = if self.faults { u8::MAX } else { 0 };
        let (seed, every) = (self.seed, self.every);
        let drawn = Sequence { seed, number, every, ..Sequence::drawn_from(&bytes) };
        match &self.machine {
            Machine::Any => drawn,
            Machine::Simulated(text) => Sequence { machine: Some(text.clone()), ..drawn },
            Machine::Loaded => Sequence { machine: None, ..drawn },
        }
    }
}

/// The number of bytes that choose whether there are faults, the machine, and the faults.
const HEAD: usize = 1 + MACHINE + FAULTS;
const MACHINE: usize = 8;
const FAULTS: usize = 16;

impl Sequence {
    /// Generates a sequence from bytes of a fuzzer. Missing bytes count as 0.
    #[must_use]
    pub fn drawn_from(bytes: &[u8]) -> Self {
        let (head, operations) = bytes.split_at(HEAD.min(bytes.len()));
        let (faulty, head) = head.split_first().unwrap_or((&0, &[]));
        let (machine, faults) = head.split_at(MACHINE.min(head.len()));
        // No faults is the common case.
        let faults = (*faulty >= 0x80).then(|| faults::any(&mut Choices::new(faults)).to_string());
        let mut object_counts = ObjectCounts::default();
        let draw = |bytes: &[u8]| {
            let operation = Operation::drawn_from(bytes, object_counts);
            object_counts = object_counts.after(&operation);
            operation
        };
        Self {
            seed: 0,
            number: 0,
            machine: Some(machine::any(&mut Choices::new(machine))),
            faults,
            every: None,
            found: None,
            operations: operations.chunks(Operation::BYTES).map(draw).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawing() -> Drawing {
        Drawing { seed: 11, longest: 40, machine: Machine::Any, faults: true, every: Some(16) }
    }

    #[test]
    fn sequence_depends_on_seed_and_number_only() {
        let all: Vec<_> = (0..50).map(|number| drawing().sequence(number)).collect();
        for (number, sequence) in all.iter().enumerate().rev() {
            assert_eq!(*sequence, drawing().sequence(number as u64));
            assert!((1..=40).contains(&sequence.operations.len()));
            assert!(sequence.fault_plan().unwrap().is_some_and(|plan| !plan.is_empty()));
        }
        let others: Vec<_> =
            (0..50).map(|it| Drawing { seed: 12, ..drawing() }.sequence(it)).collect();
        assert!(all.iter().zip(&others).all(|(one, other)| one.operations != other.operations));
        assert!(all.windows(2).all(|two| two[0].operations != two[1].operations));
    }

    #[test]
    fn sequence_names_the_requested_machine() {
        let on = |machine| Drawing { machine, faults: false, ..drawing() }.sequence(3);
        assert_eq!(on(Machine::Loaded).machine, None);
        assert_eq!(on(Machine::Simulated("era=c".into())).machine.as_deref(), Some("era=c"));
        assert_eq!(on(Machine::Any).faults, None);
        assert_eq!(on(Machine::Any).operations, on(Machine::Loaded).operations);
    }

    #[test]
    fn any_bytes_give_a_sequence() {
        for length in [0, 1, 5, HEAD, HEAD + 1, HEAD + 3 * Operation::BYTES + 7] {
            let sequence = Sequence::drawn_from(&vec![0xa5; length]);
            let expected = length.saturating_sub(HEAD).div_ceil(Operation::BYTES);
            assert_eq!(sequence.operations.len(), expected);
        }
    }
}
