//! A reservation from its beginning to its end: what is mapped, and the holes between.

use super::{MappingEntry, ReservationEntry};

/// Mappings that follow each other and are of one size, name, owner and access; or a hole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// From the start of the reservation.
    pub offset: usize,
    /// All of it.
    pub size: usize,
    /// How many mappings it is; 1 for a hole.
    pub count: usize,
    /// The first of them; `None` for a hole.
    pub mapping: Option<&'a MappingEntry>,
}

impl Run<'_> {
    fn goes_on_with(&self, next: &MappingEntry) -> bool {
        self.mapping.is_some_and(|first| {
            let look = |it: &MappingEntry| (it.size, it.agent);
            look(first) == look(next) && first.name == next.name && first.access == next.access
        })
    }
}

/// All of a reservation, in order.
pub(crate) fn runs(reservation: &ReservationEntry) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut end = 0;
    let hole =
        |from: usize, to: usize| Run { offset: from, size: to - from, count: 1, mapping: None };
    for mapping in &reservation.mappings {
        let offset = mapping.address.get().saturating_sub(reservation.address.get());
        if offset > end {
            runs.push(hole(end, offset));
        }
        match runs.last_mut() {
            Some(last) if last.goes_on_with(mapping) => {
                last.size += mapping.size;
                last.count += 1;
            }
            _ => runs.push(Run { offset, size: mapping.size, count: 1, mapping: Some(mapping) }),
        }
        end = offset + mapping.size;
    }
    if end < reservation.size {
        runs.push(hole(end, reservation.size));
    }
    runs
}
