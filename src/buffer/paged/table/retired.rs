//! Pages that were submitted to a retire queue.

use super::{LockedTable, Page, PageState, Table};
use crate::error::{Error, Problem, Rejected};
use crate::handle::Handle;
use crate::vmm::{Mapping, RetireQueue, SignalCondition};
use hsa_sys::hsa_signal_t;
use std::ops::Range;

/// A page that was submitted to a retire queue.
#[derive(Debug)]
pub(super) struct RetiredPage {
    /// The serial of the page's mapping.
    serial: u64,
    /// The handle of the memory that the page maps.
    pub handle: Handle,
}

impl LockedTable<'_> {
    /// Returns why a retired page cannot be used; `None` for a page that is not retired, or that its queue has
    /// unmapped.
    pub(super) fn problem_of_retired(&self, page: usize) -> Option<Problem> {
        let (vmm, address) = (&self.core.vmm, self.core.address_of(page));
        let serial = self.table.retired.get(&page)?.serial;
        if vmm.has_quarantined(address, serial) {
            return Some(Problem::PageQuarantined);
        }
        vmm.has_mapping(address, serial).then_some(Problem::PageRetiring)
    }

    /// Submits pages to a retire queue: all of them or none. The caller has checked that the pages are in use.
    ///
    /// # Safety
    /// As for [`RetireQueue::submit_many`].
    pub(in crate::buffer::paged) unsafe fn retire(
        &mut self,
        pages: Range<usize>,
        queue: &RetireQueue,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Error> {
        let Table { pages: all_pages, retired, counters, .. } = &mut *self.table;
        let mappings =
            all_pages.range_mut(pages.clone()).filter_map(|(_, page)| page.mapping.take());
        let mappings: Vec<Mapping> = mappings.collect();
        let serials_and_handles = mappings.iter().map(|it| (it.serial(), it.allocation().handle()));
        let serials_and_handles: Vec<_> = serials_and_handles.collect();
        // SAFETY: the caller guarantees the conditions of `submit_many`.
        let submitted = unsafe { queue.submit_many(mappings, signals) };
        if let Err(Rejected { value: mappings, error }) = submitted {
            let rejected = all_pages.range_mut(pages);
            rejected.zip(mappings).for_each(|((_, page), mapping)| page.mapping = Some(mapping));
            return Err(error);
        }
        for ((&index, page), (serial, handle)) in
            all_pages.range_mut(pages).zip(serials_and_handles)
        {
            counters.count(page.state, PageState::Retiring);
            // The queue unmaps the memory, and releases it if nothing else uses it.
            *page = Page::without_memory(PageState::Retiring);
            retired.insert(index, RetiredPage { serial, handle });
        }
        Ok(())
    }

    /// In a range of pages, empties those that a retire queue has unmapped, and marks those that it has quarantined. Each
    /// call does this only for the pages that it needs: its time does not grow with the number of retiring pages.
    pub(in crate::buffer::paged) fn reclaim(&mut self, range: Range<usize>) {
        let core = self.core;
        let Table { pages, retired, counters, .. } = &mut *self.table;
        let mut next = range.start;
        // Makes no list of the pages: at the kernel's limit of mappings, allocating a large list would end the process.
        while let Some((&index, &RetiredPage { serial, .. })) =
            retired.range(next..range.end).next()
        {
            next = index + 1;
            let address = core.address_of(index);
            if core.vmm.has_quarantined(address, serial) {
                if let Some(page) = pages.get_mut(&index) {
                    page.state = PageState::Quarantined;
                }
            } else if !core.vmm.has_mapping(address, serial) {
                retired.remove(&index);
                if let Some(page) = pages.remove(&index) {
                    counters.count(page.state, PageState::Empty);
                }
            }
        }
    }
}
