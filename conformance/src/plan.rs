//! Selects the cases of a run and their order.

use crate::filter::selects;
use crate::{Case, Options, cases};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// A part of the selected cases, for runs on several machines: `2/5` is the second of five parts.
///
/// ```
/// let shard: hsa_vmm_conformance::Shard = "2/5".parse().unwrap();
/// assert_eq!(shard.to_string(), "2/5");
/// assert!("6/5".parse::<hsa_vmm_conformance::Shard>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: NonZeroUsize,
    count: NonZeroUsize,
}

/// The error of parsing a [`Shard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid shard; write NUMBER/COUNT, such as 2/5 for the second of five parts")]
pub struct ShardError;

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let (number, count) = text.split_once('/').ok_or(ShardError)?;
        let parse = |text: &str| text.parse::<NonZeroUsize>().map_err(|_| ShardError);
        let shard = Self { number: parse(number)?, count: parse(count)? };
        if shard.number <= shard.count { Ok(shard) } else { Err(ShardError) }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl Shard {
    /// Returns whether the part contains the case with this index among the cases that the filters select.
    fn contains(self, index: usize) -> bool {
        index % self.count == self.number.get() - 1
    }
}

/// The selected cases and their order.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The cases, in the order of [`cases`].
    pub selected: Vec<&'static Case>,
    /// The runs of cases, round after round, as indexes into `selected`. Omits cases that an earlier run has finished.
    pub steps: Vec<usize>,
}

impl Plan {
    pub fn new(options: &Options) -> Self {
        let selected = options.selected_cases();
        let finished: BTreeSet<_> = options.finished.iter().map(|it| it.name.as_str()).collect();
        let unfinished: Vec<_> =
            (0..selected.len()).filter(|&index| !finished.contains(selected[index].name)).collect();
        let mut random = options.shuffle.map(fastrand::Rng::with_seed);
        let steps = (0..options.repeat.max(1)).flat_map(|_| {
            let mut round = unfinished.clone();
            if let Some(random) = &mut random {
                random.shuffle(&mut round);
            }
            round
        });
        Self { steps: steps.collect(), selected }
    }
}

impl Options {
    /// Returns the selected cases, in the order of [`cases`].
    #[must_use]
    pub fn selected_cases(&self) -> Vec<&'static Case> {
        let is_selected = |case: &&Case| {
            self.filters.is_empty() || self.filters.iter().any(|filter| selects(filter, case.name))
        };
        let selected = cases().into_iter().filter(is_selected).enumerate();
        let part = selected.filter(|(index, _)| self.shard.is_none_or(|it| it.contains(*index)));
        part.map(|(_, case)| case).collect()
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
    fn any_matching_filter_selects_a_case() {
        let names: Vec<_> = plan(1, None).selected.iter().map(|case| case.name).collect();
        assert!(names.contains(&"map.flags.refused") && names.contains(&"release.handle.zero"));
        assert!(!names.contains(&"release.handle.twice"));
    }

    #[test]
    fn each_round_contains_every_case_once() {
        for seed in [None, Some(1)] {
            let plan = plan(3, seed);
            for round in plan.steps.chunks(plan.selected.len()) {
                let mut round = round.to_vec();
                assert_eq!(round.is_sorted(), seed.is_none());
                round.sort_unstable();
                assert!(round.into_iter().eq(0..plan.selected.len()));
            }
        }
    }

    #[test]
    fn shards_contain_every_case_once() {
        let part = |number| {
            let shard = Some(format!("{number}/3").parse().unwrap());
            Options { shard, ..Options::default() }.selected_cases()
        };
        let mut names: Vec<_> = (1..=3).flat_map(part).map(|case| case.name).collect();
        let sizes: Vec<_> = (1..=3).map(|number| part(number).len()).collect();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        names.sort_unstable();
        let mut all: Vec<_> =
            Options::default().selected_cases().iter().map(|case| case.name).collect();
        all.sort_unstable();
        assert_eq!(names, all);
        for bad in ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/5"] {
            assert!(bad.parse::<super::Shard>().is_err(), "{bad}");
        }
    }

    #[test]
    fn finished_cases_are_not_run_again() {
        let all = Options::default();
        let first = all.selected_cases()[0];
        let finished = vec![crate::CaseReport::new(first.name, first.source, crate::Status::Pass)];
        let rest = Plan::new(&Options { finished, ..Options::default() });
        assert_eq!(rest.steps, (1..rest.selected.len()).collect::<Vec<_>>());
    }

    #[test]
    fn seed_determines_order() {
        assert_eq!(plan(2, Some(7)).steps, plan(2, Some(7)).steps);
        assert_ne!(plan(2, Some(7)).steps, plan(2, Some(8)).steps);
        let steps = plan(2, Some(7)).steps;
        assert_ne!(
            steps[..steps.len() / 2],
            steps[steps.len() / 2..],
            "each round must have its own order"
        );
    }
}
