//! Tests the selection of cases, and the formats of reports.

use hsa_sim::{Config, FaultPlan};
use hsa_vmm::Runtime;
use hsa_vmm::vmm::Quirks;
use hsa_vmm_conformance::describe::describe;
use hsa_vmm_conformance::{Options, Report, Status, cases, run};
use quick_xml::events::Event;
use serde_json::Value;
use std::collections::HashSet;

const AREAS: [&str; 17] = [
    "runtime",
    "pool",
    "granularity",
    "reserve",
    "create",
    "map",
    "access",
    "unmap",
    "release",
    "retain",
    "properties",
    "share",
    "ipc",
    "area",
    "buffer",
    "retire",
    "hip",
];

fn report(filter: &str, faults: FaultPlan) -> Report {
    let runtime = Runtime::simulated(Config::mi300x(2).with_faults(faults)).unwrap();
    let filters = vec![filter.to_owned()];
    let options = Options { filters, count_descriptors: false, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

#[test]
fn names_are_unique_and_in_order_of_areas() {
    let cases = cases();
    assert!(cases.len() >= 330, "{} cases", cases.len());
    let mut names = HashSet::new();
    let mut areas: Vec<&str> = Vec::new();
    for case in &cases {
        assert!(names.insert(case.name), "{} occurs twice", case.name);
        let words: Vec<&str> = case.name.split('.').collect();
        assert_eq!(words.len(), 3, "{}", case.name);
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(words.iter().all(|w| !w.is_empty() && w.chars().all(is_plain)), "{}", case.name);
        assert!(!case.source.is_empty() && !case.about.is_empty(), "{}", case.name);
        if areas.last() != Some(&case.area()) {
            areas.push(case.area());
        }
    }
    assert_eq!(areas, AREAS);
}

#[test]
fn filters_select_cases() {
    for (filter, included, excluded) in [
        ("reserve.free", "reserve.free.twice", "reserve.size.zero"),
        ("map.*", "map.offset.minus_one", "unmap.run.one_mapping"),
        ("*.twice", "unmap.address.twice", "unmap.address.null"),
        ("share.import.twice", "share.import.twice", "share.export.twice"),
    ] {
        let report = report(filter, FaultPlan::none());
        let names: Vec<_> = report.cases.iter().map(|case| case.name.as_str()).collect();
        assert!(names.contains(&included) && !names.contains(&excluded), "{filter}: {names:?}");
    }
    assert!(report("nothing like it", FaultPlan::none()).cases.is_empty());
}

#[test]
fn progress_reports_every_case() {
    let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
    let filters = vec!["pool.".to_owned()];
    let options = Options { filters, count_descriptors: false, ..Options::default() };
    let mut reported = Vec::new();
    let report = run(&runtime, &options, &mut |progress| {
        reported.push((progress.done, progress.total, progress.case.name.clone()));
    });
    let names = report.cases.iter().enumerate();
    let expected: Vec<_> =
        names.map(|(index, case)| (index + 1, report.cases.len(), case.name.clone())).collect();
    assert_eq!(reported, expected);
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn json_has_the_documented_shape() {
    let faults = FaultPlan::none().always("hsa_amd_vmem_map", 0x1000);
    let report = report("*", faults);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(keys(&json), ["agents", "cases", "run", "runtime", "summary"]);
    let runtime = keys(&json["runtime"]);
    for key in ["name", "path", "version", "extension", "driver", "quirks", "dmabuf"] {
        assert!(runtime.contains(&key), "{key} in {runtime:?}");
    }
    assert_eq!(json["runtime"]["driver"], "simulated");
    assert_eq!(json["runtime"]["name"], "simulation");
    assert_eq!(json["runtime"]["extension"], "1.15");
    assert_eq!(json["runtime"]["path"], Value::Null);
    let cases = json["cases"].as_array().unwrap();
    let mut counted = [("pass", 0), ("fail", 0), ("skip", 0), ("known", 0)];
    for case in cases {
        let mut case_keys = keys(case);
        // Failed cases may have a picture.
        case_keys.retain(|&key| key != "address_space" || case["status"] != "fail");
        assert_eq!(case_keys, ["detail", "duration_us", "name", "source", "status"]);
        assert!(case["duration_us"].is_u64(), "{case}");
        let status = case["status"].as_str().unwrap();
        assert_eq!(case["detail"] == "", status == "pass", "{case}");
        counted.iter_mut().find(|(name, _)| *name == status).unwrap().1 += 1;
    }
    for (key, (_, count)) in ["passed", "failed", "skipped", "known"].iter().zip(counted) {
        assert_eq!(json["summary"][key], count, "{key}");
    }
    assert!(report.summary.failed > 0 && report.summary.passed > 0);
    let pictures = cases.iter().filter_map(|case| case["address_space"].as_str());
    let pictures: Vec<_> = pictures.collect();
    assert!(
        pictures.len() > 50 && pictures.iter().all(|svg| svg.starts_with("<svg")),
        "{}",
        pictures.len()
    );
}

#[test]
fn descriptions_have_the_documented_shape() {
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let json = serde_json::to_value(describe(&runtime)).unwrap();
    assert_eq!(json["runtime"]["virtual_memory"], true);
    assert_eq!(json["runtime"]["without_virtual_memory"], Value::Null);
    let agents = json["agents"].as_array().unwrap();
    let kinds: Vec<_> = agents.iter().map(|agent| agent["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["cpu", "gpu", "gpu"]);
    let gpu = &agents[1];
    for key in
        ["name", "kind", "isa", "numa_node", "pci", "enforcement", "product", "uuid", "large_bar"]
    {
        assert!(!gpu[key].is_null(), "{key} in {gpu}");
    }
    assert_eq!(gpu["enforcement"], "remembered");
    assert_eq!(agents[0]["enforcement"], "enforced");
    let coarse = gpu["pools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|pool| pool["flags"].as_array().unwrap().iter().any(|flag| flag == "coarse"));
    let pool = coarse.unwrap();
    assert_eq!(pool["segment"], "global");
    assert_eq!(pool["allocatable"], true);
    assert_eq!(pool["granule"], 4096);
    assert_eq!(pool["recommended_granule"], 2 << 20);
    assert!(pool["size"].as_u64().unwrap() > 1 << 30);
    let peers = gpu["peers"].as_array().unwrap();
    assert!(peers.iter().any(|peer| peer["agent"] == 2 && peer["reachable"] == true), "{gpu}");
}

#[test]
fn junit_is_well_formed() {
    let faults = FaultPlan::none().always("hsa_amd_vmem_export_shareable_handle", 0x1000);
    let report = report("*", faults);
    let xml = report.junit();
    let mut reader = quick_xml::Reader::from_str(&xml);
    reader.config_mut().check_end_names = true;
    let (mut suites, mut tests, mut failures, mut skips) = (0, 0, 0, 0);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                b"testsuite" => suites += 1,
                b"testcase" => tests += 1,
                b"failure" => failures += 1,
                b"skipped" => skips += 1,
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    let summary = report.summary;
    assert_eq!((suites, tests), (AREAS.len(), report.cases.len()));
    assert_eq!((failures, skips), (summary.failed, summary.skipped + summary.known));
    assert!(failures > 0);
}

/// A report of an old version of the command. The report does not describe the run, the features and the quirks.
const OLD_REPORT: &str = r#"{
    "runtime": {"name": "simulation", "path": null, "version": "1.1", "extension": "1.7"},
    "agents": [],
    "cases": [
        {"name": "map.offset.zero", "status": "pass", "source": "HIP", "detail": "", "duration_us": 7},
        {"name": "map.size.zero", "status": "fail", "source": "HIP", "detail": "no", "duration_us": 8}
    ],
    "summary": {"passed": 1, "failed": 1, "skipped": 0, "known": 0}
}"#;

#[test]
fn written_report_can_be_read() {
    let faults = FaultPlan::none().always("hsa_amd_vmem_map", 0x1000);
    let mut written = report("*", faults);
    assert!(written.summary.failed > 0 && written.summary.skipped > 0);
    let read = Report::from_json(&serde_json::to_vec(&written).unwrap()).unwrap();
    // The errors of rejected calls are not written to files.
    assert!(written.cases.iter().any(|case| !case.expected_errors.is_empty()));
    written.cases.iter_mut().for_each(|case| case.expected_errors.clear());
    assert_eq!(read, written);
}

#[test]
fn older_reports_can_be_read() {
    let report = Report::from_json(OLD_REPORT.as_bytes()).unwrap();
    assert_eq!(report.run, None);
    assert_eq!((report.runtime.dmabuf, &report.runtime.quirks), (None, &None));
    assert_eq!((report.summary.passed, report.summary.failed), (1, 1));
    assert_eq!(report.cases[1].address_space, None);
}

#[test]
fn newer_reports_can_be_read() {
    let newer = OLD_REPORT.replace("\"duration_us\": 7", "\"duration_us\": 7, \"mood\": [1]");
    let newer = newer.replace("\"agents\"", "\"weather\": {\"rain\": true}, \"agents\"");
    assert_eq!(
        Report::from_json(newer.as_bytes()).unwrap(),
        Report::from_json(OLD_REPORT.as_bytes()).unwrap()
    );
}

#[test]
fn info_output_is_a_report_without_cases() {
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let info = serde_json::to_vec(&describe(&runtime)).unwrap();
    let report = Report::from_json(&info).unwrap();
    assert_eq!((report.agents.len(), report.cases.len()), (3, 0));
    assert_eq!(report.runtime, describe(&runtime).runtime);
}

#[test]
fn summary_counts_the_cases_of_the_report() {
    let wrong_summary = OLD_REPORT.replace("\"passed\": 1", "\"passed\": 400");
    assert_eq!(Report::from_json(wrong_summary.as_bytes()).unwrap().summary.passed, 1);
}

#[test]
fn invalid_report_error_names_the_position() {
    for garbage in ["", "null", "[]", "{}", "{\"runtime\": {}}", "\u{0}\u{1}", "{\"cases\": []}"] {
        assert!(Report::from_json(garbage.as_bytes()).is_err(), "{garbage}");
    }
    let status = OLD_REPORT.replace("\"fail\"", "\"perhaps\"");
    let error = Report::from_json(status.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("perhaps") && error.contains("line 6"), "{error}");
    let truncated = Report::from_json(&OLD_REPORT.as_bytes()[..OLD_REPORT.len() / 2]).unwrap_err();
    assert!(truncated.is_eof(), "{truncated}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    for content in ["{\"seed\":1,\"ops\":[]}\n{}", "\u{FEFF}{}"] {
        std::fs::write(&file, content).unwrap();
        let error = Report::read(&file).unwrap_err().to_string();
        assert!(error.contains("trace.jsonl is not a report"), "{error}");
    }
    let error = Report::read(folder.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("none"), "{error}");
}

#[test]
fn report_names_quirks() {
    let runtime = Runtime::simulated(Config::mi300x(1).with_extension(7)).unwrap();
    let names = |quirks| {
        let filters = vec!["runtime.".to_owned()];
        let options = Options { filters, quirks, count_descriptors: false, ..Options::default() };
        let quirks = run(&runtime, &options, &mut |_| ()).runtime.quirks.unwrap();
        assert!(quirks.iter().all(|quirk| !quirk.issue.is_empty()));
        quirks.into_iter().map(|quirk| quirk.name).collect::<Vec<_>>()
    };
    let known_quirks = [
        "unmap_of_several_fails",
        "cpu_unmap_leaves_hole",
        "grant_without_descriptor_aborts",
        "some_calls_take_no_lock",
        "ipc_server_outlives_stop",
    ];
    assert_eq!(names(Quirks::default()), known_quirks);
    let mut with_one_more = Quirks::default();
    with_one_more.set_access_drops_unnamed_agents = true;
    assert_eq!(
        names(with_one_more),
        [&["set_access_drops_unnamed_agents"], &known_quirks[..]].concat()
    );
}

/// An element of Jenkins's schema for JUnit's XML, junit-10.xsd: the children, the required attributes, and the
/// optional attributes.
type Element = (&'static [&'static str], &'static [&'static str], &'static [&'static str]);

fn element(name: &str) -> Option<Element> {
    Some(match name {
        "testsuites" => (&["testsuite"], &[], &["name", "time", "tests", "failures", "errors"]),
        "testsuite" => (
            &["testsuite", "properties", "testcase", "system-out", "system-err"],
            &["name", "tests", "failures", "errors"],
            &["time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"],
        ),
        "properties" => (&["property"], &[], &[]),
        "property" => (&[], &["name", "value"], &[]),
        "testcase" => (
            &["skipped", "error", "failure", "system-out", "system-err"],
            &["name"],
            &["time", "classname", "group"],
        ),
        "skipped" | "error" | "failure" => (&[], &[], &["type", "message"]),
        "system-out" | "system-err" => (&[], &[], &[]),
        _ => return None,
    })
}

/// Checks a document against the schema, and returns the first error.
fn check_schema(xml: &str) -> Result<(), String> {
    let mut reader = quick_xml::Reader::from_str(xml);
    let mut open: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let (start, is_empty) = match event {
            Event::Start(start) => (start, false),
            Event::Empty(start) => (start, true),
            Event::End(_) => {
                open.pop();
                continue;
            }
            Event::Text(text) => {
                let is_blank = text.iter().all(u8::is_ascii_whitespace);
                let holds_text = ["skipped", "error", "failure", "system-out", "system-err"];
                let is_allowed = open.last().is_some_and(|it| holds_text.contains(&it.as_str()));
                if !is_blank && !is_allowed {
                    return Err(format!("text in {open:?}"));
                }
                continue;
            }
            Event::Eof => return Ok(()),
            _ => continue,
        };
        let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
        let (_, required, optional) = element(&name).ok_or(format!("element {name}"))?;
        let is_child = match open.last() {
            None => name == "testsuites",
            Some(parent) => {
                element(parent).is_some_and(|(children, ..)| children.contains(&name.as_str()))
            }
        };
        if !is_child {
            return Err(format!("{name} in {open:?}"));
        }
        let attributes: Vec<_> = start
            .attributes()
            .map(|it| it.map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()?;
        let names: Vec<_> = attributes
            .iter()
            .map(|it| String::from_utf8_lossy(it.key.as_ref()).into_owned())
            .collect();
        if let Some(missing) = required.iter().find(|it| !names.iter().any(|name| name == *it)) {
            return Err(format!("{name} without {missing}"));
        }
        let is_known = |name: &&String| [required, optional].concat().contains(&name.as_str());
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            return Err(format!("{name} with {unknown}"));
        }
        for attribute in attributes.iter().filter(|it| it.key.as_ref() == b"time") {
            let time = String::from_utf8_lossy(&attribute.value).into_owned();
            if !time.chars().all(|it| it.is_ascii_digit() || it == '.')
                || time.parse::<f64>().is_err()
            {
                return Err(format!("{name} with the time {time}"));
            }
        }
        if !is_empty {
            open.push(name);
        }
    }
}

#[test]
fn junit_follows_the_schema() {
    let mut report = report("map.*", FaultPlan::none());
    let statuses = [Status::Pass, Status::Fail, Status::Skip, Status::Known];
    for (case, status) in report.cases.iter_mut().zip(statuses.into_iter().cycle()) {
        case.status = status;
        case.detail = "<\"detail\">".to_owned();
        case.output = Some("    <testsuite disabled=\"1\">".to_owned());
    }
    let xml = report.junit();
    assert_eq!(check_schema(&xml), Ok(()), "{xml}");
    let skipped =
        report.cases.iter().filter(|it| matches!(it.status, Status::Skip | Status::Known));
    assert!(xml.contains(&format!(" skipped=\"{}\"", skipped.count())), "{xml}");
    for (from, to, error) in [
        ("<testcase name=", "<testcase title=", "testcase without name"),
        ("<testsuite name=", "<testsuite disabled=\"0\" name=", "testsuite with disabled"),
        ("<system-out>", "<properties>", "properties in"),
        ("time=\"0.", "time=\"-0.", "with the time -0."),
    ] {
        let found = check_schema(&xml.replacen(from, to, 1)).unwrap_err();
        assert!(found.contains(error), "{found}");
    }
}

#[test]
fn junit_contains_no_invalid_characters() {
    let forbidden = "a\u{0}\u{1}\u{8}\u{b}\u{c}\u{1b}[31m\u{1f}\u{7f}\u{85}\u{fffe}\u{ffff}z";
    let mut report = report("reserve", FaultPlan::none());
    report.runtime.name = forbidden.to_owned();
    for case in &mut report.cases {
        case.status = hsa_vmm_conformance::Status::Fail;
        case.name = format!("{}{forbidden}", case.name);
        case.source = forbidden.to_owned();
        case.detail = forbidden.to_owned();
    }
    let text = report.junit();
    // XML 1.0, production 2; surrogates are not characters.
    let is_allowed = |it: char| matches!(it, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(is_allowed), "{text:?}");
    assert!(text.contains("\\u001b[31m") && text.contains("\\uffff"), "{text}");
}

#[test]
fn html_escapes_text() {
    let mut report = report("reserve", FaultPlan::none());
    let hostile = "<script>alert(1)</script>\"'&";
    report.runtime.name = hostile.to_owned();
    for case in &mut report.cases {
        (case.source, case.detail) = (hostile.to_owned(), hostile.to_owned());
        case.status = hsa_vmm_conformance::Status::Fail;
    }
    assert!(!report.html().unwrap().contains("<script>alert"));
}

#[test]
fn formats_name_failed_requests_and_bringup() {
    let faults = FaultPlan::none().always("hsa_amd_vmem_map", 0x1000);
    let mut report = report("map.memory.whole_handle", faults);
    let plain = [report.junit(), report.kcidb("a:b").to_string(), report.html().unwrap()];
    assert!(plain.iter().all(|text| !text.contains("bringup")), "{plain:?}");
    let request = "1:1 0.5 drm0 GEM_VA handle=1 = EIO (1.0 us)";
    report.cases[0].failed_requests.push(request.to_owned());
    report.bringup = Some("hsa-vmm emulate -- hsa-vmm bringup".to_owned());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["failed_requests"][0], request);
    let texts =
        [json.to_string(), report.junit(), report.kcidb("a:b").to_string(), report.html().unwrap()];
    for text in texts {
        assert!(text.contains(request) && text.contains("-- hsa-vmm bringup"), "{text}");
    }
}
