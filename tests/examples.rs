//! The examples run to their end.

#[path = "../examples/agents.rs"]
mod agents;
#[path = "../examples/aliases.rs"]
mod aliases;
#[path = "../examples/areas.rs"]
mod areas;
#[path = "../examples/cycle.rs"]
mod cycle;
#[path = "../examples/grow.rs"]
mod grow;
#[path = "../examples/ipc.rs"]
mod ipc;
#[path = "../examples/pages.rs"]
mod pages;
#[path = "../examples/pause.rs"]
mod pause;
#[path = "../examples/queue.rs"]
mod queue;
#[path = "../examples/report.rs"]
mod report;
#[path = "../examples/ring.rs"]
mod ring;
#[path = "../examples/share.rs"]
mod share;

#[test]
fn agents_shows_what_is_there() {
    agents::main().unwrap();
}

#[test]
fn aliases_draws_one_memory_at_many_addresses() {
    aliases::main().unwrap();
}

#[test]
fn areas_shows_every_combination_of_flags() {
    areas::main().unwrap();
}

#[test]
fn cycle_goes_from_reservation_to_reuse() {
    cycle::main().unwrap();
}

#[test]
fn report_prints_what_is_held() {
    report::main().unwrap();
}

#[test]
fn grow_draws_a_buffer_that_stays_where_it_is() {
    grow::main().unwrap();
}

#[test]
fn ring_writes_over_its_end() {
    ring::main().unwrap();
}

#[test]
fn share_shows_both_sides() {
    share::run(&["share_shows_both_sides", "--exact", "--nocapture"]).unwrap();
}

#[test]
fn ipc_shows_both_sides() {
    ipc::run(&["ipc_shows_both_sides", "--exact", "--nocapture"]).unwrap();
}

#[test]
fn pages_draws_a_cache() {
    pages::main().unwrap();
}

#[test]
fn pause_goes_to_sleep_and_wakes_up() {
    pause::main().unwrap();
}

#[test]
fn queue_says_that_the_simulation_has_none() {
    queue::main().unwrap();
}
