//! Unmapping many runs.

use super::{in_order, range_of, rows};
use crate::access::AgentSet;
use crate::vmm::ledger::Entered;
use crate::vmm::mapping::{Piece, torn_by};
use crate::vmm::permission::is_quarantined;
use crate::vmm::{Address, Operation, Shared, VmmError, system_failure};
use rustix::io::Errno;

impl Shared {
    pub(super) fn unmap_many(&self, runs: &[(Address, usize)]) -> Result<(), VmmError> {
        let operation = Operation::Unmap;
        self.alive(operation)?;
        let ranges = in_order(operation, runs)?;
        self.at_gates(operation, &ranges, |mut entered| {
            let mut all = Vec::with_capacity(ranges.len());
            for &range in &ranges {
                all.extend(self.run(operation, &entered, range)?);
            }
            let rows = if self.quirks.unmap_of_several_fails {
                vec![1; all.len()]
            } else {
                rows(&entered, all.iter().map(range_of))
            };
            let (mut down, mut torn) = (0, Vec::new());
            for row in rows {
                let (before, row) = all[..down + row].split_at(down);
                match self.take_row_down(operation, row) {
                    Ok(strangers) => torn.extend(strangers),
                    // What a stranger has taken must not be mapped over.
                    Err(error) if !torn.is_empty() => {
                        self.make_whole(operation, &mut entered, row, error);
                        break;
                    }
                    Err(error) => {
                        let error = self.make_whole(operation, &mut entered, row, error);
                        return Err(self.set_up_again(operation, &mut entered, before, error));
                    }
                }
                down += row.len();
            }
            // Before they are left: who waits must not be let in to map over a stranger's memory.
            let quarantine = |(start, errno)| self.quarantine(operation, start, torn_by(errno));
            let torn = torn.into_iter().map(quarantine).last();
            self.remove(operation, entered, all[..down].iter().map(|piece| piece.start));
            torn.map_or(Ok(()), Err)
        })
    }

    /// Unmaps neighbours in one call of the runtime, and then removes this process's view of them.
    ///
    /// Returns those whose addresses are not reserved any more.
    fn take_row_down(
        &self,
        operation: Operation,
        row: &[Piece],
    ) -> Result<Vec<(usize, Errno)>, VmmError> {
        let Some(first) = row.first() else { return Ok(Vec::new()) };
        let size = row.iter().map(|piece| piece.record.size).sum();
        self.call_locked(|native| native.unmap(first.start, size))
            .map_err(|failure| self.failure(operation, failure, size))?;
        let kept = |piece: &Piece| {
            Some((piece.start, self.keep_reserved(piece.start, &piece.record).err()?))
        };
        Ok(row.iter().filter_map(kept).collect())
    }

    /// Makes whole what the runtime refused to unmap: it may have unmapped some, and taken the next
    /// away from some agents.
    fn make_whole(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        row: &[Piece],
        error: VmmError,
    ) -> VmmError {
        let make_whole = |piece: &Piece| match row.len() {
            // Most likely nothing has happened.
            1 => self
                .let_use_again(operation, piece)
                .or_else(|_| self.set_up_as_before(operation, piece)),
            _ if !self.is_mapped(operation, piece)? => {
                // The runtime maps over whatever is there.
                self.keep_reserved(piece.start, &piece.record)
                    .map_err(|errno| system_failure(operation, "mmap", errno))?;
                self.set_up_as_before(operation, piece)
            }
            _ => self.let_use_again(operation, piece),
        };
        self.put_all_back(operation, entered, row.iter(), make_whole, error)
    }

    /// Makes mappings anew that were taken down.
    fn set_up_again(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        down: &[Piece],
        error: VmmError,
    ) -> VmmError {
        let set_up = |piece: &Piece| self.set_up_as_before(operation, piece);
        self.put_all_back(operation, entered, down.iter().rev(), set_up, error)
    }

    /// Undoes, mapping by mapping, but in reservations that are out of use; one in which that fails is
    /// taken out of use too.
    fn put_all_back<'a>(
        &self,
        operation: Operation,
        entered: &mut Entered<'_>,
        pieces: impl Iterator<Item = &'a Piece>,
        undo: impl Fn(&Piece) -> Result<AgentSet, VmmError>,
        error: VmmError,
    ) -> VmmError {
        let mut answer = error;
        for piece in pieces {
            if self.is_out_of_use(piece.start) {
                continue;
            }
            match self.note_undone(operation, entered, piece, undo(piece), error) {
                Err(worse) if !is_quarantined(&answer) => answer = worse,
                _ => {}
            }
        }
        answer
    }

    /// Whether the runtime has this mapping.
    fn is_mapped(&self, operation: Operation, piece: &Piece) -> Result<bool, VmmError> {
        // Inside of it: at its end AMD's runtime answers for the one before.
        let (inside, size) = (piece.start + piece.record.size / 2, piece.record.size);
        let Some(gpu) = self.runtime.gpus().next() else { return Ok(true) };
        self.call_locked(|native| native.is_mapped(inside, gpu.native))
            .map_err(|failure| self.failure(operation, failure, size))
    }
}
