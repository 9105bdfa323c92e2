//! Shrinks a sequence while it still shows a difference.

use crate::calls::Call;

/// Removes calls that are not necessary for a difference. `differs` returns whether a shorter
/// sequence still shows the difference. First removes many adjacent calls at once, and then fewer.
pub fn shrink(mut calls: Vec<Call>, mut differs: impl FnMut(&[Call]) -> bool) -> Vec<Call> {
    let mut length = calls.len() / 2;
    while length > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < calls.len() {
            let mut without = calls.clone();
            without.drain(at..(at + length).min(calls.len()));
            if differs(&without) {
                calls = without;
                shorter = true;
            } else {
                at += length;
            }
        }
        if !shorter || length > 1 {
            length /= 2;
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::shrink;
    use crate::calls::{Call, Location};

    #[test]
    fn shrink_keeps_relevant_calls() {
        let call = |n| Call::Peek { at: Location::Area(n) };
        let both = |calls: &[Call]| calls.contains(&call(3)) && calls.contains(&call(17));
        let shrunk = shrink((0..40).map(call).collect(), both);
        assert_eq!(shrunk, [call(3), call(17)]);
    }
}
