//! Pages that are mapped ahead.

use super::{LockedTable, Page, PageState, Table};
use crate::error::Problem;
use crate::vmm::Mapping;
use std::ops::Range;

impl LockedTable<'_> {
    /// Returns the pages in a range that are mapped ahead.
    pub fn mapped_ahead(&self, pages: Range<usize>) -> impl Iterator<Item = usize> {
        let ahead = self.table.pages.range(pages).filter(|(_, it)| it.state == PageState::Ahead);
        ahead.map(|(&page, _)| page)
    }

    /// Returns the number of pages in a range that need memory: the pages that are not mapped ahead.
    pub fn count_missing(&mut self, pages: &Range<usize>) -> usize {
        self.empty_unmapped_ahead(pages.clone());
        pages.len() - self.mapped_ahead(pages.clone()).count()
    }

    /// Changes pages in a range that were mapped ahead, but then unmapped by their addresses, to [`PageState::Empty`].
    pub fn empty_unmapped_ahead(&mut self, pages: Range<usize>) {
        let is_unmapped = |page: &usize| {
            let mapping = self.table.pages.get(page).and_then(|it| it.mapping.as_ref());
            let checked = mapping.map_or(Ok(()), Mapping::check_mapped);
            checked.is_err_and(|it| matches!(it.problem(), Some(Problem::NotMapped(..))))
        };
        let unmapped: Vec<_> = self.mapped_ahead(pages).filter(is_unmapped).collect();
        for page in unmapped {
            let mapping = self.table.pages.get_mut(&page).and_then(|it| it.mapping.take());
            // Fails, because the mapping does not exist any more. Dropping a mapping would log the failure.
            let _ = mapping.map(Mapping::unmap);
            let memory = self.replace_page(page, Page::without_memory(PageState::Empty));
            self.store(memory);
        }
    }

    /// Changes the pages of a range from [`PageState::Ahead`] to [`PageState::Mapped`].
    pub fn mark_used(&mut self, pages: &Range<usize>) {
        let Table { pages: all_pages, counters, .. } = &mut *self.table;
        for (_, page) in all_pages.range_mut(pages.clone()) {
            if page.state == PageState::Ahead {
                counters.count(page.state, PageState::Mapped);
                page.state = PageState::Mapped;
            }
        }
    }

    /// Unmaps pages from `page` on that were mapped ahead, but that no longer follow a page in use.
    pub fn unmap_ahead(&mut self, page: usize) {
        let count = self.core.pages_ahead;
        self.empty_unmapped_ahead(page..page.saturating_add(count));
        let follows_a_mapped_page = |page: usize| {
            let mut preceding_pages = self.table.pages.range(page.saturating_sub(count)..page);
            preceding_pages.any(|(_, it)| it.state == PageState::Mapped)
        };
        let candidates = self.mapped_ahead(page..page.saturating_add(count));
        let idle: Vec<_> = candidates.filter(|&page| !follows_a_mapped_page(page)).collect();
        if let Err(error) = self.empty_pages(idle) {
            crate::log::event!(WARN, %error, "pages stay mapped ahead");
        }
    }

    /// Returns the next page to map ahead. Removes entries of `ahead_from` for which there is no page to map.
    pub(super) fn next_ahead(&mut self) -> Option<usize> {
        while let Some(&start) = self.table.ahead_from.first() {
            let follows_mapped = start > 0 && self.state(start - 1) == PageState::Mapped;
            let end = start.saturating_add(self.core.pages_ahead).min(self.core.page_count);
            self.reclaim(start..end);
            let mut pages = start..end;
            let found = pages.find(|page| !self.table.pages.contains_key(page));
            if let Some(page) = found.filter(|_| follows_mapped) {
                return Some(page);
            }
            self.table.ahead_from.pop_first();
        }
        None
    }
}
