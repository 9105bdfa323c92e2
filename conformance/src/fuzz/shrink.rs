//! Shrinks a failing sequence.

use super::Sequence;
use super::simpler::simpler;
use std::time::Instant;

/// Shrinks a sequence until the deadline as long as `shows` returns `true`: removes operations, faults and
/// options of the machine, then simplifies arguments.
pub fn shrink(
    sequence: Sequence,
    until: Instant,
    shows: &mut dyn FnMut(&Sequence) -> bool,
) -> Sequence {
    let mut search = Search { smallest: sequence, until, shows };
    loop {
        let before = search.smallest.clone();
        search.fewer_operations();
        search.fewer_words(|it| &mut it.faults, ';');
        search.fewer_words(|it| &mut it.machine, ',');
        search.simpler_arguments();
        if search.smallest == before || search.is_late() {
            return search.smallest;
        }
    }
}

struct Search<'a> {
    smallest: Sequence,
    until: Instant,
    shows: &'a mut dyn FnMut(&Sequence) -> bool,
}

impl Search<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Continues with a smaller sequence if it still fails.
    fn take_if_it_shows(&mut self, smaller: Sequence) -> bool {
        let taken = !self.is_late() && (self.shows)(&smaller);
        if taken {
            self.smallest = smaller;
        }
        taken
    }

    /// Removes half of the operations, then quarters, and so on down to one.
    fn fewer_operations(&mut self) {
        let mut length = self.smallest.operations.len().div_ceil(2);
        while length > 0 {
            // From the end: earlier operations do not depend on later ones.
            let mut end = self.smallest.operations.len();
            while end > 0 && !self.is_late() {
                let start = end.saturating_sub(length);
                let mut shorter = self.smallest.clone();
                shorter.operations.drain(start..end);
                self.take_if_it_shows(shorter);
                end = start;
            }
            length /= 2;
        }
    }

    /// Removes words of a text.
    fn fewer_words(&mut self, text: fn(&mut Sequence) -> &mut Option<String>, between: char) {
        let mut at = 0;
        loop {
            let mut smaller = self.smallest.clone();
            let text = text(&mut smaller);
            let Some(words) = text.as_ref() else { return };
            let mut words: Vec<_> = words.split(between).map(str::to_owned).collect();
            if at >= words.len() || words == [""] {
                return;
            }
            words.remove(at);
            // Empty text means the default machine, or no faults.
            *text = Some(words.join(&between.to_string()));
            if !self.take_if_it_shows(smaller) {
                at += 1;
            }
        }
    }

    /// Simplifies arguments where possible.
    fn simpler_arguments(&mut self) {
        let mut at = 0;
        while at < self.smallest.operations.len() && !self.is_late() {
            let simpler = simpler(&self.smallest.operations[at]).into_iter();
            let taken = simpler.into_iter().any(|operation| {
                let mut candidate = self.smallest.clone();
                candidate.operations[at] = operation;
                self.take_if_it_shows(candidate)
            });
            at += usize::from(!taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Drawing, Machine};
    use crate::operations::{Amount, Operation};
    use std::time::Duration;

    fn drawn() -> Sequence {
        let drawing =
            Drawing { seed: 1, longest: 500, machine: Machine::Any, faults: true, every: None };
        (0..)
            .map(|number| drawing.sequence(number))
            .find(|it| it.operations.len() > 400)
            .expect("some are long")
    }

    fn until() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn shrink_keeps_required_operations() {
        let matters = |it: &Operation| match it {
            Operation::Create { size: Amount::Granules(count), .. } => *count >= 3,
            _ => false,
        };
        let mut shows = |it: &Sequence| {
            it.operations.iter().filter(|it| matters(it)).count() >= 2
                && it.operations.iter().any(|it| matches!(it, Operation::Map { .. }))
        };
        let small = shrink(drawn(), until(), &mut shows);
        assert!(shows(&small));
        assert_eq!(small.operations.len(), 3, "{small:?}");
        assert_eq!(small.machine.as_deref(), Some(""));
        assert_eq!(small.faults.as_deref(), Some(""));
        for operation in small.operations.iter().filter(|it| matters(it)) {
            let text = serde_json::to_string(operation).unwrap();
            let simplest = r#"{"operation":"create","size":{"granules":3},"on":{"gpu":0},"uncached":false,"handle_types":0,"flags":0}"#;
            assert_eq!(text, simplest);
        }
    }

    #[test]
    fn shrink_stops_in_time() {
        let begun = Instant::now();
        let mut tries = 0;
        let mut shows = |_: &Sequence| {
            tries += 1;
            std::thread::sleep(Duration::from_millis(5));
            false
        };
        let before = drawn();
        let after = shrink(before.clone(), begun + Duration::from_millis(100), &mut shows);
        assert_eq!(after, before);
        assert!((5..=100).contains(&tries), "{tries}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
