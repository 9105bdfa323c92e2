//! What is still there at the end is named in the log.

use super::*;
use hsa_vmm::{Allocation, Reservation};
use std::cell::RefCell;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what this thread warns of.
struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("hsa_vmm")
    }
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        SEEN.with_borrow_mut(|seen| seen.push(line.0));
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

/// The process's only subscriber: what a thread's own would be asked for, another thread may have
/// decided by then (tracing asks once for each place in the program, on the thread that comes by first).
fn warnings(act: impl FnOnce()) -> Vec<String> {
    static ONLY: Once = Once::new();
    ONLY.call_once(|| tracing::subscriber::set_global_default(Warnings).expect("no other is set"));
    SEEN.take();
    act();
    SEEN.take()
}

#[test]
fn what_was_not_given_back_is_named() {
    let seen = warnings(|| {
        let machine = machine();
        let (base, handles) = cache(&machine, 2, &[0]);
        machine.vmm.name_reservation(base, "kv cache").unwrap();
        machine.vmm.name_handle(handles[0], "page 0").unwrap();
        // This one is only mapped: it goes with its reservation.
        let (_, others) = cache(&machine, 1, &[0]);
        machine.vmm.release(others[0]).unwrap();
        machine.close();
    });
    let leaks: Vec<_> = seen.iter().filter(|line| line.contains("leaked")).collect();
    assert_eq!(leaks.len(), 3, "{seen:?}");
    let one = |words: &[&str]| {
        let all = |line: &&&String| words.iter().all(|word| line.contains(word));
        assert_eq!(leaks.iter().filter(all).count(), 1, "{words:?} in {leaks:?}");
    };
    one(&["a reservation was leaked", "kv cache", "mappings=1", "size=4194304"]);
    one(&["physical memory was leaked", "page 0", "references=1"]);
    one(&["a reservation was leaked", "name=\"\"", "mappings=1", "size=2097152"]);
}

#[test]
fn what_cleans_up_after_itself_is_no_leak() {
    let seen = warnings(|| {
        let machine = machine();
        let reservation = Reservation::of(GRANULE).reserve(&machine.vmm).unwrap();
        let memory = Allocation::create(&machine.vmm, GRANULE, &machine.on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        // The last of them ends the library's use of the runtime.
        drop((reservation, memory, machine));
        drop(mapping);
    });
    assert!(seen.is_empty(), "{seen:?}");
}
