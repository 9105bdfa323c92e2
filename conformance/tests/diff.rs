//! Checks that a comparison of two reports finds each kind of difference, and nothing else.

use hsa_sim::{Config, FaultPlan, Generation};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm_conformance::describe::QuirkDescription;
use hsa_vmm_conformance::diff::{CaseChangeKind, Diff};
use hsa_vmm_conformance::{Options, Report, Status, run};

const EXPORT: &str = "hsa_amd_vmem_export_shareable_handle";

fn conform(config: Config) -> Report {
    let runtime = Runtime::simulated(config).unwrap();
    let filters = vec!["share.*".to_owned(), "map.size.*".to_owned()];
    let options = Options { filters, count_descriptors: false, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

fn report() -> Report {
    conform(Config::mi300x(2))
}

/// Returns the sentences for a change to a report, in both directions.
fn sentences(change: impl FnOnce(&mut Report)) -> [Vec<String>; 2] {
    let before = report();
    let mut after = before.clone();
    change(&mut after);
    let diffs = [Diff::of(&before, &after), Diff::of(&after, &before)];
    assert!(diffs.iter().all(Diff::differs), "{diffs:?}");
    diffs.map(|diff| diff.sentences())
}

/// Returns the only sentence of each direction, apart from the sentence that all cases have equal results.
fn single_sentence(change: impl FnOnce(&mut Report)) -> [String; 2] {
    sentences(change).map(|sentences| match &sentences[..] {
        [sentence, cases] if cases.ends_with("cases have the same result.") => sentence.clone(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn diff_of_equal_reports_is_empty() {
    let report = report();
    let all = report.cases.len();
    let diff = Diff::of(&report, &report);
    assert!(!diff.differs());
    assert_eq!(diff.new_failures().count(), 0);
    let sentences = [
        "Runtime and agents are the same.".to_owned(),
        format!("All {all} cases have the same result."),
    ];
    assert_eq!(diff.sentences(), sentences);
}

#[test]
fn diff_ignores_values_that_vary_by_run() {
    let mut before = report();
    before.cases.iter_mut().for_each(|case| case.duration_us = 1_000);
    let mut after = report();
    let run = after.run.as_mut().unwrap();
    run.began += std::time::Duration::from_secs(86_400);
    for case in &mut after.cases {
        case.duration_us = 2_900;
    }
    after.cases[0].duration_us = 99_000;
    for agent in &mut after.agents {
        agent.uuid = "GPU-of-another-machine".to_owned();
        agent.pci = Some("0000:99:00.0".to_owned());
    }
    let diff = Diff::of(&before, &after);
    assert!(!diff.differs(), "{:?}", diff.sentences());
    assert_eq!(diff.timings.notable, []);
}

#[test]
fn diff_reports_run_options() {
    let [forward, backward] = single_sentence(|report| {
        let run = report.run.as_mut().unwrap();
        run.profile = HipProfile::Hip6.to_string();
        run.kernel = "7.0".to_owned();
    });
    assert!(forward.starts_with("The runs differ: profile hip6 instead of hip7; kernel 7.0 inst"));
    assert!(
        backward.starts_with("The runs differ: profile hip7 instead of hip6; kernel "),
        "{backward}"
    );
}

#[test]
fn diff_reports_features_and_versions() {
    let [forward, backward] = single_sentence(|report| {
        report.runtime.extension = "1.99".to_owned();
        report.runtime.dmabuf = Some(false);
    });
    let expected = "The runtimes differ: AMD extension 1.99 instead of 1.15; dma-buf export no \
                    instead of yes.";
    assert_eq!(forward, expected);
    assert!(
        backward.contains("1.15 instead of 1.99") && backward.contains("export yes instead of no")
    );
}

#[test]
fn diff_ignores_unknown_values() {
    let before = report();
    let mut after = before.clone();
    after.run = None;
    let runtime = &mut after.runtime;
    (runtime.dmabuf, runtime.quirks, runtime.missing_functions) = (None, None, None);
    (runtime.build, runtime.driver) = (None, None);
    for diff in [Diff::of(&before, &after), Diff::of(&after, &before)] {
        assert!(!diff.differs(), "{:?}", diff.sentences());
    }
}

#[test]
fn diff_reports_functions() {
    let sentences = single_sentence(|report| {
        report.runtime.missing_functions.as_mut().unwrap().push("hsa_amd_memory_lock".to_owned());
    });
    let expected = [
        "A exports hsa_amd_memory_lock, B does not.",
        "B exports hsa_amd_memory_lock, A does not.",
    ];
    assert_eq!(sentences, expected);
}

#[test]
fn diff_reports_quirks_by_name() {
    let sentences = single_sentence(|report| {
        let quirks = report.runtime.quirks.as_mut().unwrap();
        // Another version may cite another issue for the same quirk.
        quirks[0].issue = "elsewhere".to_owned();
        quirks.push(QuirkDescription { name: "goes_wrong".to_owned(), issue: "a#1".to_owned() });
    });
    let expected = [
        "1 workaround is needed only with B: goes_wrong (a#1).",
        "1 workaround is needed only with A: goes_wrong (a#1).",
    ];
    assert_eq!(sentences, expected);
}

#[test]
fn diff_groups_agents_with_equal_differences() {
    let [forward, _] = single_sentence(|report| {
        for agent in report.agents.iter_mut().skip(1) {
            agent.enforcement = "enforced".to_owned();
            agent.pools[0].granule = 2 << 20;
            agent.pools.retain(|pool| pool.segment != "group");
        }
    });
    let expected = "GPU 0, GPU 1: permissions enforced instead of recorded; pool global coarse: \
                    granule 2 MiB instead of 4 KiB; pool group only in A.";
    assert_eq!(forward, expected);
}

#[test]
fn diff_ignores_order_of_pools() {
    let before = report();
    let mut after = before.clone();
    after.agents.iter_mut().for_each(|agent| agent.pools.reverse());
    assert!(!Diff::of(&before, &after).differs());
}

#[test]
fn diff_reports_added_and_removed_agents() {
    let (two, three) = (conform(Config::mi300x(2)), conform(Config::mi300x(3)));
    let sentences = Diff::of(&two, &three).sentences();
    assert!(sentences.contains(&"GPU 2 is only in B.".to_owned()), "{sentences:?}");
    let sentences = Diff::of(&three, &two).sentences();
    assert!(sentences.contains(&"GPU 2 is only in A.".to_owned()), "{sentences:?}");
    // The other agents have one peer fewer.
    assert!(sentences.iter().any(|it| it.contains("GPU 0, GPU 1: link to GPU 2 only in A")));
}

/// Returns a report whose first case has this result.
fn with_result(status: Status, detail: &str) -> Report {
    let mut report = report();
    report.cases[0].status = status;
    report.cases[0].detail = detail.to_owned();
    report
}

#[test]
fn diff_classifies_all_pairs_of_statuses() {
    let statuses = [Status::Pass, Status::Fail, Status::Skip, Status::Known];
    for from in statuses {
        for to in statuses {
            let (a, b) = (with_result(from, "a reason"), with_result(to, "a reason"));
            let diff = Diff::of(&a, &b);
            assert_eq!(
                diff.new_failures().count() == 1,
                from != Status::Fail && to == Status::Fail
            );
            if from == to {
                assert!(!diff.differs(), "{from}");
                continue;
            }
            let kind = match to {
                Status::Pass => CaseChangeKind::PassesNow,
                Status::Fail => CaseChangeKind::FailsNow,
                Status::Skip => CaseChangeKind::SkippedNow,
                Status::Known => CaseChangeKind::KnownNow,
            };
            let [change] = &diff.cases[..] else { panic!("{:?}", diff.cases) };
            assert_eq!((change.kind, &change.name), (kind, &a.cases[0].name));
            assert_eq!(diff.same, a.cases.len() - 1);
            let sentences = diff.sentences();
            assert!(sentences[1].starts_with("1 case "), "{sentences:?}");
            assert!(sentences[1].contains(&a.cases[0].name), "{sentences:?}");
            let has_reason = matches!(to, Status::Skip | Status::Known);
            assert_eq!(sentences[1].contains("(a reason)"), has_reason, "{sentences:?}");
        }
    }
}

#[test]
fn diff_ignores_numbers_in_details() {
    let fails = |detail| with_result(Status::Fail, detail);
    let a = fails("0x7f00 holds 17 instead of 42");
    assert!(!Diff::of(&a, &fails("0x7fab holds 3 instead of 42")).differs());
    let diff = Diff::of(&a, &fails("hung: did not end within 30 s"));
    assert_eq!(diff.cases[0].kind, CaseChangeKind::ReasonDiffers);
    assert_eq!(diff.new_failures().count(), 0, "the case also fails in A");
    assert!(diff.sentences()[1].starts_with("1 case has the same status for another reason: "));
}

#[test]
fn diff_reports_cases_only_in_one_report() {
    let complete = report();
    let mut shortened = complete.clone();
    let removed = shortened.cases.remove(0).name;
    let diff = Diff::of(&complete, &shortened);
    assert_eq!(diff.sentences()[1], format!("1 case is only in A: {removed}."));
    assert_eq!(
        diff.sentences()[2],
        format!("The other {} cases have the same result.", shortened.cases.len())
    );
    assert_eq!(
        Diff::of(&shortened, &complete).sentences()[1],
        format!("1 case is only in B: {removed}.")
    );

    let failing = with_result(Status::Fail, "no");
    let diff = Diff::of(&shortened, &failing);
    assert_eq!(diff.sentences()[1], format!("1 case is only in B: {removed} (fails)."));
    assert_eq!(diff.new_failures().count(), 1);
}

#[test]
fn diff_without_cases_compares_runtimes() {
    let complete = report();
    let mut info = report();
    info.cases.clear();
    for diff in [Diff::of(&complete, &info), Diff::of(&info, &complete), Diff::of(&info, &info)] {
        assert!(!diff.differs());
        assert!(
            diff.sentences()[1].starts_with("Cases are not compared"),
            "{:?}",
            diff.sentences()
        );
    }
}

#[test]
fn new_failures_excludes_repaired_cases() {
    let passing = report();
    let broken = conform(Config::mi300x(2).with_faults(FaultPlan::none().always(EXPORT, 0x1000)));
    let diff = Diff::of(&passing, &broken);
    let failed = broken.summary.failed;
    assert!(failed > 7 && passing.summary.failed == 0);
    assert_eq!(diff.new_failures().count(), failed);
    let sentences = diff.sentences();
    assert!(
        sentences[1].starts_with(&format!("{failed} cases fail in B and not in A: ")),
        "{sentences:?}"
    );
    // The sentence does not name all cases.
    assert!(sentences[1].ends_with(&format!(" and {} more.", failed - 6)), "{sentences:?}");
    let repaired = Diff::of(&broken, &passing);
    assert_eq!(repaired.new_failures().count(), 0);
    assert!(
        repaired.sentences()[1].starts_with(&format!("{failed} cases pass in B and not in A: "))
    );
}

#[test]
fn diff_reports_large_duration_changes() {
    let mut a = report();
    a.cases.iter_mut().for_each(|case| case.duration_us = 1_000);
    let mut b = a.clone();
    b.cases[0].duration_us = 99_000;
    b.cases[1].duration_us = 2_900;
    assert!(Diff::of(&a, &b).timings.sentences().is_empty());
    b.cases[0].duration_us = 250_000;
    let (name, us) = (b.cases[0].name.clone(), b.cases[0].duration_us);
    let diff = Diff::of(&a, &b);
    assert!(!diff.differs());
    assert_eq!((diff.timings.notable[0].name.as_str(), diff.timings.notable[0].b_us), (&*name, us));
    assert_eq!(diff.timings.sentences(), [format!("{name} takes 250.0 ms instead of 1.0 ms.")]);
    // An increase from 10 s to 10.2 s is not notable.
    a.cases[0].duration_us = 10_000_000;
    b.cases[0].duration_us = 10_200_000;
    assert!(Diff::of(&a, &b).timings.sentences().is_empty());

    b.cases.iter_mut().for_each(|case| case.duration_us = 4_000);
    a.cases[0].duration_us = 1_000;
    let sentences = Diff::of(&a, &b).timings.sentences();
    assert_eq!(sentences, ["The cases of B take 4.0 times as long (median)."]);
    let sentences = Diff::of(&b, &a).timings.sentences();
    assert_eq!(sentences, ["The cases of A take 4.0 times as long (median)."]);
}

#[test]
fn diff_of_generations_names_their_features() {
    let [a, d] = [Generation::A, Generation::D]
        .map(|generation| conform(Config::mi300x(2).with_generation(generation)));
    let diff = Diff::of(&a, &d);
    let names =
        |quirks: &[QuirkDescription]| quirks.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    let quirks_of_a = [
        "unmap_of_several_fails",
        "cpu_unmap_leaves_hole",
        "grant_without_descriptor_aborts",
        "some_calls_take_no_lock",
        "ipc_server_outlives_stop",
    ];
    assert_eq!(names(&diff.quirks.a), quirks_of_a);
    let new = ["unmap_keeps_memory", "import_is_lazy", "import_needs_descriptor"];
    assert_eq!(names(&diff.quirks.b), new);
    assert_eq!(diff.agents, []);
    let cases: Vec<_> = diff.cases.iter().map(|case| (case.kind, case.name.as_str())).collect();
    assert_eq!(cases, [(CaseChangeKind::KnownNow, "share.import.not_memory")]);
}
