//! The objects of a sequence, recorded from its successful calls. The tests use them to clean up,
//! to select the addresses to compare, and to find the memory that a GPU can access without a
//! fault.

use crate::calls::*;
use crate::tested_runtime::{Outcome, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A handle mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mapping {
    pub reservation: Name,
    pub offset: i64,
    pub size: u64,
    /// `None` for an invalid handle.
    pub handle: Option<Name>,
}

/// The objects of a sequence.
#[derive(Debug, Default)]
pub struct Objects {
    /// Each reservation's start, as an offset in the area, and its size.
    pub reservations: BTreeMap<Name, (u64, u64)>,
    /// The start of each reservation, including freed reservations, as an offset in the area.
    starts: BTreeMap<Name, u64>,
    /// The number of references of each handle. The map does not contain handles without
    /// references.
    pub references: BTreeMap<Name, u64>,
    pub mappings: Vec<Mapping>,
    /// Addresses to compare, as offsets from the start of the area.
    pub points: BTreeSet<u64>,
}

impl Objects {
    /// Returns a location as an offset in the area, if the location is known.
    pub fn area_offset(&self, location: Location) -> Option<u64> {
        match location {
            Location::Null => None,
            Location::Area(offset) => Some(offset),
            Location::In(name, offset) => Some(self.starts.get(&name)?.wrapping_add_signed(offset)),
        }
    }

    fn start_of(&self, mapping: &Mapping) -> u64 {
        let start = self.area_offset(Location::In(mapping.reservation, mapping.offset));
        start.unwrap_or(u64::MAX)
    }

    /// Returns whether one mapping contains a range.
    pub fn is_mapped(&self, location: Location, size: u64) -> bool {
        let Some(at) = self.area_offset(location) else { return false };
        self.mappings.iter().any(|mapping| {
            let start = self.start_of(mapping);
            start <= at && at.saturating_add(size) <= start.saturating_add(mapping.size)
        })
    }

    /// Returns whether two ranges of the same size share memory, through one mapping or through two mappings of one
    /// handle. Does not detect memory that is shared through an imported handle.
    pub fn ranges_share_memory(&self, first: Location, second: Location, size: u64) -> bool {
        let memory_at = |location| {
            let at = self.area_offset(location)?;
            let contains = |mapping: &&Mapping| {
                (self.start_of(mapping)..self.start_of(mapping).saturating_add(mapping.size))
                    .contains(&at)
            };
            let mapping = self.mappings.iter().find(contains)?;
            Some((mapping.handle, at - self.start_of(mapping)))
        };
        match (memory_at(first), memory_at(second)) {
            (Some((first, first_offset)), Some((second, second_offset))) => {
                first == second && first_offset.abs_diff(second_offset) < size
            }
            _ => false,
        }
    }

    /// Returns whether a handle has references.
    pub fn is_alive(&self, handle: Name) -> bool {
        self.references.contains_key(&handle)
    }

    /// Returns the number of mappings that intersect a range.
    pub fn mappings_in(&self, location: Location, size: u64) -> usize {
        let Some(at) = self.area_offset(location) else { return 0 };
        let overlaps = |mapping: &&Mapping| {
            let start = self.start_of(mapping);
            start < at.saturating_add(size) && at < start.saturating_add(mapping.size)
        };
        self.mappings.iter().filter(overlaps).count()
    }

    /// Records the effect of a call. `current_name` returns the name of the object to which a
    /// handle's value now refers.
    pub fn record(&mut self, call: &Call, outcome: &Outcome, current_name: impl Fn(Name) -> Name) {
        if outcome.status != hsa_sys::HSA_STATUS_SUCCESS {
            return;
        }
        match *call {
            Call::Reserve { id, size, .. } => {
                if let [Value::InArea(start)] = outcome.values[..] {
                    self.reservations.insert(id, (start, size));
                    self.starts.insert(id, start);
                    self.points.extend([start, start + size]);
                }
            }
            Call::Free { at, .. } => {
                let start = self.area_offset(at);
                self.reservations.retain(|_, (other, _)| Some(*other) != start);
            }
            Call::Create { id, .. } | Call::Import { id, .. } => {
                self.references.insert(id, 1);
            }
            Call::Retain { .. } => {
                if let [Value::Handle(name)] = outcome.values[..] {
                    *self.references.entry(name).or_default() += 1;
                }
            }
            Call::Release { handle: Handle::Of(name) } => {
                let name = current_name(name);
                if let Some(references) = self.references.get_mut(&name) {
                    *references -= 1;
                    if *references == 0 {
                        self.references.remove(&name);
                    }
                }
            }
            Call::Map { at, size, handle, .. } => {
                let handle = match handle {
                    Handle::Of(name) => Some(current_name(name)),
                    Handle::Zero | Handle::Garbage => None,
                };
                self.record_mapping(at, size, handle);
            }
            Call::Unmap { at, size } => {
                let Some(start) = self.area_offset(at) else { return };
                let end = start.saturating_add(size);
                let mappings = core::mem::take(&mut self.mappings);
                let outside = |mapping: &Mapping| !(start..end).contains(&self.start_of(mapping));
                let kept = mappings.into_iter().filter(outside).collect();
                self.mappings = kept;
            }
            _ => {}
        }
    }

    /// Records a mapping, with its location relative to its reservation.
    fn record_mapping(&mut self, at: Location, size: u64, handle: Option<Name>) {
        let Some(at) = self.area_offset(at) else { return };
        let containing = self.reservations.iter().find(|(_, (start, reserved))| {
            *start <= at && at.saturating_add(size) <= start.saturating_add(*reserved)
        });
        let Some((&reservation, &(start, _))) = containing else { return };
        self.mappings.push(Mapping { reservation, offset: (at - start) as i64, size, handle });
        self.points.extend([at, at + size / 2, at + size, at + size + 1]);
    }

    /// Returns the calls that unmap, free and release all objects.
    pub fn cleanup_calls(&self) -> Vec<Call> {
        let unmap = |mapping: &Mapping| Call::Unmap {
            at: Location::In(mapping.reservation, mapping.offset),
            size: mapping.size,
        };
        let free = |(name, (_, size)): (&Name, &(u64, u64))| Call::Free {
            at: Location::In(*name, 0),
            size: *size,
        };
        let release = |(name, references): (&Name, &u64)| {
            (0..*references)
                .map(|_| Call::Release { handle: Handle::Of(*name) })
                .collect::<Vec<_>>()
        };
        let unmaps = self.mappings.iter().map(unmap);
        let frees = self.reservations.iter().map(free);
        unmaps.chain(frees).chain(self.references.iter().flat_map(release)).collect()
    }
}
