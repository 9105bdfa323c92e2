//! Compares this library with all 175 verdicts of `data/cuda_h200_edges.tsv`.
//!
//! Each recorded call must return the recorded result, or the result in the table of deliberate
//! differences (`DIFFERENCES`). `ABSENT` lists the calls that this library's interface cannot express.

mod recorded;

use hsa_rocr::{Emulation, Release, test};
use hsa_sim::{Config, Generation};
use hsa_vmm::Runtime;
use recorded::absent::ABSENT;
use recorded::differences::DIFFERENCES;
use recorded::{Fixture, calls};
use std::collections::BTreeMap;

/// Returns the names and verdicts in the file.
fn recorded_verdicts() -> BTreeMap<&'static str, &'static str> {
    let text = include_str!("../data/cuda_h200_edges.tsv");
    let lines = text.lines().map(|line| line.split_once('\t').expect("a name, a tab, a verdict"));
    lines.collect()
}

#[test]
fn every_recorded_name_is_in_one_table() {
    let recorded_verdicts = recorded_verdicts();
    assert_eq!(recorded_verdicts.len(), 175);
    let mut occurrences: BTreeMap<&str, u32> = BTreeMap::new();
    let absent = ABSENT.iter().map(|(name, reason)| {
        assert!(!reason.is_empty(), "{name}");
        name
    });
    for name in calls().map(|(name, _)| name).chain(absent) {
        *occurrences.entry(name).or_default() += 1;
    }
    for name in recorded_verdicts.keys() {
        assert_eq!(occurrences.remove(name), Some(1), "{name}");
    }
    assert!(occurrences.is_empty(), "not in the file: {occurrences:?}");
}

#[test]
fn differences_have_reason_and_call() {
    let mut names = BTreeMap::new();
    for difference in DIFFERENCES {
        let name = difference.name;
        assert!(!difference.reason.is_empty() && names.insert(name, ()).is_none(), "{name}");
        assert!(calls().any(|(call_name, _)| *call_name == name), "{name} is not called");
        assert_ne!(recorded_verdicts()[name], difference.result, "{name} does not differ");
    }
}

/// Makes every call. Returns the unexpected results: name, result, expected result.
fn unexpected_results(
    runtime: &Runtime,
    generation: Generation,
) -> Vec<(&'static str, String, String)> {
    let recorded_verdicts = recorded_verdicts();
    let mut unexpected = Vec::new();
    for &(name, call) in calls() {
        let fixture = Fixture::new(runtime);
        let result = call(&fixture);
        assert_eq!(fixture.vmm.check(), Ok(()), "{name}");
        assert!(
            fixture.vmm.quarantined_ranges().is_empty(),
            "{name}: {:?}",
            fixture.vmm.quarantined_ranges()
        );
        let difference = DIFFERENCES.iter().find(|it| it.name == name && it.since <= generation);
        let expected = difference.map_or(recorded_verdicts[name], |difference| difference.result);
        if result != expected {
            unexpected.push((name, result, expected.to_owned()));
        }
    }
    unexpected
}

#[test]
fn simulation_matches_the_record() {
    for generation in Generation::ALL {
        // The granule of the recorded GPUs.
        let config = Config::mi300x(2).with_generation(generation).with_granule(2 << 20);
        let runtime = Runtime::simulated(config).unwrap();
        assert_eq!(unexpected_results(&runtime, generation), [], "generation {generation}");
    }
}

#[test]
fn amds_runtime_matches_the_record() {
    let name = "amds_runtime_matches_the_record";
    test::run_on_releases(name, &Emulation::with_gpus(2), |setup| {
        // SAFETY: the library is AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.unwrap();
        let generation =
            if setup.release() == Release::R7_2_4 { Generation::B } else { Generation::A };
        // The granule of AMD's runtime is a page; the recorded granule is 2 MiB.
        let granularity = ("granularity_minimum", "4096".to_owned(), "2097152".to_owned());
        assert_eq!(
            unexpected_results(&runtime, generation),
            [granularity],
            "AMD's {}",
            setup.release()
        );
    });
}
