//! Shrinks a failing sequence.

use super::Sequence;
use super::simpler::simpler_forms;
use std::time::Instant;

/// Shrinks a failing sequence: removes operations, faults and options of the machine, then simplifies arguments. Keeps
/// a change if `still_fails` returns `true` for the changed sequence. Tries no change after `deadline`.
pub fn shrink(
    sequence: Sequence,
    deadline: Instant,
    still_fails: &mut dyn FnMut(&Sequence) -> bool,
) -> Sequence {
    let mut search = Search { smallest: sequence, deadline, still_fails };
    loop {
        let before = search.smallest.clone();
        search.remove_operations();
        search.remove_parts(|it| &mut it.faults, ';');
        search.remove_parts(|it| &mut it.machine, ',');
        search.simplify_arguments();
        if search.smallest == before || search.is_deadline_reached() {
            return search.smallest;
        }
    }
}

struct Search<'a> {
    smallest: Sequence,
    deadline: Instant,
    still_fails: &'a mut dyn FnMut(&Sequence) -> bool,
}

impl Search<'_> {
    fn is_deadline_reached(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Replaces the smallest sequence by a candidate if the candidate still fails. Returns whether the candidate was
    /// accepted.
    fn try_candidate(&mut self, candidate: Sequence) -> bool {
        let is_accepted = !self.is_deadline_reached() && (self.still_fails)(&candidate);
        if is_accepted {
            self.smallest = candidate;
        }
        is_accepted
    }

    /// Tries to remove halves of the operations, then quarters, and so on down to single operations.
    fn remove_operations(&mut self) {
        let mut length = self.smallest.operations.len().div_ceil(2);
        while length > 0 {
            // Start at the end, because no operation depends on a later operation.
            let mut end = self.smallest.operations.len();
            while end > 0 && !self.is_deadline_reached() {
                let start = end.saturating_sub(length);
                let mut shorter = self.smallest.clone();
                shorter.operations.drain(start..end);
                self.try_candidate(shorter);
                end = start;
            }
            length /= 2;
        }
    }

    /// Removes the parts of a text one by one. `separator` separates the parts.
    fn remove_parts(&mut self, text: fn(&mut Sequence) -> &mut Option<String>, separator: char) {
        let mut at = 0;
        loop {
            let mut smaller = self.smallest.clone();
            let text = text(&mut smaller);
            let Some(parts) = text.as_ref() else { return };
            let mut parts: Vec<_> = parts.split(separator).map(str::to_owned).collect();
            if at >= parts.len() || parts == [""] {
                return;
            }
            parts.remove(at);
            // Empty text means the default machine, or no faults.
            *text = Some(parts.join(&separator.to_string()));
            if !self.try_candidate(smaller) {
                at += 1;
            }
        }
    }

    /// Simplifies the arguments of each operation.
    fn simplify_arguments(&mut self) {
        let mut at = 0;
        while at < self.smallest.operations.len() && !self.is_deadline_reached() {
            let forms = simpler_forms(&self.smallest.operations[at]);
            let is_accepted = forms.into_iter().any(|operation| {
                let mut candidate = self.smallest.clone();
                candidate.operations[at] = operation;
                self.try_candidate(candidate)
            });
            at += usize::from(!is_accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Generator, SequenceRuntime};
    use crate::operations::{Amount, Operation};
    use std::time::Duration;

    fn long_sequence() -> Sequence {
        let generator = Generator {
            seed: 1,
            max_operations: 500,
            runtime: SequenceRuntime::Any,
            faults: true,
            every: None,
        };
        (0..)
            .map(|number| generator.sequence(number))
            .find(|it| it.operations.len() > 400)
            .expect("some sequence has more than 400 operations")
    }

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn shrink_keeps_required_operations() {
        let is_large_create = |it: &Operation| match it {
            Operation::Create { size: Amount::Granules(count), .. } => *count >= 3,
            _ => false,
        };
        let mut still_fails = |it: &Sequence| {
            it.operations.iter().filter(|it| is_large_create(it)).count() >= 2
                && it.operations.iter().any(|it| matches!(it, Operation::Map { .. }))
        };
        let small = shrink(long_sequence(), deadline(), &mut still_fails);
        assert!(still_fails(&small));
        assert_eq!(small.operations.len(), 3, "{small:?}");
        assert_eq!(small.machine.as_deref(), Some(""));
        assert_eq!(small.faults.as_deref(), Some(""));
        for operation in small.operations.iter().filter(|it| is_large_create(it)) {
            let text = serde_json::to_string(operation).unwrap();
            let simplest = r#"{"operation":"create","size":{"granules":3},"on":{"gpu":0},"uncached":false,"handle_types":0,"flags":0}"#;
            assert_eq!(text, simplest);
        }
    }

    #[test]
    fn shrink_stops_in_time() {
        let begun = Instant::now();
        let mut tries = 0;
        let mut still_fails = |_: &Sequence| {
            tries += 1;
            std::thread::sleep(Duration::from_millis(5));
            false
        };
        let before = long_sequence();
        let after = shrink(before.clone(), begun + Duration::from_millis(100), &mut still_fails);
        assert_eq!(after, before);
        assert!((5..=100).contains(&tries), "{tries}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
