//! Runs the examples.

#[path = "../examples/areas.rs"]
mod areas;
#[path = "../examples/cycle.rs"]
mod cycle;
#[path = "../examples/grow.rs"]
mod grow;
#[path = "../examples/host.rs"]
mod host;
#[path = "../examples/ipc.rs"]
mod ipc;
#[path = "../examples/pages.rs"]
mod pages;
#[path = "../examples/pause.rs"]
mod pause;
#[path = "../examples/queue.rs"]
mod queue;
#[path = "../examples/ranges.rs"]
mod ranges;
#[path = "../examples/report.rs"]
mod report;
#[path = "../examples/retire.rs"]
mod retire;
#[path = "../examples/ring.rs"]
mod ring;
#[path = "../examples/share.rs"]
mod share;

#[test]
fn areas_shows_every_combination_of_flags() {
    areas::main().unwrap();
}

#[test]
fn cycle_runs_from_reservation_to_reuse() {
    cycle::main().unwrap();
}

#[test]
fn ranges_reads_segments() {
    ranges::main().unwrap();
}

#[test]
fn report_prints_reservations() {
    report::main().unwrap();
}

#[test]
fn grow_draws_a_growing_buffer() {
    grow::main().unwrap();
}

#[test]
fn ring_wraps_around() {
    ring::main().unwrap();
}

#[test]
fn retire_unmaps_after_a_copy() {
    retire::main().unwrap();
}

#[test]
fn host_shows_the_same_bytes_to_all_agents() {
    host::main().unwrap();
}

#[test]
fn share_shows_both_processes() {
    share::run(&["share_shows_both_processes", "--exact", "--nocapture"]).unwrap();
}

#[test]
fn ipc_shows_both_processes() {
    ipc::run(&["ipc_shows_both_processes", "--exact", "--nocapture"]).unwrap();
}

#[test]
fn pages_draws_a_cache() {
    pages::main().unwrap();
}

#[test]
fn pause_pauses_and_resumes() {
    pause::main().unwrap();
}

#[test]
fn queue_needs_a_loaded_runtime() {
    queue::main().unwrap();
}
