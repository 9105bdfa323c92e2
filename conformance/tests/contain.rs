//! Tests invalid replies of a worker. The worker is a shell script.

use hsa_vmm::Runtime;
use hsa_vmm::simulation::Config;
use hsa_vmm_conformance::contain::{Containment, Event, NotRun, run};
use hsa_vmm_conformance::describe::describe;
use hsa_vmm_conformance::{Ended, Options, Report, Status};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Returns the command of a worker. The worker runs the shell command `start` first, and `stop` when the parent
/// requests a stop. For each case with `zero` in its name, the worker runs the shell command `zero`. The worker reports
/// all other cases as passed.
fn worker_command(start: &str, zero: &str, stop: &str) -> Command {
    let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
    let runtime = serde_json::to_string(&describe(&runtime)).unwrap();
    let script = format!(
        r#"passed='{{"Ended":{{"status":"pass","detail":"","duration_us":1}}}}'
        say() {{ printf '%s\n' "$1" >&0; }}
        {start}
        while read -r request; do
            case $request in
                *Stop*) {stop} ;;
                *zero*) {zero} ;;
                *) say "$passed" ;;
            esac
        done"#
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
        .env("STARTED", format!("{{\"Started\":{{\"note\":\"a shell\",\"runtime\":{runtime}}}}}"));
    command
}

const STARTS: &str = r#"say "$STARTED""#;
const STOPS: &str = r#"say '"Stopped"'; exit 0"#;

fn run_worker(start: &str, zero: &str, stop: &str) -> Result<Report, NotRun> {
    let filters = vec!["map.size".to_owned(), "map.handle".to_owned()];
    let options = Options { filters, ..Options::default() };
    let mut command = || Ok(worker_command(start, zero, stop));
    let time_limit = Duration::from_secs(3);
    let (mut notes, mut lost) = (Vec::new(), Vec::new());
    let stop = &AtomicBool::new(false);
    let logs = &mut Vec::new;
    let containment = Containment { command: &mut command, time_limit, logs, stop };
    let report = run(containment, &options, &mut |event| match event {
        Event::Started { note, .. } => notes.push(note.to_owned()),
        Event::Lost { case, .. } => lost.push(case.to_owned()),
        _ => {}
    });
    let reported =
        report.iter().flat_map(|report| &report.cases).filter(|case| case.lost.is_some());
    let reported: Vec<_> = reported.map(|case| case.name.clone()).collect();
    let reported_cases: Vec<_> =
        reported.into_iter().filter(|name| !name.starts_with("runtime.")).collect();
    assert_eq!(lost, reported_cases, "every lost case is reported as an event");
    assert_eq!(notes.len(), usize::from(report.is_ok()), "the start is reported once");
    report
}

#[test]
fn invalid_reply_fails_the_case() {
    let long = r#"say "$(head -c 100000 /dev/zero | tr '\0' x)""#;
    let replies = [
        ("say nonsense", Ended::InvalidMessage("nonsense".to_owned())),
        (long, Ended::InvalidMessage("x".repeat(80))),
        ("printf '\\377\\376\\n' >&0", Ended::InvalidMessage("\u{fffd}\u{fffd}".to_owned())),
        ("say '\"Stopped\"'", Ended::InvalidMessage("Stopped".to_owned())),
        ("exit 9", Ended::Exit(9)),
        ("kill -9 $$", Ended::Signal("SIGKILL".to_owned())),
        // The worker sends half a reply, and then exits or hangs.
        ("printf '{' >&0; exit 0", Ended::Exit(0)),
        ("printf '{' >&0; sleep 1000", Ended::TimeLimit(3000)),
        // The worker closes the socket but does not exit.
        ("exec <&-; sleep 1000", Ended::TimeLimit(3000)),
    ];
    let assert_cases_fail = |zero: &str, expected: Ended| {
        let report = run_worker(STARTS, zero, STOPS).unwrap();
        let failed: Vec<_> =
            report.cases.iter().filter(|case| case.status == Status::Fail).collect();
        let names: Vec<_> = failed.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["map.size.zero", "map.handle.zero", "unmap.size.zero"], "{zero}");
        for case in failed {
            let found = &case.lost.as_ref().unwrap().how;
            let is_expected = match (found, &expected) {
                (Ended::Signal(found), Ended::Signal(expected)) => found.starts_with(expected),
                (found, expected) => found == expected,
            };
            assert!(is_expected, "{zero}: {found:?}");
        }
        assert!(report.summary.passed > 5, "{zero}: only {} cases passed", report.summary.passed);
    };
    // Run the checks at the same time, because most checks wait for a time limit.
    std::thread::scope(|scope| {
        for (zero, expected) in replies {
            scope.spawn(move || assert_cases_fail(zero, expected));
        }
    });
}

