//! Generates sequences from a seed and a number.

use super::{Sequence, faults, machine};
use crate::operations::choices::Choices;
use crate::operations::{ObjectCounts, Operation};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Generates sequences with these parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generator {
    /// The seed.
    pub seed: u64,
    /// The maximum number of operations in a sequence.
    pub max_operations: usize,
    /// The runtime that the sequences run on.
    #[serde(rename = "machine")]
    pub runtime: SequenceRuntime,
    /// Whether some calls of the simulation fail.
    pub faults: bool,
    /// The number of operations between complete comparisons; `None` to compare after each operation.
    pub every: Option<usize>,
}

/// The runtime that sequences run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SequenceRuntime {
    /// A random simulation, of any ROCm generation and number of agents.
    Any,
    /// The simulation with this configuration, as in `HSA_SIM`.
    Simulated(String),
    /// The loaded runtime.
    Loaded,
}

impl Generator {
    /// Generates the sequence with this number.
    #[must_use]
    pub fn sequence(&self, number: u64) -> Sequence {
        // Give consecutive numbers very different seeds. The factor is 2^64 divided by the golden ratio.
        let offset = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let random = &mut Rng::with_seed(self.seed.wrapping_add(offset));
        let length = random.usize(1..=self.max_operations.max(1));
        let mut bytes = vec![0; HEAD_BYTES + length * Operation::BYTES];
        random.fill(&mut bytes);
        bytes[0] = if self.faults { u8::MAX } else { 0 };
        let (seed, every) = (self.seed, self.every);
        let generated = Sequence { seed, number, every, ..Sequence::from_bytes(&bytes) };
        match &self.runtime {
            SequenceRuntime::Any => generated,
            SequenceRuntime::Simulated(text) => {
                Sequence { machine: Some(text.clone()), ..generated }
            }
            SequenceRuntime::Loaded => Sequence { machine: None, ..generated },
        }
    }
}

/// The number of bytes before the bytes of the operations. The first byte decides whether calls fail. The following
/// bytes determine the simulated machine, then the faults.
const HEAD_BYTES: usize = 1 + MACHINE_BYTES + FAULT_BYTES;
const MACHINE_BYTES: usize = 8;
const FAULT_BYTES: usize = 16;

impl Sequence {
    /// Generates a sequence from random bytes, for example from a fuzzer. Missing bytes count as 0.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let (head, operations) = bytes.split_at(HEAD_BYTES.min(bytes.len()));
        let (fault_byte, head) = head.split_first().unwrap_or((&0, &[]));
        let (machine, faults) = head.split_at(MACHINE_BYTES.min(head.len()));
        let faults =
            (*fault_byte >= 0x80).then(|| faults::generate(&mut Choices::new(faults)).to_string());
        let mut object_counts = ObjectCounts::default();
        let next = |bytes: &[u8]| {
            let operation = Operation::from_bytes(bytes, object_counts);
            object_counts = object_counts.after(&operation);
            operation
        };
        Self {
            seed: 0,
            number: 0,
            machine: Some(machine::generate(&mut Choices::new(machine))),
            faults,
            every: None,
            found: None,
            operations: operations.chunks(Operation::BYTES).map(next).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator() -> Generator {
        Generator {
            seed: 11,
            max_operations: 40,
            runtime: SequenceRuntime::Any,
            faults: true,
            every: Some(16),
        }
    }

    #[test]
    fn sequence_depends_on_seed_and_number_only() {
        let sequences: Vec<_> = (0..50).map(|number| generator().sequence(number)).collect();
        for (number, sequence) in sequences.iter().enumerate().rev() {
            assert_eq!(*sequence, generator().sequence(number as u64));
            assert!((1..=40).contains(&sequence.operations.len()));
            assert!(sequence.fault_plan().unwrap().is_some_and(|plan| !plan.is_empty()));
        }
        let of_other_seed: Vec<_> =
            (0..50).map(|it| Generator { seed: 12, ..generator() }.sequence(it)).collect();
        let mut pairs = sequences.iter().zip(&of_other_seed);
        assert!(pairs.all(|(left, right)| left.operations != right.operations));
        assert!(sequences.windows(2).all(|pair| pair[0].operations != pair[1].operations));
    }

    #[test]
    fn sequence_names_the_requested_machine() {
        let sequence_on = |runtime| Generator { runtime, faults: false, ..generator() }.sequence(3);
        assert_eq!(sequence_on(SequenceRuntime::Loaded).machine, None);
        assert_eq!(
            sequence_on(SequenceRuntime::Simulated("era=c".into())).machine.as_deref(),
            Some("era=c")
        );
        assert_eq!(sequence_on(SequenceRuntime::Any).faults, None);
        assert_eq!(
            sequence_on(SequenceRuntime::Any).operations,
            sequence_on(SequenceRuntime::Loaded).operations
        );
    }

    #[test]
    fn any_bytes_give_a_sequence() {
        for length in [0, 1, 5, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + 3 * Operation::BYTES + 7] {
            let sequence = Sequence::from_bytes(&vec![0xa5; length]);
            let expected = length.saturating_sub(HEAD_BYTES).div_ceil(Operation::BYTES);
            assert_eq!(sequence.operations.len(), expected);
        }
    }
}
