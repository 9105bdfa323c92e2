//! Changes in several reservations, all at once to who asks. The caller has entered them.

use super::{HandleRecord, Ledger, MappingRecord, Mappings, Range, Reserved};
use crate::sync::RwLockWriteGuard;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reservations that nobody else can look into, each once, by address.
struct Open<'a>(Vec<(&'a Reserved, RwLockWriteGuard<'a, Mappings>)>);

impl<'a> Open<'a> {
    fn all(reservations: &'a [Arc<Reserved>]) -> Self {
        Self(reservations.iter().map(|reserved| (&**reserved, reserved.mappings_mut())).collect())
    }

    /// What is mapped in the one that holds an address.
    fn at(&mut self, address: usize) -> Option<&mut Mappings> {
        let behind = self.0.partition_point(|(reserved, _)| reserved.base <= address);
        let (reserved, mappings) = self.0.get_mut(behind.checked_sub(1)?)?;
        reserved.holds(address).then_some(mappings)
    }
}

impl<H> Ledger<H> {
    /// Adds mappings that [`begin_map`](Self::begin_map) allowed, with who may use them; the serials
    /// are this ledger's.
    pub fn add_mappings<'a>(
        &self,
        reservations: &[Arc<Reserved>],
        new: impl Iterator<Item = (usize, &'a MappingRecord)>,
    ) {
        let mut open = Open::all(reservations);
        for (start, record) in new {
            let Some(mappings) = open.at(start) else { continue };
            mappings.add(Range { start, size: record.size }, record.slot, &self.serials);
            mappings.write_access(start, record.access, record.granted);
            self.handles.use_became_mapping(record.slot);
        }
    }

    /// Puts mappings of the same memory in the place of others. The serials are the caller's.
    pub fn rehang(
        &self,
        before: impl Iterator<Item = usize> + Clone,
        after: impl Iterator<Item = (usize, MappingRecord)> + Clone,
    ) {
        let starts = before.clone().chain(after.clone().map(|(start, _)| start));
        let around = |start| self.reservation_around(Range { start, size: 1 }).ok();
        let touched = starts.filter_map(around).map(|reserved| (reserved.base, reserved));
        let touched: BTreeMap<usize, Arc<Reserved>> = touched.collect();
        let touched: Vec<Arc<Reserved>> = touched.into_values().collect();
        let mut open = Open::all(&touched);
        for start in before {
            open.at(start).and_then(|mappings| mappings.take(start));
        }
        for (start, record) in after {
            if let Some(mappings) = open.at(start) {
                mappings.put(start, record);
            }
        }
        open.0.iter().for_each(|(_, mappings)| mappings.checked());
    }

    /// Removes mappings. What nothing keeps alive any more is to be given back.
    #[must_use = "the memory is to be given back"]
    pub fn remove_many(
        &self,
        reservations: &[Arc<Reserved>],
        starts: impl Iterator<Item = usize>,
    ) -> Vec<HandleRecord<H>> {
        let mut open = Open::all(reservations);
        let mut end = |start| self.handles.end_mapping(open.at(start)?.remove(start)?);
        starts.filter_map(&mut end).collect()
    }

    /// Enters who may use mappings now.
    pub fn write_access_of_many<'a>(
        &self,
        reservations: &[Arc<Reserved>],
        records: impl Iterator<Item = (usize, &'a MappingRecord)>,
    ) {
        let mut open = Open::all(reservations);
        for (start, record) in records {
            if let Some(mappings) = open.at(start) {
                mappings.write_access(start, record.access, record.granted);
            }
        }
    }
}