#[test]
fn invalid_start_ends_the_run() {
    for (start, expected) in [
        ("exit 3", "while the runtime started, it ended the process with status 3"),
        ("say nonsense", "while the runtime started, it sent an invalid answer: \"nonsense\""),
        ("sleep 1000", "while the runtime started, it hung: did not end within 3 s"),
        (r#"say '{"NotStarted":{"error":"no GPU","no_runtime":true}}'"#, "no GPU"),
    ] {
        let error = run_worker(start, "", STOPS).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn invalid_stop_is_a_failed_case() {
    for (stop, expected) in [
        ("exit 0", "ended the process with status 0"),
        ("say '\"Stopped\"'; exit 4", "ended the process with status 4"),
        ("say '\"Stopped\"'; kill -SEGV $$", "crashed: SIGSEGV"),
        ("sleep 1000", "hung: did not end within 3 s"),
    ] {
        let report = run_worker(STARTS, "say \"$passed\"", stop).unwrap();
        let first = &report.cases[0];
        assert_eq!((first.name.as_str(), first.status), ("runtime.library.stops", Status::Fail));
        assert_eq!(first.detail, expected);
        assert_eq!(report.summary.failed, 1, "{stop}");
    }
}

#[test]
fn output_is_in_the_report_of_its_case() {
    let crash = "echo about to crash >&2; kill -SEGV $$";
    let report = run_worker(STARTS, crash, STOPS).unwrap();
    let lost: Vec<_> = report.cases.iter().filter(|case| case.lost.is_some()).collect();
    assert!(!lost.is_empty());
    for case in lost {
        assert_eq!(case.output.as_deref(), Some("about to crash"), "{}", case.name);
    }
    let others = report.cases.iter().filter(|case| case.lost.is_none());
    assert!(others.into_iter().all(|case| case.output.is_none()));
    assert!(report.junit().contains("<system-err>about to crash</system-err>"));
    let html = report.html().unwrap();
    assert!(html.contains("<pre tabindex=\"0\">about to crash</pre>"), "{html}");
}

/// Runs cases of which those with `zero` in their names hang. Stops the run at the first event for which `stops_at`
/// returns true. Returns the report, and the cases that were interrupted.
fn run_until(time_limit: Duration, stops_at: impl Fn(&Event<'_>) -> bool) -> (Report, Vec<String>) {
    let options = Options { filters: vec!["map.size".to_owned()], ..Options::default() };
    let mut command = || Ok(worker_command(STARTS, "sleep 1000", STOPS));
    let (stop, logs) = (&AtomicBool::new(false), &mut Vec::new);
    let containment = Containment { command: &mut command, time_limit, logs, stop };
    let mut interrupted = Vec::new();
    let report = run(containment, &options, &mut |event| {
        stop.fetch_or(stops_at(&event), Ordering::Relaxed);
        if let Event::Interrupted { case, .. } = event {
            interrupted.push(case.to_owned());
        }
    });
    (report.unwrap(), interrupted)
}

#[test]
fn stop_ends_a_case_long_before_its_limit() {
    let begun = Instant::now();
    let is_zero = |event: &Event<'_>| matches!(event, Event::Begin { case: "map.size.zero" });
    let (report, interrupted) = run_until(Duration::from_secs(600), is_zero);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(interrupted, ["map.size.zero"]);
    let case = report.cases.iter().find(|case| case.name == "map.size.zero").unwrap();
    assert_eq!((case.status, case.lost.is_none()), (Status::Skip, true), "{case:?}");
    assert!(report.interruption().is_some());
}

#[test]
fn hang_is_reported_although_the_run_stops() {
    // The run stops when the hang was detected, or during the last second of the time limit.
    for stops_at in [
        |event: &Event<'_>| matches!(event, Event::Lost { .. }),
        |event: &Event<'_>| matches!(event, Event::Begin { case: "map.size.zero" }),
    ] {
        let (report, interrupted) = run_until(Duration::from_secs(1), stops_at);
        let case = report.cases.iter().find(|case| case.name == "map.size.zero").unwrap();
        assert_eq!(case.status, Status::Fail, "{case:?}");
        assert_eq!(case.detail, "hung: did not end within 1 s");
        assert!(interrupted.is_empty(), "{interrupted:?}");
        assert!(report.interruption().is_some());
    }
}
