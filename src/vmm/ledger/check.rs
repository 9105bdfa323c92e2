//! The invariants, and where each is kept.
//!
//! Section 6.1 of the reference this project was written from numbers 22 of them. Those that speak
//! of state are checked by [`Ledger::check`], whenever somebody asks
//! ([`Vmm::check`](crate::Vmm::check)), and for the mappings of one reservation after every step in
//! debug builds. Those that speak of a step are kept by the one function that takes it, and those that
//! speak of memory, descriptors or threads by the shell around the ledger; each has a test.
//!
//! | | invariant | kept by | tested by |
//! |---|---|---|---|
//! | 1 | mappings in one reservation, all disjoint | [`Ledger::check`], [`Mappings::check`] | `check_finds_what_does_not_hold` |
//! | 2 | a reservation counts its mappings | it has them: [`Mappings::len`] | `it_does_what_the_standard_map_does` |
//! | 3 | a handle counts its mappings, and lives while referenced or mapped | [`Ledger::check`]: `Handles::check` | `check_finds_what_does_not_hold` |
//! | 4 | references are created + retained − released, never negative | `begin_release`, `retain` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 5 | a handle without references is refused | `Handles::find` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 6 | only `retain` of a live mapping brings one back | `retain` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 7 | freed whole, by its base, and empty | `check_free`, asked by `Shared::free` | `reservations_are_freed_whole_and_empty` |
//! | 8 | mapped on the granule, inside, over nothing, no more than there is | `Shared::map`; [`Ledger::check`]: `mapping_is_right` | `maps_are_refused_outside_over_and_beyond` |
//! | 9 | right after mapping nobody may do anything | `add_mapping` | `nobody_may_use_what_was_just_mapped` |
//! | 10 | access is set on a run of whole mappings | `check_run` | `runs_are_whole_contiguous_mappings` |
//! | 11 | all of a list or nothing, and twice is once | `vmm::permission` | case `access.set.good_then_bad`, `access.set.twice_is_once` |
//! | 12 | unmapped is a run of whole mappings; memory goes with the last | `check_run`, `end_mapping` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 13 | mapping and unmapping leaves nothing | `remove_mappings` | case `unmap.again_and_again.leaves_nothing` |
//! | 14 | one answer for all of a mapping, none at its end | `Mappings::at` | `look_ups_end_where_the_mapping_ends` |
//! | 15 | aliases are the same memory, handles are not | the runtime | cases `map.handle.at_two_places`, `create.memory.is_its_own` |
//! | 16 | an export is new, an import is a handle of its own | `vmm::shareable` | cases `share.export.twice`, `share.import.outlives_its_exporter` |
//! | 17 | an import leaves the descriptor alone | `vmm::shareable` | cases `share.import.descriptor_stays_ours`, `….descriptor_closed_at_once` |
//! | 18 | properties are those of making | `Handles::add`; nothing changes them | cases `properties.created.round_trip`, `properties.imported.told` |
//! | 19 | the order of release and unmap does not matter | `end_mapping`, `begin_release` | `either_order_ends_the_same` |
//! | 20 | a hint never fails, alignment is honoured | `vmm::reserve` | cases `reserve.hint.taken`, `reserve.hint.off_the_alignment` |
//! | 21 | what fails changes nothing | look first, then change | `maps_are_refused_outside_over_and_beyond`; every refusal of a case |
//! | 22 | threads on different reservations are as if one after another | [`Reserved::enter`] and `native`'s library lock | `tests/threads` |

use super::{Ledger, Mappings, Range, Reserved};
use crate::sync::gate::Shut;
use std::collections::{BTreeMap, BTreeSet};

/// How much there may be in a reservation for every step to be followed by a check of it.
const CHEAP: usize = 256;

impl<H> Ledger<H> {
    /// Checks the invariants; says which one does not hold. Other threads' steps wait.
    pub fn check(&self) -> Result<(), String> {
        self.at_one_moment(|reservations| {
            // What somebody is just mapping is counted and not there yet.
            let shut = reservations.iter().map(|it| it.reserved.shut());
            let nobody_is_inside: Option<Vec<Shut<'_, Mappings>>> = shut.collect();
            let mut end = 0;
            let mut of_handle: Vec<u32> = Vec::new();
            let mut serials = Vec::new();
            for it in reservations {
                // Invariant 1.
                let base = it.reserved.base;
                if base < end {
                    return Err(format!("the reservation at {base:#x} overlaps the one before it"));
                }
                end = base + it.reserved.size;
                it.mappings.check()?;
                serials.push(it.reserved.serial);
                for (start, mapping) in it.mappings.entries.iter() {
                    self.mapping_is_right(it.reserved, start, mapping.size, mapping.slot)?;
                    serials.push(mapping.serial);
                    let slot = mapping.slot as usize;
                    if of_handle.len() <= slot {
                        of_handle.resize(slot + 1, 0);
                    }
                    of_handle[slot] += 1;
                }
            }
            // Invariant 3.
            self.handles.check(&of_handle, nobody_is_inside.is_none())?;
            serials.sort_unstable();
            if let Some(two) = serials.windows(2).find(|two| two[0] == two[1]) {
                return Err(format!("the serial {} was given twice", two[0]));
            }
            match serials.last() {
                Some(&last) if !self.serials.were_given(last) => {
                    Err(format!("the serial {last} is still to be given"))
                }
                _ => Ok(()),
            }
        })
    }

    /// Invariants 1 and 8.
    fn mapping_is_right(
        &self,
        reserved: &Reserved,
        start: usize,
        size: usize,
        slot: u32,
    ) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("the mapping at {start:#x} {what}"));
        if !reserved.holds_all(Range { start, size }) {
            return wrong("is not in its reservation");
        }
        let Some((most, granule)) = self.handles.in_slot(slot, |it| (it.size, it.granule)) else {
            return wrong("has no handle");
        };
        if size > most {
            return wrong("exceeds its handle");
        }
        if !start.is_multiple_of(granule) || !size.is_multiple_of(granule) {
            return wrong("is off the granule");
        }
        Ok(())
    }
}

impl Mappings {
    /// Checks what one reservation's mappings can be known by themselves to be.
    pub(super) fn check(&self) -> Result<(), String> {
        self.entries.check()?;
        // Invariant 1.
        let mut end = 0;
        let mut of_row = BTreeMap::new();
        let mut serials = BTreeSet::new();
        for (start, mapping) in self.entries.iter() {
            if start < end {
                return Err(format!("the mapping at {start:#x} overlaps the one before it"));
            }
            end = start + mapping.size;
            *of_row.entry(mapping.rights).or_default() += 1;
            serials.insert(mapping.serial);
            if self.serials.contains(&mapping.serial) {
                return Err(format!("the serial {} is still to be given", mapping.serial));
            }
        }
        self.rights.check(&of_row)?;
        // What has gone has no name any more.
        match self.names.iter().find(|(serial, _)| !serials.contains(serial)) {
            Some((_, name)) => Err(format!("{name:?} is the name of no mapping")),
            None => Ok(()),
        }
    }

    /// Checks after a step in debug builds, as long as that costs little.
    pub(super) fn checked(&self) {
        if cfg!(debug_assertions) && self.len() <= CHEAP {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }
}

#[cfg(test)]
mod tests;
