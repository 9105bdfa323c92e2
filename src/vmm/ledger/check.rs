//! The invariants, and where each is kept.
//!
//! Section 6.1 of the reference this project was written from numbers 22 of them. Those that speak
//! of state are checked by [`Ledger::check`]: after every step in debug builds, and whenever
//! somebody asks ([`Vmm::check`](crate::Vmm::check)). Those that speak of a step are kept by the
//! one function that takes it, and those that speak of memory, descriptors or threads by the shell
//! around the ledger; each has a test.
//!
//! | | invariant | kept by | tested by |
//! |---|---|---|---|
//! | 1 | mappings in one reservation, all disjoint | [`Ledger::check`]: `reservations_are_disjoint`, `mappings_are_right` | `check_finds_what_does_not_hold` |
//! | 2 | a reservation counts its mappings | [`Ledger::check`]: `counts_are_right` | `check_finds_what_does_not_hold` |
//! | 3 | a handle counts its mappings, and lives while referenced or mapped | [`Ledger::check`]: `Handles::check` | `check_finds_what_does_not_hold` |
//! | 4 | references are created + retained − released, never negative | `begin_release`, `retain` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 5 | a handle without references is refused | `Handles::find` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 6 | only `retain` of a live mapping brings one back | `retain` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 7 | freed whole, by its base, and empty | `check_free`; asserted by `remove_reservation` | `reservations_are_freed_whole_and_empty` |
//! | 8 | mapped on the granule, inside, over nothing, no more than there is | `begin_map`; [`Ledger::check`]: `mappings_are_right` | `maps_are_refused_outside_over_and_beyond` |
//! | 9 | right after mapping nobody may do anything | `add_mapping` | `nobody_may_use_what_was_just_mapped` |
//! | 10 | access is set on a run of whole mappings | `check_run` | `runs_are_whole_contiguous_mappings` |
//! | 11 | all of a list or nothing, and twice is once | `vmm::permission` | case `access.set.good_then_bad`, `access.set.twice_is_once` |
//! | 12 | unmapped is a run of whole mappings; memory goes with the last | `check_run`, `end_use` | `memory_lives_while_it_is_referenced_or_mapped` |
//! | 13 | mapping and unmapping leaves nothing | `remove_mapping` | case `unmap.again_and_again.leaves_nothing` |
//! | 14 | one answer for all of a mapping, none at its end | `mapping_at` | `look_ups_end_where_the_mapping_ends` |
//! | 15 | aliases are the same memory, handles are not | the runtime | cases `map.handle.at_two_places`, `create.memory.is_its_own` |
//! | 16 | an export is new, an import is a handle of its own | `vmm::shareable` | cases `share.export.twice`, `share.import.outlives_its_exporter` |
//! | 17 | an import leaves the descriptor alone | `vmm::shareable` | cases `share.import.descriptor_stays_ours`, `….descriptor_closed_at_once` |
//! | 18 | properties are those of making | `add_handle`; nothing changes them | cases `properties.created.round_trip`, `properties.imported.told` |
//! | 19 | the order of release and unmap does not matter | `end_use`, `begin_release` | `either_order_ends_the_same` |
//! | 20 | a hint never fails, alignment is honoured | `vmm::reserve` | cases `reserve.hint.taken`, `reserve.hint.off_the_alignment` |
//! | 21 | what fails changes nothing | look first, then change | `maps_are_refused_outside_over_and_beyond`; every refusal of a case |
//! | 22 | threads on different reservations are as if one after another | `vmm`'s gates and turns | `tests/threads` |

use super::{Ledger, Range};
use std::collections::{BTreeMap, BTreeSet};

/// How much there may be for every step to be followed by a check of all of it.
const CHEAP: usize = 256;

