//! What the program that contains the library does: closes standard streams, unloads the library, cancels threads.

use crate::installed::install;
use crate::program::{Language, Program, expect_success, library_folder};
use hsa_rocr::{Emulation, test};

/// If standard error is closed, no memory gets its number, so that the log is not written into memory.
#[test]
fn log_is_not_written_into_memory() {
    let program = Program::compile("tests/c/closed_streams.c", Language::C99, &[]);
    for generation in ["a", "b", "c", "d", "e"] {
        for call in ["allocate", "share", "export", "import"] {
            let mut command = program.on_simulation(&format!("gpus=1,era={generation}"));
            let output = command.arg(call).env("HSA_VMM_LOG", "warn").output().unwrap();
            let description = format!("{call}, {generation}");
            assert_eq!(expect_success(&output, &description), "all checks passed\n");
        }
    }
}

/// A second load of the library finds the open runtime of the first, as with HIP.
#[test]
fn dlclose_keeps_the_library_loaded() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path());
    // With `--as-needed`, the program is not linked to the library.
    let flags = ["-ldl", "-Wl,--as-needed"];
    let program = Program::compile("tests/c/unload.c", Language::C99, &flags);
    let libraries =
        [folder.path().join("lib/libhsavmm.so.1"), library_folder().join("libhsavmm.so")];
    for library in libraries {
        let output = program.on_simulation("gpus=1").arg(&library).output().unwrap();
        let description = library.display().to_string();
        assert_eq!(expect_success(&output, &description), "all checks passed\n");
    }
}

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
