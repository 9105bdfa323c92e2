//! Owned values on the simulation whose mappings were replaced by another owner's.

mod machine;
mod successor;

use machine::{Library, Machine};

/// On every release.
fn on_each(test: impl Fn(&Library)) {
    for (release, config) in machine::releases() {
        println!("{release}");
        test(&Machine::new(config));
    }
}

#[test]
fn mapping_never_acts_on_its_successor() {
    on_each(successor::of_mapping);
}

#[test]
fn growable_buffer_never_acts_on_its_successor() {
    on_each(successor::of_growable_buffer);
}

#[test]
fn ring_buffer_never_acts_on_its_successor() {
    on_each(successor::of_ring_buffer);
}

#[test]
fn pausable_buffer_never_acts_on_its_successor() {
    on_each(successor::of_pausable_buffer);
}

#[test]
fn paged_buffer_never_acts_on_its_successor() {
    on_each(successor::of_paged_buffer);
}

#[test]
fn area_memory_never_acts_on_its_successor() {
    on_each(successor::of_area_memory);
}

#[test]
fn reservation_never_acts_on_its_successor() {
    on_each(successor::of_reservation);
}
