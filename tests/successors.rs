//! On the simulation: an owned value whose mapping was unmapped by address does not act on the mapping that replaces
//! it, the successor.

mod machine;
mod successor;

use machine::{Library, Machine};

/// Runs a test on every release.
fn run_on_releases(test: impl Fn(&Library)) {
    for (release, config) in machine::releases() {
        println!("{release}");
        test(&Machine::new(config));
    }
}

#[test]
fn mapping_never_acts_on_its_successor() {
    run_on_releases(successor::check_mapping);
}

#[test]
fn growable_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_growable_buffer);
}

#[test]
fn ring_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_ring_buffer);
}

#[test]
fn pausable_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_pausable_buffer);
}

#[test]
fn paged_buffer_never_acts_on_its_successor() {
    run_on_releases(successor::check_paged_buffer);
}

#[test]
fn area_memory_never_acts_on_its_successor() {
    run_on_releases(successor::check_area_memory);
}

#[test]
fn reservation_never_acts_on_its_successor() {
    run_on_releases(successor::check_reservation);
}
