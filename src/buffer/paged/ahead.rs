//! Mapping pages before they are asked for, and taking them back.

use super::{Backing, Core, Failure, Table};
use crate::sync::atomic::Ordering;
use crate::vmm::{Allocation, VmmError};
use std::ops::Range;
use std::sync::PoisonError;

/// Tells that the thread ends, however it does.
struct End<'a>(&'a Core);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.mapping.store(false, Ordering::Relaxed);
    }
}

impl Core {
    /// What the thread does until the buffer's end. It holds the lock only while it maps one page.
    pub fn map_ahead(&self) {
        self.mapping.store(true, Ordering::Relaxed);
        let _end = End(self);
        let mut table = self.table();
        while !table.has_ended() {
            let Some(page) = table.next_ahead(self.ahead, self.count) else {
                table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut memory = table.take_spare(1);
            if memory.is_empty() {
                drop(table);
                let made = self.stock.take(1);
                table = self.table();
                match made {
                    Ok(made) => memory = made,
                    Err(error) => {
                        table.note_failure_ahead(error);
                        continue;
                    }
                }
            }
            // Somebody may have mapped it meanwhile, or unmapped the one before it.
            if table.has_ended() || table.next_ahead(self.ahead, self.count) != Some(page) {
                self.give(&mut table, memory);
                continue;
            }
            self.map_one_ahead(&mut table, page, memory);
        }
    }

    /// Whether the thread is there.
    pub fn is_mapping_ahead(&self) -> bool {
        self.mapping.load(Ordering::Relaxed)
    }

    fn map_one_ahead(&self, table: &mut Table, page: usize, memory: Vec<Allocation>) {
        let run = page..page + 1;
        let backing = Backing::Memory(&memory);
        match self.swap(&run, table.grants(), Backing::Nothing, backing) {
            Ok(()) => memory.into_iter().for_each(|memory| table.insert_ahead(page, memory)),
            Err(failure) => {
                // What is behind a lost page must not come to be behind another.
                if failure.undone {
                    self.give(table, memory);
                } else {
                    table.lose(&run, &failure);
                }
                table.note_failure_ahead(failure.error);
            }
        }
    }

    /// Takes back what was mapped ahead of pages that are not in use any more, as far as that goes.
    pub fn take_back_behind(&self, table: &mut Table, page: usize) {
        let near = page..page.saturating_add(self.ahead);
        let is_wanted = |page: &usize| table.is_behind_a_mapped_page(*page, self.ahead);
        let idle = table.ahead_in(near).into_iter().filter_map(|(run, memory)| {
            // From the first page on that nobody in use is before.
            let kept = run.clone().take_while(is_wanted).count();
            let (start, memory) = (run.start + kept, memory[kept..].to_vec());
            (start < run.end).then_some((start..run.end, memory))
        });
        let idle: Vec<_> = idle.collect();
        let (memory, answer) = self.take_back(table, idle);
        if let Err(error) = answer {
            crate::log::warning!(%error, "pages stay mapped ahead");
        }
        self.give(table, memory);
    }

    /// Unmaps pages that were mapped ahead, as far as that goes, and returns their memory.
    pub fn take_back(
        &self,
        table: &mut Table,
        ahead: Vec<(Range<usize>, Vec<Allocation>)>,
    ) -> (Vec<Allocation>, Result<(), VmmError>) {
        let (mut back, mut answer) = (Vec::new(), Ok(()));
        for (run, memory) in ahead {
            let before = Backing::Memory(&memory);
            match self.swap(&run, table.grants(), before, Backing::Nothing) {
                Ok(()) => {
                    table.remove_ahead(&run);
                    back.extend(memory);
                }
                Err(failure) => {
                    if !failure.undone {
                        table.lose(&run, &failure);
                    }
                    let Failure { error, .. } = failure;
                    answer = answer.and(Err(error));
                }
            }
        }
        (back, answer)
    }
}
