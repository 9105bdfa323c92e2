//! Replays the recorded traces, and modified traces.

use hsa_sim::{Config, Generation, PageTableUpdates};
use hsa_vmm::Runtime;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm_conformance::replay::{ReplayError, ReplayReport, Rule, replay, replay_with};
use hsa_vmm_conformance::trace::{Call, Reader, Trace, TraceError};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/cuda_h200_traces_seed1.jsonl.gz");

fn recorded(count: usize) -> Vec<Trace> {
    Reader::open(RECORDED).unwrap().take(count).collect::<Result<_, _>>().unwrap()
}

fn replay_on(config: Config, traces: Vec<Trace>) -> Result<ReplayReport, ReplayError> {
    let runtime = Runtime::simulated(config).unwrap();
    let report = replay(&runtime, traces.into_iter().map(Ok), &mut |_| ())?;
    check_totals(&report);
    Ok(report)
}

fn check_totals(report: &ReplayReport) {
    let excused: u64 = report.excused.values().sum();
    assert_eq!(report.operations, report.agreed + excused + report.divergent, "{report:?}");
}

/// Two operations differ: each calls `set_access` on a range with a hole, and the recorded driver accepted the call.
/// The rest of the two traces (4 operations of the first, 7 of the second) is not compared.
#[test]
fn replay_differs_only_in_two_operations() {
    for (granule, rules) in [
        (2 << 20, &[(Rule::UnmapOverHoles, 7177), (Rule::PartOfAHandle, 2199)][..]),
        (
            4 << 10,
            &[(Rule::UnmapOverHoles, 7177), (Rule::PartOfAHandle, 2199), (Rule::Granule, 1895)],
        ),
    ] {
        let report = replay_on(Config::mi300x(2).with_granule(granule), recorded(1500)).unwrap();
        assert_eq!(report.operations + report.not_compared, 120_000);
        assert_eq!((report.divergent, report.not_compared), (2, 4 + 7), "{report:?}");
        assert_eq!(report.excused, rules.iter().copied().collect());
        let first = report.first.unwrap();
        assert_eq!((first.trace, first.seed, first.index), (428, 1, 75));
        assert!(matches!(first.operation.call, Call::SetAccess { .. }));
        assert_eq!((first.expected.as_str(), first.got.as_str()), ("SUCCESS", "INVALID_VALUE"));
    }
}

#[test]
fn replay_agrees_in_every_generation_and_granule() {
    for generation in Generation::ALL {
        for granule in [4 << 10, 2 << 20] {
            let config = Config::mi300x(2).with_generation(generation).with_granule(granule);
            let report = replay_on(config, recorded(250)).unwrap();
            assert_eq!(
                report.divergent, 0,
                "generation {generation}, granule {granule}: {report:?}"
            );
            assert_eq!(report.operations, 20_000);
            assert_eq!(report.first, None);
        }
    }
}

/// If the library controls page tables, calls return the recorded results, even if changes take effect late.
#[test]
fn replay_agrees_with_page_tables() {
    use PageTableUpdates::{Immediate, Late, NotFlushed};
    for generation in Generation::ALL {
        for updates in [Immediate, NotFlushed, Late] {
            let mut config = Config::mi300x(2).with_generation(generation).with_granule(2 << 20);
            config = config.with_page_table_updates(updates);
            let runtime = Runtime::simulated(config).unwrap();
            let options = VmmOptions::new().with_page_tables(true);
            let traces = recorded(100).into_iter().map(Ok);
            let report = replay_with(&runtime, options, traces, &mut |_| ()).unwrap();
            check_totals(&report);
            let context = format!("generation {generation}, {updates:?}: {report:?}");
            assert_eq!((report.divergent, report.operations), (0, 8_000), "{context}");
        }
    }
}

#[test]
fn json_has_the_documented_shape() {
    let report = replay_on(Config::mi300x(2).with_granule(2 << 20), recorded(10)).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["operations"], 800);
    assert_eq!(json["divergent"], 0);
    assert!(json["excused"]["unmap_over_holes"].as_u64().unwrap() > 0, "{json}");
    assert!(json["excused"]["part_of_a_handle"].as_u64().unwrap() > 0, "{json}");
    assert_eq!(json["first"], serde_json::Value::Null);
}

/// Replays traces with one operation changed. Returns the report, and the indexes of the trace and the operation.
fn replay_changed(change: impl Fn(&mut Call, &mut String) -> bool) -> (ReplayReport, usize, usize) {
    let mut traces = recorded(40);
    // Change the first suitable operation after the tenth, in the trace with index 7.
    let (index, trace) = (7, &mut traces[7]);
    let position = (10..trace.ops.len())
        .find(|&position| {
            let operation = &mut trace.ops[position];
            change(&mut operation.call, &mut operation.result)
        })
        .unwrap();
    let config = Config::mi300x(2).with_granule(2 << 20);
    (replay_on(config, traces).unwrap(), index, position)
}

