//! Which sequence has which number.

use super::{Sequence, faults, machine};
use crate::operations::{Operation, Stock};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// What sequences are drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawing {
    /// What all of it depends on.
    pub seed: u64,
    /// The most operations in a sequence.
    pub longest: usize,
    /// What they are performed on.
    pub machine: Machine,
    /// Whether calls of the simulation fail now and then.
    pub faults: bool,
    /// After how many operations all is looked at; after each, if nothing is said.
    pub every: Option<usize>,
}

/// What sequences are performed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// A simulation that is drawn, too: of any era, with few or many agents.
    Any,
    /// The simulation that this describes, as `HSA_SIM` does.
    Simulated(String),
    /// The runtime that is there.
    Loaded,
}

impl Drawing {
    /// The sequence of this number.
    #[must_use]
    pub fn sequence(&self, number: u64) -> Sequence {
        // Neighbours are far from each other.
        let far = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let random = &mut Rng::with_seed(self.seed.wrapping_add(far));
        let machine = match &self.machine {
            Machine::Any => Some(machine::any(random)),
            Machine::Simulated(text) => Some(text.clone()),
            Machine::Loaded => None,
        };
        let faults = self.faults.then(|| faults::any(random).to_string());
        let mut stock = Stock::default();
        let operations = (0..random.usize(1..=self.longest.max(1)))
            .map(|_| {
                let mut bytes = [0; Operation::BYTES];
                random.fill(&mut bytes);
                let operation = Operation::drawn_from(&bytes, stock);
                stock = stock.after(&operation);
                operation
            })
            .collect();
        let (seed, every) = (self.seed, self.every);
        Sequence { seed, number, machine, faults, every, found: None, operations }
    }
}
