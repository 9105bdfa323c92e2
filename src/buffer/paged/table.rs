//! Which page has what.

use super::{Failure, PagedStatistics};
use crate::buffer::BufferError;
use crate::buffer::grants::Grants;
use crate::vmm::{Allocation, VmmError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// How many places may wait for pages ahead of them; the oldest are forgotten.
const MOST_WANTED: usize = 1024;

/// What is behind a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageState {
    /// Nothing: a load faults.
    Empty,
    /// The zero page.
    Zero,
    /// Memory that was mapped before anybody asked for it.
    Ahead,
    /// Memory.
    Mapped,
    /// It is not known: the page is not used any more.
    Lost,
}

/// A page that is not idle.
#[derive(Debug)]
pub(in crate::buffer) enum Page {
    Mapped(Allocation),
    Ahead(Allocation),
    Lost,
}

/// Which page has what, and what has happened. It calls nobody.
#[derive(Debug, Default)]
pub(in crate::buffer) struct Table {
    pages: BTreeMap<usize, Page>,
    grants: Grants,
    /// Memory that is kept because the runtime would not give it back.
    spare: Vec<Allocation>,
    /// Pages behind which something was mapped: the ones from there on are wanted.
    wanted: VecDeque<usize>,
    ended: bool,
    figures: PagedStatistics,
}

impl Table {
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    pub fn set_grants(&mut self, change: impl FnOnce(&Grants) -> Grants) {
        self.grants = change(&self.grants);
    }

    /// Whether all of the pages may get memory.
    pub fn check_free(&self, pages: &Range<usize>) -> Result<(), BufferError> {
        for (&page, state) in self.pages.range(pages.clone()) {
            match state {
                Page::Mapped(_) => return Err(BufferError::PageMapped { page }),
                Page::Lost => return Err(BufferError::PageLost { page }),
                Page::Ahead(_) => {}
            }
        }
        Ok(())
    }

    /// Whether all of the pages are mapped; or, if zeros will do, idle.
    pub fn check_usable(&self, pages: &Range<usize>, zeros: bool) -> Result<(), BufferError> {
        for page in pages.clone() {
            match self.pages.get(&page) {
                Some(Page::Mapped(_)) => {}
                None if zeros => {}
                Some(Page::Lost) => return Err(BufferError::PageLost { page }),
                _ => return Err(BufferError::PageNotMapped { page }),
            }
        }
        Ok(())
    }

    /// The memory of pages, all of which must be mapped.
    pub fn memory(&self, pages: &Range<usize>) -> Result<Vec<Allocation>, BufferError> {
        let of = |page| match self.pages.get(&page) {
            Some(Page::Mapped(memory)) => Ok(memory.clone()),
            Some(Page::Lost) => Err(BufferError::PageLost { page }),
            _ => Err(BufferError::PageNotMapped { page }),
        };
        pages.clone().map(of).collect()
    }

    /// The runs among these pages that are idle.
    pub fn absent(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut next = pages.start;
        let present = self.pages.range(pages.clone()).map(|(&page, _)| page);
        for page in present.chain([pages.end]) {
            if next < page {
                runs.push(next..page);
            }
            next = page + 1;
        }
        runs
    }

    /// Enters that pages are in use, of which the idle ones were given memory in this order.
    pub fn note_mapped(
        &mut self,
        pages: &Range<usize>,
        idle: Vec<Range<usize>>,
        memory: Vec<Allocation>,
    ) {
        self.figures.found_ahead += (pages.len() - memory.len()) as u64;
        self.figures.maps += pages.len() as u64;
        for (page, memory) in idle.into_iter().flatten().zip(memory) {
            self.pages.insert(page, Page::Mapped(memory));
        }
        for page in self.pages.range_mut(pages.clone()).map(|(_, page)| page) {
            if let Page::Ahead(memory) = page {
                *page = Page::Mapped(memory.clone());
            }
        }
        self.figures.mapped += pages.len();
        self.figures.most_mapped = self.figures.most_mapped.max(self.figures.mapped);
    }

    /// Enters that pages are idle that were in use.
    pub fn note_unmapped(&mut self, pages: &Range<usize>) {
        pages.clone().for_each(|page| drop(self.pages.remove(&page)));
        self.figures.unmaps += pages.len() as u64;
        self.figures.mapped -= pages.len();
    }

    /// Enters that pages have changed their memory for that.
    pub fn replace(&mut self, pages: &Range<usize>, memory: Vec<Allocation>) {
        let entries = pages.clone().zip(memory.into_iter().map(Page::Mapped));
        self.pages.extend(entries);
    }

    pub fn insert_ahead(&mut self, page: usize, memory: Allocation) {
        self.figures.mapped_ahead += 1;
        self.pages.insert(page, Page::Ahead(memory));
    }

    pub fn remove_ahead(&mut self, run: &Range<usize>) {
        run.clone().for_each(|page| drop(self.pages.remove(&page)));
    }

    /// Takes pages out of use.
    pub fn lose(&mut self, run: &Range<usize>, failure: &Failure) {
        crate::log::error!(error = %failure.error, ?run, "pages are lost");
        for page in run.clone() {
            if let Some(Page::Mapped(_)) = self.pages.insert(page, Page::Lost) {
                self.figures.mapped -= 1;
            }
        }
        self.figures.lost += run.len();
    }

