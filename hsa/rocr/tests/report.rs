//! The output of a test on a release is printed, also if it passes.

use hsa_rocr::{Emulation, again, test};

#[test]
#[ignore = "the test below starts it"]
fn reports() {
    test::on_each_release("reports", &Emulation::gpus(1), |fixture| {
        test::report(&format!("seen on {}", fixture.release()));
    });
}

#[test]
fn report_of_a_passing_test_is_printed() {
    let Some(installations) = test::installations("report_of_a_passing_test_is_printed") else {
        return;
    };
    let output =
        again().unwrap().args(["reports", "--exact", "--include-ignored"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let reported = String::from_utf8_lossy(&output.stderr);
    for installation in installations {
        let line = format!("seen on {}", installation.release());
        assert_eq!(reported.lines().filter(|seen| *seen == line).count(), 1, "{reported}");
    }
}
