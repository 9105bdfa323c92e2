//! The examples run to their end.

use crate::amd_runtime::on_each;
use hsa_rocr::test::Ground;

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
#[path = "../../examples/report.rs"]
mod report;
#[path = "../../examples/ring.rs"]
mod ring;

fn named(ground: &Ground) {
    // SAFETY: a forked child has one thread.
    unsafe { std::env::set_var("HSA_VMM_RUNTIME", ground.runtime()) };
}

#[test]
fn agents_shows_what_is_there() {
    on_each("examples::agents_shows_what_is_there", |ground| {
        named(ground);
        agents::main().unwrap();
    });
}

#[test]
fn aliases_draws_one_memory_at_many_addresses() {
    on_each("examples::aliases_draws_one_memory_at_many_addresses", |ground| {
        named(ground);
        aliases::main().unwrap();
    });
}

#[test]
fn areas_shows_every_combination_of_flags() {
    on_each("examples::areas_shows_every_combination_of_flags", |ground| {
        named(ground);
        areas::main().unwrap();
    });
}

#[test]
fn cycle_goes_from_reservation_to_reuse() {
    on_each("examples::cycle_goes_from_reservation_to_reuse", |ground| {
        named(ground);
        cycle::main().unwrap();
    });
}

#[test]
fn report_prints_what_is_held() {
    on_each("examples::report_prints_what_is_held", |ground| {
        named(ground);
        report::run(None).unwrap();
    });
}

#[test]
fn grow_draws_a_buffer_that_stays_where_it_is() {
    on_each("examples::grow_draws_a_buffer_that_stays_where_it_is", |ground| {
        named(ground);
        grow::main().unwrap();
    });
}

#[test]
fn ring_writes_over_its_end() {
    on_each("examples::ring_writes_over_its_end", |ground| {
        named(ground);
        ring::main().unwrap();
    });
}
