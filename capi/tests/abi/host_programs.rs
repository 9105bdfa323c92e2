//! What the program that contains the library does: cancels threads.

use crate::program::{Language, Program, expect_success};
use hsa_rocr::{Emulation, test};

#[test]
fn cancelled_thread_finishes_its_call() {
    let program = Program::compile("tests/c/cancelled.c", Language::C99, &["-pthread"]);
    let output = program.on_simulation("gpus=1").output().unwrap();
    assert_eq!(expect_success(&output, "simulation"), "all checks passed\n");
    for fetched in
        test::fetch_selected_releases("host_programs::cancelled_thread_finishes_its_call")
    {
        let output = program.on_release(fetched, &Emulation::with_gpus(1)).output().unwrap();
        let release = fetched.release().to_string();
        assert_eq!(expect_success(&output, &release), "all checks passed\n");
    }
}
