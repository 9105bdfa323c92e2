//! Checks that the HTML page contains the complete report, loads nothing, and executes no text of the report.

use hsa_sim::{Config, FaultPlan};
use hsa_vmm::Runtime;
use hsa_vmm_conformance::describe::{Driver, QuirkDescription};
use hsa_vmm_conformance::{FaultTarget, Options, PlannedFault, Provenance, TestEnvironment};
use hsa_vmm_conformance::{Report, Status, run};

const HOSTILE: &str = "</td><script>alert('1')</script>\"'&lt;<img src=x onerror=alert(1)>";

fn report(faults: FaultPlan) -> Report {
    let runtime = Runtime::simulated(Config::mi300x(2).with_faults(faults)).unwrap();
    let filters = vec!["map.*".to_owned(), "share.*".to_owned()];
    let options = Options { filters, count_descriptors: false, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

fn failing_report() -> Report {
    let report = report(FaultPlan::none().always("hsa_amd_vmem_map", 0x1000));
    assert!(report.summary.failed > 0 && report.summary.passed > 0);
    report
}

#[test]
fn html_contains_every_case() {
    for report in [report(FaultPlan::none()), failing_report()] {
        let html = report.html().unwrap();
        for case in &report.cases {
            let row = format!("<tr id=\"{}\" data-status=\"{}\">", case.name, case.status);
            assert_eq!(html.matches(&row).count(), 1, "{row}");
            assert!(html.contains(&case.source.replace('&', "&#38;")), "{}", case.source);
        }
        let failures = html.matches("<article").count();
        assert_eq!(failures, report.summary.failed);
        let with_picture = report.cases.iter().filter(|case| case.address_space.is_some()).count();
        assert_eq!(html.matches("<img src=\"data:image/svg+xml,").count(), with_picture);
        for agent in &report.agents {
            assert!(html.contains(&agent.product));
        }
        for quirk in report.runtime.quirks.as_ref().unwrap() {
            assert!(html.contains(&quirk.name) && html.contains(&quirk.issue), "{}", quirk.name);
        }
        assert!(html.contains("Runtime and GPUs are simulated"));
    }
    assert!(failing_report().cases.iter().any(|case| case.address_space.is_some()));
}

#[test]
fn html_title_shows_outcome() {
    let title = |report: &Report| {
        let html = report.html().unwrap();
        let (_, rest) = html.split_once("<title>").unwrap();
        rest.split_once("</title>").unwrap().0.to_owned()
    };
    let passed = report(FaultPlan::none());
    assert_eq!(title(&passed), "Nothing failed: simulation, extension 1.15");
    let failing = failing_report();
    let cases_run = failing.summary.failed + failing.summary.passed;
    let expected = format!("{} of {cases_run} cases failed: ", failing.summary.failed);
    assert!(title(&failing).starts_with(&expected), "{}", title(&failing));
}

#[test]
fn html_loads_nothing_external() {
    let html = failing_report().html().unwrap();
    assert!(html.contains("default-src 'none'"));
    for address in ["src=\"", "href=\"", "url("] {
        for (position, _) in html.match_indices(address) {
            let target = &html[position + address.len()..][..5];
            assert!(target.starts_with('#') || target == "data:", "{address}{target}");
        }
    }
    for word in ["@import", "<link", "<iframe", "<object", "http://", "https://"] {
        assert!(!html.contains(word), "{word}");
    }
}

/// Replaces texts of the run, the runtime, the agents and the cases in a report by [`HOSTILE`].
fn with_hostile_text(mut report: Report) -> Report {
    let hostile = || HOSTILE.to_owned();
    let run = report.run.as_mut().unwrap();
    (run.tool, run.kernel, run.profile) = (hostile(), hostile(), hostile());
    run.filters = vec![hostile()];
    let runtime = &mut report.runtime;
    (runtime.name, runtime.version, runtime.extension) = (hostile(), hostile(), hostile());
    (runtime.path, runtime.build) = (Some(HOSTILE.into()), Some(hostile()));
    (runtime.virtual_memory, runtime.without_virtual_memory) = (Some(false), Some(hostile()));
    runtime.missing_functions = Some(vec![hostile()]);
    runtime.quirks = Some(vec![QuirkDescription { name: hostile(), issue: hostile() }]);
    for agent in &mut report.agents {
        (agent.name, agent.kind, agent.product) = (hostile(), hostile(), hostile());
        (agent.enforcement, agent.uuid) = (hostile(), hostile());
        (agent.isa, agent.pci) = (Some(hostile()), Some(hostile()));
        for pool in &mut agent.pools {
            (pool.segment, pool.flags) = (hostile(), vec![hostile()]);
        }
        for link in agent.peers.iter_mut().flat_map(|peer| &mut peer.links) {
            link.kind = hostile();
        }
    }
    for case in &mut report.cases {
        (case.name, case.source, case.detail) = (hostile(), hostile(), hostile());
        if case.status == Status::Fail {
            case.address_space = Some(format!("<svg xmlns='x'>{HOSTILE}</svg>"));
        }
    }
    report
}

#[test]
fn html_escapes_all_texts_of_a_report() {
    let report = failing_report();
    let plain = report.html().unwrap();
    let hostile = with_hostile_text(report).html().unwrap();
    for tag in ["<script", "</script", "<td", "</td", "<style", "<svg", "</svg"] {
        // All cases of the hostile report have the same name, so the page shows one group of cases instead of two, and
        // fewer bars.
        let (plain, hostile) = (plain.matches(tag).count(), hostile.matches(tag).count());
        assert!(hostile <= plain, "{tag}: {hostile} instead of {plain}");
    }
    assert_eq!(hostile.matches("<script").count(), 1);
    assert!(!hostile.contains("alert('1')") && !hostile.contains("<img src=x"));
    assert!(hostile.contains("&#60;script&#62;alert(&#39;1&#39;)"), "the text is shown, escaped");
    // Browsers execute no scripts of images from data URLs.
    let pictures = hostile.split("data:image/svg+xml,").skip(1);
    for picture in pictures.filter_map(|rest| rest.split_once('"')).map(|(picture, _)| picture) {
        let is_escaped = |c: char| c.is_ascii_alphanumeric() || "%-._~".contains(c);
        assert!(picture.chars().all(is_escaped), "{picture}");
    }
}

#[test]
fn html_accepts_minimal_report() {
    let mut report = report(FaultPlan::none());
    report.cases.clear();
    report.agents.clear();
    report.run = None;
    let runtime = &mut report.runtime;
    (runtime.driver, runtime.quirks, runtime.missing_functions) = (None, None, None);
    let html = report.html().unwrap();
    assert!(html.contains("<h2 id=\"runtime\">") && !html.contains("<h2 id=\"cases\">"));
    assert!(
        !html.contains("No hardware"),
        "an unknown driver must not be reported as missing hardware"
    );
    report.runtime.driver = Some(Driver::Emulated);
    assert!(report.html().unwrap().contains("the GPUs are emulated"));
    report.runtime.driver = Some(Driver::Amdkfd);
    assert!(!report.html().unwrap().contains("No hardware"));
}

#[test]
fn html_shows_provenance_and_planned_faults() {
    let mut report = failing_report();
    let reproduce = "<code>hsa-vmm conform --filter map.";
    let html = report.html().unwrap();
    assert!(html.contains(reproduce) && !html.contains("class=\"faults\""), "{html}");
    let rule = "hsa_amd_vmem_map=<b>".to_owned();
    let planned =
        PlannedFault { by: FaultTarget::Runtime, rule, happened: Some(true), count: None };
    report.run.as_mut().unwrap().provenance = Some(Provenance {
        command: format!("hsa-vmm {HOSTILE}"),
        reproduce: "hsa-vmm emulate --gpus 2 -- hsa-vmm conform".to_owned(),
        environment: [("HSA_XNACK".to_owned(), HOSTILE.to_owned())].into(),
        planned_faults: vec![planned],
        machine: Some(TestEnvironment::Simulation),
        ..Provenance::default()
    });
    let html = report.html().unwrap();
    assert!(html.contains("class=\"faults\" role=\"alert\""), "{html}");
    assert!(html.contains("hsa_amd_vmem_map=&#60;b&#62; (simulated runtime)"), "{html}");
    assert!(html.contains("<code>hsa-vmm emulate --gpus 2 -- hsa-vmm conform --filter map."));
    assert!(html.contains("HSA_XNACK") && !html.contains(HOSTILE), "{html}");
}

#[test]
fn html_names_each_cause_once() {
    let report = failing_report();
    let causes = report.causes();
    let largest = causes.iter().max_by_key(|cause| cause.cases.len()).unwrap();
    assert!(largest.cases.len() > 5, "{causes:?}");
    let html = report.html().unwrap();
    let head = format!("{} cases: {}", largest.cases.len(), largest.description);
    assert_eq!(html.matches(&head).count(), 1, "{head}");
    assert_eq!(html.matches("<details").count(), html.matches("</details>").count());
}