/// Replays traces with one operation changed, and checks that only this operation diverges.
fn check_divergence(change: impl Fn(&mut Call, &mut String) -> bool) -> ReplayReport {
    let (report, index, position) = replay_changed(change);
    let first = report.first.clone().unwrap();
    assert_eq!((first.trace, first.index), (index, position), "{first}");
    assert!(!first.why.is_empty() && first.to_string().contains(&first.why));
    // The later operations of this trace are not performed; the other traces are complete.
    assert_eq!((report.divergent, report.not_compared), (1, 79 - position as u64));
    assert_eq!(report.operations + report.not_compared, 40 * 80);
    report
}

#[test]
fn replay_finds_changed_verdict() {
    let report = check_divergence(|call, result| {
        let is_suitable = matches!(call, Call::Release { .. }) && result == "SUCCESS";
        if is_suitable {
            *result = "INVALID_VALUE".into();
        }
        is_suitable
    });
    let first = report.first.unwrap();
    assert_eq!((first.expected.as_str(), first.got.as_str()), ("INVALID_VALUE", "SUCCESS"));
}

#[test]
fn replay_finds_changed_error_name() {
    check_divergence(|call, result| {
        let is_suitable = matches!(call, Call::SetAccess { .. }) && result == "INVALID_VALUE";
        if is_suitable {
            *result = "OUT_OF_MEMORY".into();
        }
        is_suitable
    });
}

#[test]
fn replay_finds_changed_flags() {
    let report = check_divergence(|call, result| match call {
        Call::GetAccess { flags, .. } if result == "SUCCESS" => {
            *flags ^= 1;
            true
        }
        _ => false,
    });
    assert!(report.first.unwrap().why.contains("access"));
}

#[test]
fn replay_finds_changed_handle() {
    for other in [-1, 99] {
        check_divergence(|call, result| match call {
            Call::Retain { same_as, .. } if result == "SUCCESS" && *same_as >= 0 => {
                *same_as = other;
                true
            }
            _ => false,
        });
    }
}

#[test]
fn rules_excuse_only_declared_differences() {
    let trace_of = |ops: &str| {
        let head = r#"{"seed":9,"trace":0,"granule":2097152,"devices":1,"ops":["#;
        serde_json::from_str::<Trace>(&format!("{head}{ops}]}}")).unwrap()
    };
    let start = r#"{"op":"reserve","r":0,"size":8388608,"result":"SUCCESS"},
        {"op":"create","h":0,"size":4194304,"device":0,"result":"SUCCESS"},
        {"op":"map","r":0,"offset":0,"size":4194304,"h":0,"handle_offset":0,"result":"SUCCESS"},"#;
    for (end, divergent) in [
        (r#"{"op":"unmap","r":0,"offset":0,"size":8388608,"result":"SUCCESS"}"#, 0),
        // The rule about holes does not excuse an unmap that splits a mapping.
        (r#"{"op":"unmap","r":0,"offset":0,"size":2097152,"result":"SUCCESS"}"#, 1),
        (r#"{"op":"unmap","r":0,"offset":0,"size":16777216,"result":"SUCCESS"}"#, 1),
        (r#"{"op":"unmap","r":3,"offset":0,"size":4194304,"result":"SUCCESS"}"#, 1),
        // CUDA returns `NOT_SUPPORTED` only for a part of a handle, and this call maps the whole handle.
        (
            r#"{"op":"map","r":0,"offset":0,"size":4194304,"h":0,"handle_offset":0,
               "result":"NOT_SUPPORTED"}"#,
            1,
        ),
        (r#"{"op":"create","h":1,"size":2097152,"device":77,"result":"INVALID_DEVICE"}"#, 0),
        (
            r#"{"op":"set_access","r":0,"offset":0,"size":4194304,"descs":[[0,2]],
               "result":"INVALID_VALUE"}"#,
            0,
        ),
        (
            r#"{"op":"set_access","r":0,"offset":0,"size":4194304,"descs":[[77,3]],
               "result":"INVALID_VALUE"}"#,
            0,
        ),
        (r#"{"op":"release","h":7,"result":"INVALID_VALUE"}"#, 0),
    ] {
        let trace = trace_of(&format!("{start}{end}"));
        let report = replay_on(Config::mi300x(1).with_granule(2 << 20), vec![trace]).unwrap();
        assert_eq!(report.divergent, divergent, "{end}: {report:?}");
    }
}

#[test]
fn replay_error_names_the_reason() {
    let error = replay_on(Config::mi300x(1), recorded(1)).unwrap_err();
    assert!(matches!(error, ReplayError::TooFewGpus { needed: 2, present: 1, .. }), "{error}");
    assert!(error.to_string().contains("2 GPUs"), "{error}");

    let mut fine_granule = recorded(1);
    fine_granule[0].granule = 4096;
    let error = replay_on(Config::mi300x(2).with_granule(2 << 20), fine_granule).unwrap_err();
    assert!(matches!(error, ReplayError::CoarserGranule { .. }), "{error}");

    let mut config = Config::mi300x(2);
    config.vmem = false;
    let error = replay_on(config, recorded(1)).unwrap_err();
    assert!(matches!(error, ReplayError::Vmm(_)), "{error}");

    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let traces = Reader::new(b"{}".as_slice()).unwrap();
    let error = replay(&runtime, traces, &mut |_| ()).unwrap_err();
    assert!(matches!(error, ReplayError::Trace(TraceError::Parse { line: 1, .. })), "{error}");
}
