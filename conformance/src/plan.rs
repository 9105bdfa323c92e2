//! Selects the cases of a run and their order.

use crate::filter::matches;
use crate::{Case, Options, cases};

/// The selected cases and their order.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The cases, in the order of the areas.
    pub chosen: Vec<&'static Case>,
    /// Indexes into `chosen`, round after round.
    pub steps: Vec<usize>,
}

impl Plan {
    pub fn new(options: &Options) -> Self {
        let wanted = |case: &&Case| {
            options.filters.is_empty()
                || options.filters.iter().any(|filter| matches(filter, case.name))
        };
        let chosen: Vec<_> = cases().into_iter().filter(wanted).collect();
        let mut random = options.shuffle.map(fastrand::Rng::with_seed);
        let steps = (0..options.repeat.max(1)).flat_map(|_| {
            let mut round: Vec<_> = (0..chosen.len()).collect();
            if let Some(random) = &mut random {
                random.shuffle(&mut round);
            }
            round
        });
        Self { steps: steps.collect(), chosen }
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;
    use crate::Options;

    fn plan(repeat: usize, shuffle: Option<u64>) -> Plan {
        let filters = vec!["map.".to_owned(), "*.zero".to_owned()];
        Plan::new(&Options { filters, repeat, shuffle, ..Options::default() })
    }

    #[test]
    fn several_filters_are_combined() {
        let names: Vec<_> = plan(1, None).chosen.iter().map(|case| case.name).collect();
        assert!(names.contains(&"map.flags.refused") && names.contains(&"release.handle.zero"));
        assert!(!names.contains(&"release.handle.twice"));
    }

    #[test]
    fn each_round_contains_every_case_once() {
        for seed in [None, Some(1)] {
            let plan = plan(3, seed);
            for round in plan.steps.chunks(plan.chosen.len()) {
                let mut round = round.to_vec();
                assert_eq!(round.is_sorted(), seed.is_none());
                round.sort_unstable();
                assert!(round.into_iter().eq(0..plan.chosen.len()));
            }
        }
    }

    #[test]
    fn seed_determines_order() {
        assert_eq!(plan(2, Some(7)).steps, plan(2, Some(7)).steps);
        assert_ne!(plan(2, Some(7)).steps, plan(2, Some(8)).steps);
        let steps = plan(2, Some(7)).steps;
        assert_ne!(
            steps[..steps.len() / 2],
            steps[steps.len() / 2..],
            "each round has another order"
        );
    }
}
