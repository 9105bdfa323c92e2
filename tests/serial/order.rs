//! The search for a serial order.

use super::{Event, State};
use std::collections::HashSet;

/// Returns whether some serial order of the events has their results and leads from `before` to `after`.
///
/// Uses Wing and Gong's search. At each step, tries the next event of each thread, except an event that began after
/// another thread's next event had ended. Remembers the states from which the search has failed.
pub fn serial_order_exists(before: &State, threads: &[Vec<Event>], after: &State) -> bool {
    let done = vec![0; threads.len()];
    let mut failed = HashSet::new();
    search(before.clone(), done, threads, &after.clone().into_visible(), &mut failed)
}

fn search(
    state: State,
    done: Vec<usize>,
    threads: &[Vec<Event>],
    after: &State,
    failed: &mut HashSet<(State, Vec<usize>)>,
) -> bool {
    let next = || {
        let next_of =
            |(number, events): (usize, &Vec<Event>)| Some((number, *events.get(done[number])?));
        threads.iter().enumerate().filter_map(next_of)
    };
    let Some(first_end) = next().map(|(_, event)| event.ended).min() else {
        return state.into_visible() == *after;
    };
    if failed.contains(&(state.clone(), done.clone())) {
        return false;
    }
    for (number, event) in next().filter(|(_, event)| event.begun <= first_end) {
        let mut next_state = state.clone();
        if next_state.try_apply(event.operation, event.outcome) {
            let mut done = done.clone();
            done[number] += 1;
            if search(next_state, done, threads, after, failed) {
                return true;
            }
        }
    }
    failed.insert((state, done));
    false
}

#[cfg(test)]
mod tests {
    use super::super::{Operation, Outcome, Reason, Slot, SlotRange};
    use super::*;

    const SLOT: Slot = Slot { reservation: 0, number: 0 };
    const MAP: Operation = Operation::Map { slot: SLOT, handle: 0 };
    const UNMAP: Operation = Operation::Unmap { range: SlotRange { first: SLOT, count: 1 } };
    const READ: Operation = Operation::Read { slot: SLOT };

    fn event(operation: Operation, outcome: Outcome, begun: u64, ended: u64) -> Event {
        Event { operation, outcome, begun, ended }
    }

    fn state_after(operations: &[Operation]) -> State {
        let mut state = State::default();
        assert!(operations.iter().all(|&operation| state.try_apply(operation, Outcome::Done)));
        state
    }

    fn has_serial_order(threads: &[Vec<Event>], end: &State) -> bool {
        serial_order_exists(&State::default(), threads, end)
    }

    #[test]
    fn concurrent_events_are_unordered() {
        let rejected = Outcome::Rejected(Reason::NotMapped);
        let map = vec![event(MAP, Outcome::Done, 0, 3)];
        let unmap = |outcome| vec![event(UNMAP, outcome, 1, 2)];
        assert!(has_serial_order(&[map.clone(), unmap(rejected)], &state_after(&[MAP])));
        assert!(has_serial_order(&[map.clone(), unmap(Outcome::Done)], &state_after(&[])));
        assert!(
            !has_serial_order(&[map.clone(), unmap(rejected)], &state_after(&[])),
            "the map is lost"
        );
        assert!(
            !has_serial_order(&[map, unmap(Outcome::Done)], &state_after(&[MAP])),
            "the mapping returned after its unmap"
        );
    }

    #[test]
    fn ended_events_come_first() {
        let rejected = Outcome::Rejected(Reason::NotMapped);
        let unmap_after_map =
            [vec![event(MAP, Outcome::Done, 0, 1)], vec![event(UNMAP, rejected, 2, 3)]];
        assert!(!has_serial_order(&unmap_after_map, &state_after(&[MAP])));
        let twice = vec![event(MAP, Outcome::Done, 0, 1), event(MAP, Outcome::Done, 2, 3)];
        assert!(!has_serial_order(&[twice], &state_after(&[MAP])));
    }

    #[test]
    fn wrong_results_have_no_order() {
        let outcomes = [Outcome::Byte(0), Outcome::Done, Outcome::Rejected(Reason::NotMapped)];
        for outcome in outcomes {
            let read = vec![event(MAP, Outcome::Done, 0, 1), event(READ, outcome, 2, 3)];
            assert!(
                !has_serial_order(&[read], &state_after(&[MAP])),
                "{outcome:?}: no agent has access"
            );
        }
        let rejected = Outcome::Rejected(Reason::NotGranted);
        let read = vec![event(MAP, Outcome::Done, 0, 1), event(READ, rejected, 2, 3)];
        assert!(has_serial_order(&[read], &state_after(&[MAP])));
    }
}
