//! Mapping many, and letting agents use them.

use super::{NewMapping, check_list, range_of, rows};
use crate::access::{AccessSet, AgentSet};
use crate::vmm::ledger::{Entered, HandleRecord, MappingRecord, Range};
use crate::vmm::mapping::{Piece, torn_by};
use crate::vmm::permission::{Change, Changes, Progress, is_quarantined};
use crate::vmm::{AccessDescriptor, Handle, Operation, Physical, Refusal, Shared, VmmError};

impl Shared {
    pub(super) fn map_many(
        &self,
        mappings: &[NewMapping],
        access: &[AccessDescriptor],
    ) -> Result<(), VmmError> {
        let operation = Operation::Map;
        let refused = |refusal: Refusal| refusal.during(operation);
        self.alive(operation)?;
        let mut wanted = Vec::with_capacity(mappings.len());
        for &NewMapping { address, size, handle } in mappings {
            wanted.push((Range::new(address, size).map_err(refused)?, handle));
        }
        wanted.sort_by_key(|(range, _)| range.start);
        let ranges: Vec<Range> = wanted.iter().map(|&(range, _)| range).collect();
        check_list(operation, &ranges)?;
        let mut changes = Changes::new();
        if !access.is_empty() {
            self.changes(Operation::SetAccess, access, &mut changes)?;
        }
        // As for one: a bad handle is told before a bad range.
        for &(_, handle) in &wanted {
            self.ledger.handles.with(handle, |_| ()).map_err(refused)?;
        }
        self.at_gates(operation, &ranges, |mut entered| {
            let mut new = self.begin(operation, &entered, &wanted)?;
            match self.make(operation, &entered, &mut new, &changes) {
                Ok(()) => {
                    self.enter_all(&mut entered, &new);
                    Ok(())
                }
                Err((up, error)) => {
                    let (up, never) = new.split_at(up);
                    let error = self.take_back(operation, &mut entered, up, error);
                    never.iter().for_each(|it| self.end_mapping(operation, it.before.record.slot));
                    Err(error)
                }
            }
        })
    }

    /// Keeps all the memory alive, if each of them may be mapped.
    fn begin(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        wanted: &[(Range, Handle)],
    ) -> Result<Vec<Progress>, VmmError> {
        let mut new: Vec<Progress> = Vec::with_capacity(wanted.len());
        for &(range, handle) in wanted {
            let look =
                |record: &HandleRecord<Physical>| (record.payload.native, record.payload.owner);
            let inside = entered.around(range);
            let begun =
                inside.and_then(|inside| self.ledger.begin_map(inside, range, handle, look));
            let (slot, (native, owner)) = match begun {
                Ok(begun) => begun,
                Err(refusal) => {
                    new.iter().for_each(|it| self.end_mapping(operation, it.before.record.slot));
                    return Err(refusal.during(operation));
                }
            };
            let record = MappingRecord {
                size: range.size,
                slot,
                // It has one when all of them are there.
                serial: 0,
                access: AccessSet::default(),
                granted: AgentSet::default(),
            };
            new.push(Progress::none(Piece { start: range.start, record, native, owner }));
        }
        Ok(new)
    }

    /// Makes the mappings in the runtime. A failure tells how many of them were mapped before it.
    fn make(
        &self,
        operation: Operation,
        entered: &Entered<'_>,
        new: &mut [Progress],
        changes: &[Change],
    ) -> Result<(), (usize, VmmError)> {
        let grant = Operation::SetAccess;
        for mapping in &*new {
            self.check_reach(grant, mapping.before.owner, changes).map_err(|error| (0, error))?;
        }
        for (up, mapping) in new.iter().enumerate() {
            let (Range { start, size }, native) =
                (range_of(&mapping.before), mapping.before.native);
            self.call_locked(|runtime| runtime.map(start, size, native))
                .map_err(|failure| (up, self.failure(operation, failure, size)))?;
        }
        let all = new.len();
        let rows = rows(entered, new.iter().map(|mapping| range_of(&mapping.before)));
        let mut rest = new;
        for row in rows {
            let (neighbours, others) = rest.split_at_mut(row);
            if !changes.is_empty() {
                self.change_run(grant, neighbours, changes).map_err(|error| (all, error))?;
            }
            rest = others;
        }
        Ok(())
    }

    /// Enters mappings that are there, with who may use them, at once for those who ask.
    fn enter_all(&self, entered: &mut Entered<'_>, new: &[Progress]) {
        let records = new.iter().map(|it| (it.before.start, &it.record));
        self.ledger.add_mappings(entered, records);
    }

    /// Unmaps what was mapped before an error. What cannot be unmapped is entered, so that it is known
    /// what is there, and its reservation is taken out of use.
    fn take_back(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        up: &[Progress],
        error: VmmError,
    ) -> VmmError {
        let mut answer = error;
        for mapping in up.iter().rev() {
            let Progress { ref before, record, .. } = *mapping;
            let now = Piece { record, ..*before };
            let down = if mapping.mapped {
                self.take_down(operation, now.start, &now.record)
            } else {
                Ok(Ok(()))
            };
            match down {
                Ok(Ok(())) => self.end_mapping(operation, record.slot),
                Ok(Err(errno)) => {
                    self.end_mapping(operation, record.slot);
                    answer = self.quarantine(operation, before.start, torn_by(errno));
                }
                Err(broken) => {
                    // Whoever was asked for may be in.
                    let mut left = *mapping;
                    left.record.granted = record.granted.and(mapping.asked);
                    self.enter_all(entered, &[left]);
                    if !self.is_out_of_use(before.start) {
                        answer = self.not_undone(operation, before.start, error, broken.error);
                    }
                }
            }
        }
        debug_assert!(!is_quarantined(&error) || is_quarantined(&answer));
        answer
    }
}
