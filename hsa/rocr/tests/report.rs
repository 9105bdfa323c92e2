//! Reports of a test on a release are printed, even if the test passes.

use hsa_rocr::{Emulation, Release, restart_command, test};

#[test]
#[ignore = "started by the test below"]
fn prints_a_report() {
    test::run_on_releases("prints_a_report", &Emulation::with_gpus(1), |fixture| {
        test::report(&format!("reported on {}", fixture.release()));
    });
}

#[test]
fn report_of_a_passing_test_is_printed() {
    let Some(fetched_releases) = test::fetch_releases("report_of_a_passing_test_is_printed") else {
        return;
    };
    for (long, expected) in [("1", fetched_releases.len()), ("", 1)] {
        let mut command = restart_command().unwrap();
        command.args(["prints_a_report", "--exact", "--include-ignored"]).env("HSA_VMM_LONG", long);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let reported = String::from_utf8_lossy(&output.stderr);
        let is_reported =
            |line: String| reported.lines().filter(|reported| *reported == line).count() == 1;
        let lines =
            fetched_releases.iter().map(|fetched| format!("reported on {}", fetched.release()));
        assert_eq!(lines.filter(|line| is_reported(line.clone())).count(), expected, "{reported}");
        assert_eq!(reported.contains("HSA_VMM_LONG=1 runs it on all"), long.is_empty());
    }
}

#[test]
#[ignore = "started by the test below"]
fn fails_on_one_release() {
    test::run_on_releases("fails_on_one_release", &Emulation::with_gpus(1), |fixture| {
        assert_ne!(fixture.release(), Release::R6_4_3, "planned");
    });
}

/// With `HSA_VMM_LONG=1`, the test `fails_on_one_release` runs on all releases at the same time.
#[test]
fn failure_on_one_release_is_reported() {
    if test::fetch_releases("failure_on_one_release_is_reported").is_none() {
        return;
    }
    let mut command = restart_command().unwrap();
    command.args(["fails_on_one_release", "--exact", "--include-ignored", "--nocapture"]);
    let output = command.env("HSA_VMM_LONG", "1").output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(101), "{text}");
    assert!(text.contains("fails_on_one_release on 6.4.3 (exit status: 101)"), "{text}");
    assert!(text.contains("planned"), "{text}");
}
