//! The 22 invariants of the ledger. For each: the code that ensures or checks the invariant, and the test.
//!
//! [`Vmm::check`](crate::Vmm::check) calls [`Ledger::check`], which checks the invariants 1, 3 and 8. Debug builds also
//! check the mappings of a reservation after each change, if there are at most 64.
//!
//! | | invariant | ensured or checked by | tested by |
//! |---|---|---|---|
//! | 1 | mappings are in one reservation and disjoint | [`Ledger::check`], [`Mappings::check`] | `check_finds_broken_invariants` |
//! | 2 | a reservation counts its mappings | [`Mappings::len`] | `mappings_match_a_model_of_pages` |
//! | 3 | a handle counts its mappings, and lives while referenced or mapped | `Handles::check` | `check_finds_broken_invariants` |
//! | 4 | the references are created + retained − released, never negative | `Handles::release`, `retain` | `memory_lives_while_referenced_or_mapped` |
//! | 5 | a handle without references is rejected | `Handles::with` | `memory_lives_while_referenced_or_mapped` |
//! | 6 | only `retain` of a live mapping makes a handle without references valid again | `retain` | `memory_lives_while_referenced_or_mapped` |
//! | 7 | a reservation is freed whole, by its base, and empty | `check_free` | `reservations_are_freed_whole_and_empty` |
//! | 8 | a mapping is aligned to the granule, is inside its reservation, overlaps no other mapping, and is inside its handle's memory | `Shared::add_mapping`, [`Ledger::check`] | `check_empty_finds_every_overlap`, cases `map.*` |
//! | 9 | no agent has access to a new mapping | `Journal::add_new` | case `access.get.never_set` |
//! | 10 | access is set on adjacent whole mappings | [`Mappings::adjacent`] | `adjacent_requires_whole_mappings` |
//! | 11 | a list takes effect as a whole or not at all; setting the same access again changes nothing | `vmm::permission` | cases `access.set.good_then_bad`, `access.set.twice_is_once` |
//! | 12 | adjacent whole mappings are unmapped; memory is released with its last mapping | [`Mappings::adjacent`], `Handles::decrement` | `memory_lives_while_referenced_or_mapped` |
//! | 13 | mapping and unmapping leave nothing allocated | `Journal::finish` | case `unmap.again_and_again.leaves_nothing` |
//! | 14 | a look-up finds a mapping at each of its addresses, and not at its end | [`Mappings::at`] | `look_ups_end_where_the_mapping_ends` |
//! | 15 | all mappings of a handle are the same memory, different handles are different memory | the runtime | cases `map.handle.at_two_places`, `create.memory.is_its_own` |
//! | 16 | each export is a new descriptor, each import a new handle | `vmm::shareable` | cases `share.export.twice`, `share.import.outlives_its_exporter` |
//! | 17 | an import does not change the caller's descriptor | `vmm::shareable` | cases `share.import.descriptor_stays_ours`, `….descriptor_closed_at_once` |
//! | 18 | properties do not change after creation | no code changes them | cases `properties.created.round_trip`, `properties.imported.told` |
//! | 19 | the order of release and unmap does not matter | `Handles::decrement`, `Handles::release` | `memory_lives_while_referenced_or_mapped` |
//! | 20 | a hint never causes an error; the start has the requested alignment | `vmm::reserve` | cases `reserve.hint.taken`, `reserve.hint.off_the_alignment` |
//! | 21 | a failed operation changes nothing | check first, then change; `vmm::journal` | `exhaustive_faults`; every case that expects an error |
//! | 22 | operations of threads on different reservations have a serial order | [`ReservationRecord::lock`] and `native`'s library lock | `tests/threads` |

use super::mappings::AccessStates;
use super::{AddressRange, Ledger, MappedRange, Mappings, ReservationRecord};
use crate::handle::Handle;
use std::collections::{BTreeSet, HashMap};

impl Ledger {
    /// Checks invariants 1, 3 and 8, and returns a message about the first one that does not hold. Other threads cannot
    /// change mappings during the check.
    pub fn check(&self) -> Result<(), String> {
        self.reservations.snapshot(|all| {
            // While an operation runs, a handle can count a mapping that the operation has not inserted yet.
            let writers: Option<Vec<_>> = all.iter().map(|it| it.reservation.try_lock()).collect();
            let mut end = 0;
            let mut mapped: HashMap<Handle, u32> = HashMap::new();
            for it in all {
                // Invariant 1.
                let base = it.reservation.base;
                if base < end {
                    return Err(format!("the reservation at {base:#x} overlaps the one before it"));
                }
                end = base + it.reservation.size;
                it.mappings.check()?;
                for mapping in it.mappings.iter() {
                    self.check_mapping(it.reservation, &mapping)?;
                    *mapped.entry(mapping.handle).or_default() += 1;
                }
            }
            // Invariant 3.
            self.handles.check(&mapped, writers.is_none())
        })
    }

    /// Checks invariants 1 and 8 for one mapping.
    fn check_mapping(
        &self,
        reservation: &ReservationRecord,
        it: &MappedRange,
    ) -> Result<(), String> {
        let AddressRange { start, size } = it.range();
        let broken = |problem: &str| Err(format!("the mapping at {start:#x} {problem}"));
        if !reservation.contains_range(it.range()) {
            return broken("is not in its reservation");
        }
        let found = self.handles.with_live(it.handle, |it| (it.size, it.granule));
        let Some((maximum, granule)) = found else { return broken("has no handle") };
        if it.offset.checked_add(size).is_none_or(|end| end > maximum) {
            return broken("exceeds its handle");
        }
        if [start, size, it.offset].iter().any(|number| !number.is_multiple_of(granule)) {
            return broken("is not aligned to the granule");
        }
        Ok(())
    }
}

impl Mappings {
    /// Checks the invariants of one reservation's mappings.
    pub(super) fn check(&self) -> Result<(), String> {
        // Invariant 1.
        let mut end = 0;
        let mut serials = BTreeSet::new();
        let mut slots = [0; AccessStates::MAX_SLOTS as usize + 1];
        for (&start, entry) in &self.entries {
            if start < end {
                return Err(format!("the mapping at {start:#x} overlaps the one before it"));
            }
            end = start + entry.size;
            if !serials.insert(entry.serial) {
                return Err(format!("the serial {} was given twice", entry.serial));
            }
            if entry.access != AccessStates::NO_ACCESS {
                slots[usize::from(entry.access)] += 1;
            }
        }
        let AccessStates { slots: stored, others } = &self.access;
        let stored = stored.iter().map(|(_, mappings)| *mappings as usize);
        let stored = stored.chain(core::iter::repeat(0)).take(slots.len() - 1);
        if stored.chain([others.len()]).ne(slots) || !others.keys().all(|it| serials.contains(it)) {
            return Err("stored access is not that of the mappings".into());
        }
        match self.names.iter().find(|(serial, _)| !serials.contains(serial)) {
            Some((_, name)) => Err(format!("{name:?} names no mapping")),
            None => Ok(()),
        }
    }
}
