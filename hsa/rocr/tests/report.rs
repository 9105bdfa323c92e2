//! Reports of a test on a release are printed, even if the test passes.

use hsa_rocr::{Emulation, restart, test};

#[test]
#[ignore = "started by the test below"]
fn reports() {
    test::on_each_release("reports", &Emulation::gpus(1), |fixture| {
        test::report(&format!("reported on {}", fixture.release()));
    });
}

#[test]
fn report_of_a_passing_test_is_printed() {
    let Some(installations) = test::installations("report_of_a_passing_test_is_printed") else {
        return;
    };
    for (long, releases) in [("1", installations.len()), ("", 1)] {
        let mut command = restart().unwrap();
        command.args(["reports", "--exact", "--include-ignored"]).env("HSA_VMM_LONG", long);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let reported = String::from_utf8_lossy(&output.stderr);
        let is_reported =
            |line: String| reported.lines().filter(|reported| *reported == line).count() == 1;
        let lines = installations
            .iter()
            .map(|installation| format!("reported on {}", installation.release()));
        assert_eq!(lines.filter(|line| is_reported(line.clone())).count(), releases, "{reported}");
        assert_eq!(reported.contains("HSA_VMM_LONG=1 runs it on all"), long.is_empty());
    }
}
