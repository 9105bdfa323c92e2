//! The 72 sharpest edge cases (section 6.2 of the reference): where each is shown, and the verdict
//! of each profile of HIP.
//!
//! The table names the cases; the cases cite their rows; both are held against each other, and the
//! cases are run on every machine and release that decides one of them.

mod edges;
mod peer;

use edges::{ROWS, Row, Shown};
use hsa_rocr::{Emulation, Release, test};
use hsa_sim::{Config, Generation};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm_conformance::{Options, Status, cases, run};
use peer::On;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const PROFILES: [HipProfile; 2] = [HipProfile::Hip6, HipProfile::Hip7];

/// The rows that a source cites: every `#N` after `6.2`.
fn cited(source: &str) -> BTreeSet<u32> {
    let Some((_, rows)) = source.split_once("reference 6.2 ") else { return BTreeSet::new() };
    let rows = rows.split([';', ':']).next().unwrap_or_default().split(", ");
    rows.filter_map(|row| row.strip_prefix('#')?.parse().ok()).collect()
}

#[test]
fn table_has_unique_rows() {
    let numbers: Vec<_> = ROWS.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=72).collect::<Vec<_>>());
}

#[test]
fn rows_name_the_cases_that_cite_them() {
    let mut citing: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for case in cases() {
        let rows = cited(case.source);
        let says = case.source.contains("6.2");
        assert_eq!(says, !rows.is_empty(), "{} cites no row: {}", case.name, case.source);
        for row in rows {
            citing.entry(row).or_default().insert(case.name);
        }
    }
    let mut wrong = Vec::new();
    for row in ROWS {
        let named: BTreeSet<&str> = row.cases().collect();
        assert_eq!(named.len(), row.cases().count(), "row {} names a case twice", row.number);
        let citing = citing.remove(&row.number).unwrap_or_default();
        if named != citing {
            wrong.push(format!("row {} names {named:?}, but is cited by {citing:?}", row.number));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(citing.is_empty(), "there are no such rows: {citing:?}");
}

#[test]
fn rows_without_case_are_listed() {
    let by_cases = by_cases();
    let others: Vec<_> = (1..=72).filter(|number| !by_cases.contains(number)).collect();
    // Values that the library's types do not have, and a fork; docs/conformance.md says so.
    assert_eq!(others, [15, 44, 65]);
}

#[test]
fn named_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for row in ROWS {
        let Shown::Test { why, file, name } = row.shown else { continue };
        assert!(!why.is_empty(), "row {}", row.number);
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let alone = lines
            .windows(2)
            .any(|two| two[0] == "#[test]" && two[1].starts_with(&format!("fn {name}(")));
        // Or a test of a macro with a parameter, or a test in C.
        let in_macro = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('(') && rest.ends_with("{"))
        };
        let there = alone || lines.iter().any(in_macro) || text.contains(&format!("CASE({name})"));
        assert!(there, "row {}: {file} has no test {name}", row.number);
    }
}

/// The rows that were decided on a runtime, after checking that no case of any row failed and
/// that each was refused as its row says.
fn decided(runtime: &Runtime, profile: HipProfile, alone: bool, what: &str) -> BTreeSet<u32> {
    let peer = peer::words(if alone { On::Amd } else { On::Simulation });
    let options = Options { count_descriptors: alone, profile, peer, ..Options::default() };
    let report = run(runtime, &options, &mut |_| ());
    let of = |name| report.cases.iter().find(|case| case.name == name).unwrap();
    let mut decided = BTreeSet::new();
    for row in ROWS {
        let Shown::Cases(expected, _) = row.shown else { continue };
        let Row { number, what: row_says, .. } = row;
        let cases: Vec<_> = row.cases().map(of).collect();
        for case in &cases {
            assert_ne!(case.status, Status::Fail, "row {number}, {row_says}, {what}: {case:?}");
        }
        let passed: Vec<_> = cases.into_iter().filter(|case| case.status == Status::Pass).collect();
        if passed.is_empty() {
            continue;
        }
        if let Some(error) = expected.of(profile) {
            let refused: BTreeSet<_> =
                passed.iter().flat_map(|case| &case.refused).map(ToString::to_string).collect();
            let expected = BTreeSet::from([error.to_string()]);
            assert_eq!(refused, expected, "row {number}, {row_says}, {what}");
        }
        decided.insert(*number);
    }
    decided
}

/// The rows that cases show.
fn by_cases() -> BTreeSet<u32> {
    ROWS.iter().filter(|row| row.cases().count() > 0).map(|row| row.number).collect()
}

#[test]
fn simulation_matches_the_table() {
    let mut apart = Config::mi300x(2);
    apart.peer_access = false;
    for profile in PROFILES {
        let on = |config: Config| {
            let what = format!(
                "{profile} on generation {}, {} GPUs",
                config.generation,
                config.gpus.len()
            );
            decided(&Runtime::simulated(config).unwrap(), profile, false, &what)
        };
        for generation in Generation::ALL {
            let mut rows = on(Config::mi300x(2).with_generation(generation));
            // A GPU out of reach needs a machine that has one; no virtual memory a driver
            // without; running out of descriptors a process of its own (tests/descriptors.rs).
            let mut apart = apart.clone().with_generation(generation);
            rows.append(&mut on(apart.clone()));
            apart.vmem = false;
            rows.append(&mut on(apart));
            let open: Vec<_> = by_cases().difference(&rows).copied().collect();
            assert_eq!(open, [62], "{profile}, generation {generation}: rows that nothing decided");
        }
    }
}

#[test]
fn amds_runtime_matches_the_table() {
    let name = "amds_runtime_matches_the_table";
    test::on_each_release(name, &Emulation::gpus(2), |setup| {
        // SAFETY: AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.unwrap();
        for profile in PROFILES {
            let what = format!("{profile} on AMD's {}", setup.release());
            let rows = decided(&runtime, profile, true, &what);
            let open: Vec<_> = by_cases().difference(&rows).copied().collect();
            // 6.1 leaves a socket each time that memory is opened, which is known, and no success.
            let known = (setup.release() == Release::R6_1_2).then_some(72);
            let expected: Vec<_> = [45, 66].into_iter().chain(known).collect();
            assert_eq!(open, expected, "{what}: rows that nothing decided");
        }
    });
}

#[test]
fn expected_results_depend_on_profile() {
    let differs = |row: &&Row| match row.shown {
        Shown::Cases(expected, _) => expected.of(HipProfile::Hip6) != expected.of(HipProfile::Hip7),
        _ => false,
    };
    let differing: Vec<_> = ROWS.iter().filter(differs).map(|row| row.number).collect();
    assert_eq!(differing, [1, 2, 3, 10, 13]);
}
