//! What a test says on a release is heard, also if it passes.

use hsa_rocr::{Emulation, again, test};

#[test]
#[ignore = "the test below starts it"]
fn tells() {
    test::on_each_release("tells", &Emulation::gpus(1), |ground| {
        test::tell(&format!("seen on {}", ground.release()));
    });
}

#[test]
fn a_test_that_passes_is_heard() {
    let Some(installations) = test::installations("a_test_that_passes_is_heard") else { return };
    let output = again().unwrap().args(["tells", "--exact", "--include-ignored"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    for installation in installations {
        let line = format!("seen on {}", installation.release());
        assert_eq!(told.lines().filter(|told| *told == line).count(), 1, "{told}");
    }
}
