//! The search for a serial order.

use super::{Event, State};
use std::collections::HashSet;

/// Returns whether some serial order of the events gives every result and ends in `after`.
///
/// Wing and Gong's search: tries each thread's next operation, if no other thread's next one ended before it
/// began. States without a solution are memoised.
pub fn exists(before: &State, threads: &[Vec<Event>], after: &State) -> bool {
    let done = vec![0; threads.len()];
    let mut failed = HashSet::new();
    search(before.clone(), done, threads, &after.clone().visible(), &mut failed)
}

fn search(
    state: State,
    done: Vec<usize>,
    threads: &[Vec<Event>],
    after: &State,
    failed: &mut HashSet<(State, Vec<usize>)>,
) -> bool {
    let next = || {
        let one =
            |(number, events): (usize, &Vec<Event>)| Some((number, *events.get(done[number])?));
        threads.iter().enumerate().filter_map(one)
    };
    let Some(first_end) = next().map(|(_, event)| event.ended).min() else {
        return state.visible() == *after;
    };
    if failed.contains(&(state.clone(), done.clone())) {
        return false;
    }
    for (number, event) in next().filter(|(_, event)| event.begun <= first_end) {
        let mut then = state.clone();
        if then.admits(event.operation, event.answer) {
            let mut done = done.clone();
            done[number] += 1;
            if search(then, done, threads, after, failed) {
                return true;
            }
        }
    }
    failed.insert((state, done));
    false
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Operation, Reason, Slot, SlotRange};
    use super::*;

    const SLOT: Slot = Slot { reservation: 0, number: 0 };
    const MAP: Operation = Operation::Map { slot: SLOT, handle: 0 };
    const UNMAP: Operation = Operation::Unmap { range: SlotRange { first: SLOT, count: 1 } };
    const READ: Operation = Operation::Read { slot: SLOT };

    fn event(operation: Operation, answer: Answer, begun: u64, ended: u64) -> Event {
        Event { operation, answer, begun, ended }
    }

    fn after(operations: &[Operation]) -> State {
        let mut state = State::default();
        assert!(operations.iter().all(|&operation| state.admits(operation, Answer::Done)));
        state
    }

    fn explains(threads: &[Vec<Event>], end: &State) -> bool {
        exists(&State::default(), threads, end)
    }

    #[test]
    fn concurrent_events_are_unordered() {
        let refused = Answer::Refused(Reason::NotMapped);
        let map = vec![event(MAP, Answer::Done, 0, 3)];
        let unmap = |answer| vec![event(UNMAP, answer, 1, 2)];
        assert!(explains(&[map.clone(), unmap(refused)], &after(&[MAP])));
        assert!(explains(&[map.clone(), unmap(Answer::Done)], &after(&[])));
        assert!(!explains(&[map.clone(), unmap(refused)], &after(&[])), "a lost update");
        assert!(!explains(&[map, unmap(Answer::Done)], &after(&[MAP])), "one that came twice");
    }

    #[test]
    fn ended_events_come_first() {
        let refused = Answer::Refused(Reason::NotMapped);
        let late = [vec![event(MAP, Answer::Done, 0, 1)], vec![event(UNMAP, refused, 2, 3)]];
        assert!(!explains(&late, &after(&[MAP])));
        let twice = vec![event(MAP, Answer::Done, 0, 1), event(MAP, Answer::Done, 2, 3)];
        assert!(!explains(&[twice], &after(&[MAP])));
    }

    #[test]
    fn wrong_results_have_no_order() {
        let answers = [Answer::Byte(0), Answer::Done, Answer::Refused(Reason::NotMapped)];
        for answer in answers {
            let read = vec![event(MAP, Answer::Done, 0, 1), event(READ, answer, 2, 3)];
            assert!(!explains(&[read], &after(&[MAP])), "{answer:?}: no agent has access");
        }
        let refused = Answer::Refused(Reason::NotGranted);
        let read = vec![event(MAP, Answer::Done, 0, 1), event(READ, refused, 2, 3)];
        assert!(explains(&[read], &after(&[MAP])));
    }
}