    /// What to say of a failure; takes the pages out of use if they are not as they were.
    pub fn lose_unless_undone(&mut self, run: &Range<usize>, failure: Failure) -> BufferError {
        if failure.undone {
            return failure.error.into();
        }
        self.lose(run, &failure);
        BufferError::PagesLost { first: run.start, count: run.len(), cause: failure.error }
    }

    /// The runs of pages that were mapped ahead, with their memory.
    pub fn ahead(&self) -> Vec<(Range<usize>, Vec<Allocation>)> {
        self.ahead_in(0..usize::MAX)
    }

    pub fn ahead_in(&self, pages: Range<usize>) -> Vec<(Range<usize>, Vec<Allocation>)> {
        let mut runs: Vec<(Range<usize>, Vec<Allocation>)> = Vec::new();
        for (&page, state) in self.pages.range(pages) {
            let Page::Ahead(memory) = state else { continue };
            match runs.last_mut() {
                Some((run, all)) if run.end == page => {
                    run.end += 1;
                    all.push(memory.clone());
                }
                _ => runs.push((page..page + 1, vec![memory.clone()])),
            }
        }
        runs
    }

    /// Whether one of so many pages before this one is in use.
    pub fn is_behind_a_mapped_page(&self, page: usize, pages: usize) -> bool {
        let before = self.pages.range(page.saturating_sub(pages)..page);
        before.rev().any(|(_, state)| matches!(state, Page::Mapped(_)))
    }

    /// Every run of pages that something is mapped behind, and whether that is the zero page.
    pub fn runs(&self, count: usize, zero: bool) -> Vec<(Range<usize>, bool)> {
        let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
        let mut next = 0;
        let idle = |runs: &mut Vec<_>, range: Range<usize>| {
            if zero && !range.is_empty() {
                runs.push((range, true));
            }
        };
        for (&page, state) in &self.pages {
            idle(&mut runs, next..page);
            next = page + 1;
            if matches!(state, Page::Lost) {
                continue;
            }
            match runs.last_mut() {
                Some((run, false)) if run.end == page => run.end += 1,
                _ => runs.push((page..page + 1, false)),
            }
        }
        idle(&mut runs, next..count);
        runs
    }

    /// A page that shows the zero page, if there is one.
    pub fn a_zero_page(&self, count: usize) -> Option<usize> {
        self.absent(&(0..count)).first().map(|run| run.start)
    }

    pub fn lost(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().filter(|(_, page)| matches!(page, Page::Lost)).map(|(&page, _)| page)
    }

    pub fn state(&self, page: usize, zero: bool) -> PageState {
        match self.pages.get(&page) {
            Some(Page::Mapped(_)) => PageState::Mapped,
            Some(Page::Ahead(_)) => PageState::Ahead,
            Some(Page::Lost) => PageState::Lost,
            None if zero => PageState::Zero,
            None => PageState::Empty,
        }
    }

    /// As much of so much memory as is kept.
    pub fn take_spare(&mut self, count: usize) -> Vec<Allocation> {
        self.spare.split_off(self.spare.len().saturating_sub(count))
    }

    pub fn keep_spare(&mut self, memory: Vec<Allocation>) {
        self.spare.extend(memory);
    }

    /// Asks for pages ahead of those before this one.
    pub fn want_ahead(&mut self, page: usize) {
        if self.wanted.contains(&page) {
            return;
        }
        if self.wanted.len() == MOST_WANTED {
            self.wanted.pop_front();
        }
        self.wanted.push_back(page);
    }

    pub fn want_nothing_ahead(&mut self) {
        self.wanted.clear();
    }

    /// The next page that is to be mapped ahead.
    pub fn next_ahead(&mut self, ahead: usize, count: usize) -> Option<usize> {
        while let Some(&from) = self.wanted.front() {
            let is_used = from > 0 && matches!(self.pages.get(&(from - 1)), Some(Page::Mapped(_)));
            let pages = from..from.saturating_add(ahead).min(count);
            let found = pages.clone().find(|page| !self.pages.contains_key(page));
            if let Some(page) = found.filter(|_| is_used) {
                return Some(page);
            }
            self.wanted.pop_front();
        }
        None
    }

    /// Mapping ahead has failed: it rests until something else is wanted.
    pub fn note_failure_ahead(&mut self, error: VmmError) {
        crate::log::debug!(%error, "a page was not mapped ahead");
        self.wanted.clear();
        self.figures.failures_ahead += 1;
        self.figures.last_failure_ahead = Some(error);
    }

    pub fn end(&mut self) {
        self.ended = true;
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    pub fn statistics(
        &self,
        count: usize,
        page: usize,
        zero: bool,
        fill: impl FnOnce(&mut PagedStatistics),
    ) -> PagedStatistics {
        let mut figures = self.figures.clone();
        let present = self.pages.len();
        figures.pages = count;
        figures.page_size = page;
        figures.ahead = present - figures.mapped - figures.lost;
        figures.zero = if zero { count - present } else { 0 };
        figures.ready = self.spare.len();
        fill(&mut figures);
        figures
    }
}