impl<R, H> Ledger<R, H> {
    /// Checks the invariants; says which one does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.reservations_are_disjoint()?;
        self.mappings.check()?;
        self.mappings_are_right()?;
        self.counts_are_right()?;
        self.rights_are_counted()?;
        self.serials_are_unique()?;
        self.names_are_of_mappings()
    }

    /// Checks after a step in debug builds, as long as that costs little.
    pub(super) fn checked(&self) {
        let much = self.reservations.len() + self.handles.slots() + self.mappings.len();
        if cfg!(debug_assertions) && much <= CHEAP {
            debug_assert_eq!(self.check(), Ok(()));
        }
    }

    /// Invariant 1.
    fn reservations_are_disjoint(&self) -> Result<(), String> {
        let mut end = 0;
        for (&base, reservation) in &self.reservations {
            if base < end {
                return Err(format!("the reservation at {base:#x} overlaps the one before it"));
            }
            end = base + reservation.size;
        }
        Ok(())
    }

    /// Invariants 1 and 8.
    fn mappings_are_right(&self) -> Result<(), String> {
        let mut end = 0;
        for (start, mapping) in self.mappings.iter() {
            let wrong = |what: &str| Err(format!("the mapping at {start:#x} {what}"));
            if start < end {
                return wrong("overlaps the one before it");
            }
            end = start + mapping.size;
            if self.around(Range { start, size: mapping.size }).is_none() {
                return wrong("is in no reservation");
            }
            let Some(handle) = self.handles.by_slot(mapping.slot) else {
                return wrong("has no handle");
            };
            if mapping.size > handle.size {
                return wrong("exceeds its handle");
            }
            if start % handle.granule != 0 || mapping.size % handle.granule != 0 {
                return wrong("is off the granule");
            }
        }
        Ok(())
    }

    /// Invariants 2 and 3.
    fn counts_are_right(&self) -> Result<(), String> {
        let mut inside: BTreeMap<usize, usize> = BTreeMap::new();
        let mut of_handle = vec![0; self.handles.slots()];
        for (start, mapping) in self.mappings.iter() {
            if let Some((base, _)) = self.reservation_at(start) {
                *inside.entry(base).or_default() += 1;
            }
            if let Some(count) = of_handle.get_mut(mapping.slot as usize) {
                *count += 1;
            }
        }
        for (&base, reservation) in &self.reservations {
            let found = inside.get(&base).copied().unwrap_or_default();
            if reservation.mappings != found {
                let counted = reservation.mappings;
                return Err(format!(
                    "the reservation at {base:#x} counts {counted} mappings and has {found}"
                ));
            }
        }
        self.handles.check(&of_handle)
    }

    /// Rights are kept as often as mappings have them.
    fn rights_are_counted(&self) -> Result<(), String> {
        let mut found = BTreeMap::new();
        for (_, entry) in self.mappings.iter() {
            *found.entry(entry.rights).or_default() += 1;
        }
        self.rights.check(&found)
    }

    /// What has gone has no name any more.
    fn names_are_of_mappings(&self) -> Result<(), String> {
        if self.mapping_names.is_empty() {
            return Ok(());
        }
        let serials: BTreeSet<u64> =
            self.mappings.iter().map(|(_, mapping)| mapping.serial).collect();
        match self.mapping_names.iter().find(|(serial, _)| !serials.contains(serial)) {
            Some((_, name)) => Err(format!("{name:?} is the name of no mapping")),
            None => Ok(()),
        }
    }

    /// What names a mapping or reservation for good is not given twice.
    fn serials_are_unique(&self) -> Result<(), String> {
        let mappings = self.mappings.iter().map(|(_, mapping)| mapping.serial);
        let reservations = self.reservations.values().map(|reservation| reservation.serial);
        let mut serials: Vec<u64> = mappings.chain(reservations).collect();
        serials.sort_unstable();
        let twice = serials.windows(2).find(|two| two[0] == two[1]);
        if let Some(two) = twice {
            return Err(format!("the serial {} was given twice", two[0]));
        }
        match serials.last() {
            Some(&last) if last >= self.next_serial => {
                Err(format!("the serial {last} is still to be given"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
