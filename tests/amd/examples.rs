//! Runs the examples.

use crate::amd_runtime::{on_each, set_variable};

#[path = "../../examples/agents.rs"]
mod agents;
#[path = "../../examples/aliases.rs"]
mod aliases;
#[path = "../../examples/areas.rs"]
mod areas;
#[path = "../../examples/cycle.rs"]
mod cycle;
#[path = "../../examples/grow.rs"]
mod grow;
#[path = "../../examples/pages.rs"]
mod pages;
#[path = "../../examples/pause.rs"]
mod pause;
#[path = "../../examples/queue.rs"]
mod queue;
#[path = "../../examples/report.rs"]
mod report;
#[path = "../../examples/ring.rs"]
mod ring;

/// Runs each example on every release. The example finds the runtime as a user's program would.
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
    agents_lists_agents: agents::main();
    aliases_draws_aliased_memory: aliases::main();
    areas_shows_every_combination_of_flags: areas::main();
    cycle_runs_from_reservation_to_reuse: cycle::main();
    report_prints_reservations: report::main();
    grow_draws_a_growing_buffer: grow::main();
    ring_wraps_around: ring::main();
    pages_draws_a_cache: pages::main();
    queue_copies_on_a_signal_of_its_own: queue::main();
    pause_pauses_and_resumes: pause::main();
}
