//! Runs the examples.

use crate::amd_runtime::{on_each, set_variable};
use hsa_rocr::{Emulation, test};
use std::env;
use std::process::Command;

#[path = "../../examples/areas.rs"]
mod areas;
#[path = "../../examples/cycle.rs"]
mod cycle;
#[path = "../../examples/grow.rs"]
mod grow;
#[path = "../../examples/ipc.rs"]
mod ipc;
#[path = "../../examples/pages.rs"]
mod pages;
#[path = "../../examples/pause.rs"]
mod pause;
#[path = "../../examples/queue.rs"]
mod queue;
#[path = "../../examples/ranges.rs"]
mod ranges;
#[path = "../../examples/report.rs"]
mod report;
#[path = "../../examples/retire.rs"]
mod retire;
#[path = "../../examples/ring.rs"]
mod ring;
#[path = "../../examples/share.rs"]
mod share;

/// Defines a test for each listed example. The test runs the example with `on_each`, and the example finds the runtime
/// as a user's program would.
macro_rules! examples {
    ($($name:ident: $run:expr;)+) => {
        $(
            #[test]
            fn $name() {
                on_each(concat!("examples::", stringify!($name)), |fixture| {
                    set_variable("HSA_VMM_RUNTIME", fixture.runtime().to_str().expect("a path"));
                    $run.unwrap();
                });
            }
        )+
    };
}

examples! {
    areas_shows_every_combination_of_flags: areas::main();
    cycle_runs_from_reservation_to_reuse: cycle::main();
    ranges_reads_segments: ranges::main();
    report_prints_reservations: report::main();
    grow_draws_a_growing_buffer: grow::main();
    ring_wraps_around: ring::main();
    pages_draws_a_cache: pages::main();
    queue_copies_on_a_signal_of_its_own: queue::main();
    pause_pauses_and_resumes: pause::main();
    retire_unmaps_after_a_copy: retire::main();
}

/// The environment variable that [`on_each_directly`] sets in each process that runs the example.
const IN_EXAMPLE: &str = "HSA_VMM_TEST_EXAMPLE";

/// Runs an example on every selected release, in a process that starts as `hsa-vmm emulate` starts programs. The
/// example starts this test program again as its second process.
fn on_each_directly(name: &str, run: fn(&[&str]) -> anyhow::Result<()>) {
    let arguments = [name, "--exact", "--nocapture"];
    if env::var_os(IN_EXAMPLE).is_some() {
        return run(&arguments).unwrap();
    }
    if test::uses_machine_driver() {
        return test::report(&format!("SKIPPED {name}: the emulated driver starts the program"));
    }
    for fetched in test::fetch_selected_releases(name) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(arguments).env(IN_EXAMPLE, "1");
        command.env("HSA_VMM_RUNTIME", fetched.runtime());
        Emulation::with_gpus(2).with_runtime_release(fetched).apply(&mut command).unwrap();
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {output:?}", fetched.release());
        assert!(text.contains("1 passed"), "{text}");
    }
}

#[test]
fn share_shows_both_processes() {
    on_each_directly("examples::share_shows_both_processes", share::run);
}

#[test]
fn ipc_shows_both_processes() {
    on_each_directly("examples::ipc_shows_both_processes", ipc::run);
}
