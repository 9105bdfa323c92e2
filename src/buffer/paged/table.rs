//! The table of a buffer's pages: the state of each page, and the changes of these states.

mod ahead;
mod retired;

use super::{PageState, PagedStatistics};
use crate::address::Address;
use crate::buffer::handle_pool::HandlePool;
use crate::buffer::{BufferPart, Grants, current_access, is_quarantine};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected, Value};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::vmm::{Allocation, AllocationProperties, MapRequest, Mapping, Reservation, Vmm};
use retired::RetiredPage;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::PoisonError;

/// A page. In a table, this is the page's current state. In a [`Plan`], it is the page's new state, without a
/// mapping.
#[derive(Debug)]
pub(super) struct Page {
    state: PageState,
    /// `None` if the page is lost, retiring or quarantined.
    mapping: Option<Mapping>,
    /// `None` if the page is lost, retiring or quarantined, or if it maps the zero page. Each page that maps the memory,
    /// of this or another buffer, has a clone.
    memory: Option<Allocation>,
}

impl Page {
    /// Creates a page in use.
    pub fn mapped(memory: Allocation) -> Self {
        Self { state: PageState::Mapped, mapping: None, memory: Some(memory) }
    }

    /// Creates a page without its own memory.
    fn without_memory(state: PageState) -> Self {
        Self { state, mapping: None, memory: None }
    }
}

/// The number of pages that are unmapped at once when a buffer is dropped. At the kernel's limit of mappings, the process
/// would end if it allocated a large list.
const UNMAP_BATCH: usize = 64;

/// The pages of one buffer to change, and their new states.
pub(super) type Plan = Vec<(usize, Page)>;

/// The part of a buffer that is shared with the thread that maps pages ahead.
#[derive(Debug)]
pub(super) struct PagedCore {
    pub table: Mutex<Table>,
    /// Notified when pages should be mapped ahead, and when the thread should stop.
    pub changed: Condvar,
    pub zero_page: Option<Allocation>,
    /// The number of pages to map ahead.
    pub pages_ahead: usize,
    /// The size of a page in bytes.
    pub page_size: usize,
    /// The number of pages.
    pub page_count: usize,
    pub pool: HandlePool,
    pub reservation: Reservation,
    pub properties: AllocationProperties,
    pub vmm: Vmm,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// The pages that are not empty.
    pages: BTreeMap<usize, Page>,
    /// The retired pages, except those that `reclaim` has emptied.
    retired: BTreeMap<usize, RetiredPage>,
    pub grants: Grants,
    /// The numbers of pages that follow mapped pages. The thread maps up to `pages_ahead` pages, beginning at each
    /// of these numbers.
    pub ahead_from: BTreeSet<usize>,
    pub stopped: bool,
    /// Whether the thread is allocating memory for a page, with the table unlocked.
    allocating_ahead: bool,
    counters: PagedStatistics,
}

/// A buffer whose table is locked.
pub(super) struct LockedTable<'a> {
    core: &'a PagedCore,
    pub table: MutexGuard<'a, Table>,
}

impl PagedCore {
    /// Locks the table. Must not be called in a forked child.
    pub fn lock(&self) -> LockedTable<'_> {
        LockedTable { core: self, table: lock(&self.table) }
    }

    /// Locks the table. Fails in a forked child.
    pub fn lock_for(&self, operation: Operation) -> Result<LockedTable<'_>, Error> {
        self.vmm.runtime().check_not_forked().map_err(|kind| Error::new(operation, kind))?;
        Ok(self.lock())
    }

    /// Locks the table for an operation on all mapped pages ([`lock_for`](Self::lock_for)). Pages that were mapped
    /// ahead, and then unmapped by their addresses, are empty.
    pub fn lock_all(&self, operation: Operation) -> Result<LockedTable<'_>, Error> {
        let mut locked = self.lock_for(operation)?;
        locked.empty_unmapped_ahead(0..self.page_count);
        Ok(locked)
    }

    pub fn address_of(&self, page: usize) -> Address {
        Address::new(self.reservation.address().get() + page * self.page_size)
    }

    /// Returns a range of pages with the address of its first page.
    pub fn with_address(&self, pages: &Range<usize>) -> (Range<usize>, Address) {
        (pages.clone(), self.address_of(pages.start))
    }

    /// Checks that all pages of a range exist, and returns the range.
    pub fn check_range(&self, pages: Range<usize>) -> Result<Range<usize>, ErrorKind> {
        if pages.start > pages.end {
            return Err(invalid(pages.start, Problem::StartAfterEnd(pages.end)));
        }
        if pages.end > self.page_count {
            let problem = Problem::OutOfRange(self.page_count);
            return Err(invalid(pages.start.max(self.page_count), problem));
        }
        Ok(pages)
    }

    /// Maps pages ahead until `stopped` is set. The thread runs this function, which locks the table for one page at
    /// a time.
    pub fn map_ahead(&self) {
        let mut locked = self.lock();
        while !locked.table.stopped {
            let Some(page) = locked.next_ahead() else {
                locked = locked.wait();
                continue;
            };
            locked.table.allocating_ahead = true;
            drop(locked);
            let taken = self.pool.take(1);
            locked = self.lock();
            locked.table.allocating_ahead = false;
            self.changed.notify_all();
            let result = taken.and_then(|memory| {
                // While the table was unlocked, another thread may have mapped this page, or unmapped the previous
                // page.
                if locked.table.stopped || locked.next_ahead() != Some(page) {
                    locked.store(memory);
                    return Ok(());
                }
                let ahead = |it| (page, Page { state: PageState::Ahead, ..Page::mapped(it) });
                locked.change(Operation::MapPages, memory.into_iter().map(ahead).collect())
            });
            if let Err(error) = result {
                crate::log::event!(DEBUG, %error, "a page was not mapped ahead");
                // Stops mapping ahead until a caller maps more pages.
                locked.table.ahead_from.clear();
                locked.table.counters.failures_ahead += 1;
                locked.table.counters.last_failure_ahead = Some(error);
            }
        }
    }
}

impl LockedTable<'_> {
    /// Unlocks the table, waits until `changed` is notified, and locks the table.
    fn wait(self) -> Self {
        let table = self.core.changed.wait(self.table).unwrap_or_else(PoisonError::into_inner);
        Self { table, ..self }
    }

    /// If memory has run out while the thread is allocating a page, stops mapping ahead, and waits until the thread has
    /// released this page. Other threads may change pages meanwhile. Otherwise returns the error.
    pub fn wait_for_memory(mut self, error: Error) -> Result<Self, Error> {
        if !self.table.allocating_ahead || !matches!(error.kind(), ErrorKind::OutOfMemory { .. }) {
            return Err(error);
        }
        self.table.ahead_from.clear();
        while self.table.allocating_ahead {
            self = self.wait();
        }
        Ok(self)
    }

    /// Returns the state of a page. A page that its retire queue has unmapped counts as retiring until it is reclaimed.
    pub fn state(&self, page: usize) -> PageState {
        self.table.pages.get(&page).map_or(PageState::Empty, |found| found.state)
    }

    pub fn mappings(&self) -> impl Iterator<Item = (PageState, &Mapping)> {
        self.table.pages.values().filter_map(|page| Some((page.state, page.mapping.as_ref()?)))
    }

    /// Checks that pages can be mapped: no page is in use, lost, retiring or quarantined.
    pub fn check_free(&mut self, pages: &Range<usize>) -> Result<(), ErrorKind> {
        self.reclaim(pages.clone());
        for (&page, found) in self.table.pages.range(pages.clone()) {
            match found.state {
                PageState::Mapped => return Err(invalid(page, Problem::PageMapped)),
                PageState::Lost => return Err(invalid(page, Problem::PageLost)),
                PageState::Retiring => return Err(invalid(page, Problem::PageRetiring)),
                PageState::Quarantined => return Err(invalid(page, Problem::PageQuarantined)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the mapping and the memory of a page. Fails if the page is not in use.
    pub fn mapping_and_memory(&self, page: usize) -> Result<(&Mapping, &Allocation), ErrorKind> {
        match self.table.pages.get(&page) {
            Some(Page {
                state: PageState::Mapped,
                mapping: Some(mapping),
                memory: Some(memory),
            }) => Ok((mapping, memory)),
            Some(Page { state: PageState::Lost, .. }) => Err(invalid(page, Problem::PageLost)),
            _ => {
                Err(invalid(page, self.problem_of_retired(page).unwrap_or(Problem::PageNotMapped)))
            }
        }
    }

    /// Returns the memory of pages. Fails if a page is not in use.
    pub fn memory(&self, pages: &Range<usize>) -> Result<Vec<Allocation>, ErrorKind> {
        pages.clone().map(|page| Ok(self.mapping_and_memory(page)?.1.clone())).collect()
    }

    /// Returns a part of the buffer. Fails if a page of the part is not in use. However, [`Operation::Read`] can also
    /// use pages that map the zero page.
    pub fn part(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
    ) -> Result<BufferPart<'_>, Error> {
        let to_error = |kind| Error::new(operation, kind);
        let core = self.core;
        let capacity = core.page_count * core.page_size;
        Argument::Offset.check_bounds(offset, size, capacity).map_err(to_error)?;
        let mapping = |page| match self.table.pages.get(&page) {
            Some(Page { state: PageState::Zero, mapping: Some(mapping), .. })
                if operation == Operation::Read =>
            {
                Ok(mapping)
            }
            _ => self.mapping_and_memory(page).map(|(mapping, _)| mapping),
        };
        let first = offset / core.page_size;
        let end = if size == 0 { first } else { (offset + size).div_ceil(core.page_size) };
        let mappings = (first..end).map(mapping).collect::<Result<_, _>>().map_err(to_error)?;
        Ok(BufferPart { base: core.reservation.address(), offset, mappings })
    }

    pub fn statistics(&mut self) -> PagedStatistics {
        self.reclaim(0..self.core.page_count);
        let (core, pages) = (self.core, &self.table.pages);
        let count = |state| pages.values().filter(|page| page.state == state).count();
        let memory = pages.values().filter(|page| page.state == PageState::Mapped);
        let memory = memory.filter_map(|page| page.memory.as_ref());
        let shared: Vec<_> = memory.filter(|memory| memory.mapping_count() > 1).collect();
        let retired = &self.table.retired;
        let handles = shared.iter().map(|memory| memory.handle());
        let distinct: HashSet<_> = handles.chain(retired.values().map(|it| it.handle)).collect();
        PagedStatistics {
            pages: core.page_count,
            page_size: core.page_size,
            ahead: count(PageState::Ahead),
            zero: count(PageState::Zero),
            has_zero_page: core.zero_page.is_some(),
            retiring: count(PageState::Retiring),
            quarantined: count(PageState::Quarantined),
            lost: count(PageState::Lost),
            shared: shared.len(),
            repeated: shared.len() + retired.len() - distinct.len(),
            ready: core.pool.ready(),
            ..self.table.counters.clone()
        }
    }

    /// Takes memory for `count` pages from the pool. If memory runs out, unmaps pages outside `pages` that were
    /// mapped ahead, and tries again.
    pub fn take(&mut self, count: usize, pages: &Range<usize>) -> Result<Vec<Allocation>, Error> {
        let mut taken = self.core.pool.take(count);
        if let Err(error) = &taken
            && matches!(error.kind(), ErrorKind::OutOfMemory { .. })
        {
            // Not the pages in `pages`, whose number the caller has counted.
            self.empty_unmapped_ahead(0..pages.start);
            self.empty_unmapped_ahead(pages.end..self.core.page_count);
            let ahead = self.mapped_ahead(0..self.core.page_count);
            let others: Vec<_> = ahead.filter(|page| !pages.contains(page)).collect();
            if !others.is_empty() && self.empty_pages(others).is_ok() {
                taken = self.core.pool.take(count);
            }
        }
        taken.map_err(|error| error.for_pages(&[self.core.with_address(pages)]))
    }

    /// Returns the plan that unmaps these pages. If there is a zero page, the plan maps it at these pages.
    pub fn plan_to_empty(&self, pages: impl IntoIterator<Item = usize>) -> Plan {
        let state = if self.core.zero_page.is_some() { PageState::Zero } else { PageState::Empty };
        pages.into_iter().map(|page| (page, Page::without_memory(state))).collect()
    }

    /// Unmaps pages, all or none, and returns their memory to the pool. Maps the zero page at these pages, if there is
    /// one.
    pub fn empty_pages(&mut self, pages: impl IntoIterator<Item = usize>) -> Result<(), Error> {
        let (operation, plan) = (Operation::UnmapPages, self.plan_to_empty(pages));
        // Mapping the zero page can fail, too.
        self.change(operation, plan).map_err(|error| error.with_operation(operation))
    }

    /// Changes pages, all or none. Returns freed memory to the pool.
    pub fn change(&mut self, operation: Operation, plan: Plan) -> Result<(), Error> {
        let pages = plan.iter().map(|&(index, _)| index);
        let Some((first, last)) = pages.clone().min().zip(pages.max()) else { return Ok(()) };
        let pages = self.core.with_address(&(first..last + 1));
        commit(operation, &[pages], &mut [(self, plan)])
    }

    /// Unmaps all pages. Called when the buffer is dropped.
    pub fn unmap_all(&mut self) {
        let mut pages = core::mem::take(&mut self.table.pages).into_values();
        loop {
            let batch = pages.by_ref().take(UNMAP_BATCH);
            let (mappings, memory): (Vec<_>, Vec<_>) =
                batch.map(|page| (page.mapping, page.memory)).unzip();
            if memory.is_empty() {
                break;
            }
            // After a failure, dropping each mapping unmaps it.
            if let Err(rejected) = Mapping::unmap_many(mappings.into_iter().flatten().collect()) {
                crate::log::event!(WARN, error = %rejected.error, "pages were not unmapped at once");
            }
        }
    }

    /// Stores memory in the pool, unless something else uses the memory.
    fn store(&self, memory: impl IntoIterator<Item = Allocation>) {
        self.core.pool.store(memory);
    }

    /// Replaces the entry of a changed page, and returns its old memory.
    fn replace_page(&mut self, index: usize, page: Page) -> Option<Allocation> {
        let Table { pages, counters, .. } = &mut *self.table;
        let (state, is_empty) = (page.state, page.state == PageState::Empty);
        let old = if is_empty { pages.remove(&index) } else { pages.insert(index, page) };
        counters.count(old.as_ref().map_or(PageState::Empty, |old| old.state), state);
        old?.memory
    }

    /// Stores the restored mapping of a page that could not be changed. If `mapping` is `None`, marks the page as
    /// lost. Returns whether this call has marked the page.
    fn restore(&mut self, index: usize, mapping: Option<Mapping>) -> bool {
        let Table { pages, counters, .. } = &mut *self.table;
        let Some(page) = pages.get_mut(&index) else { return false };
        page.mapping = mapping;
        if page.mapping.is_some() || page.state == PageState::Lost {
            return false;
        }
        counters.count(page.state, PageState::Lost);
        *page = Page::without_memory(PageState::Lost);
        true
    }
}

/// Changes pages of one or two buffers, all or none. Returns freed memory to the pool: after success, the old memory
/// of the pages; after a failure, the new memory. Adds `pages` to an error.
pub(super) fn commit(
    operation: Operation,
    pages: &[(Range<usize>, Address)],
    changes: &mut [(&mut LockedTable<'_>, Plan)],
) -> Result<(), Error> {
    let mut old = Vec::new();
    for (locked, plan) in &mut *changes {
        for (index, _) in plan {
            let page = locked.table.pages.get_mut(index);
            old.extend(page.and_then(|page| page.mapping.take()));
        }
    }
    // An exchange keeps the access of each page, which a call by address may have set. If a page is not mapped any
    // more, the exchange fails.
    let kept_access: Vec<_> = match operation {
        Operation::Exchange => {
            old.iter().map(|it| current_access(it).unwrap_or_default()).collect()
        }
        _ => Vec::new(),
    };
    let zero_access: Vec<_> = changes.iter().map(|it| it.0.table.grants.for_reading()).collect();
    let mut new = Vec::new();
    for ((locked, plan), zero_access) in changes.iter().zip(&zero_access) {
        let (core, access) = (locked.core, &locked.table.grants.0);
        for (index, page) in plan {
            let (allocation, access) = match (&page.memory, &core.zero_page) {
                (Some(memory), _) => (memory, access),
                (None, Some(zero_page)) => (zero_page, zero_access),
                (None, None) => continue,
            };
            let (reservation, offset) = (&core.reservation, index * core.page_size);
            let part = 0..allocation.size();
            let access = kept_access.get(new.len()).unwrap_or(access);
            new.push(MapRequest { reservation, offset, allocation, part, access });
        }
    }
    match Mapping::replace_many(old, &new) {
        Ok(mappings) => {
            let mut mappings = mappings.into_iter();
            for (locked, plan) in changes {
                let mut freed = Vec::new();
                for (index, mut page) in core::mem::take(plan) {
                    if page.state != PageState::Empty {
                        page.mapping = mappings.next();
                    }
                    freed.extend(locked.replace_page(index, page));
                }
                locked.store(freed);
            }
            Ok(())
        }
        Err(Rejected { value: restored, error }) => {
            let error = error.for_pages(pages);
            // The address alone does not identify a page: two buffers can have the same device address.
            let key = |mapping: &Mapping| (mapping.reservation().serial(), mapping.address());
            let restored = restored.into_iter().map(|mapping| (key(&mapping), mapping));
            let mut restored: BTreeMap<_, _> = restored.collect();
            let mut lost = None;
            for (locked, plan) in changes {
                let mut lost_pages = Vec::new();
                for (index, new) in core::mem::take(plan) {
                    let core = locked.core;
                    let key = (core.reservation.serial(), core.address_of(index));
                    let mapping = restored.remove(&key);
                    if locked.restore(index, mapping) {
                        lost_pages.push(index);
                    }
                    if !is_quarantine(&error) {
                        locked.store(new.memory);
                    }
                }
                lost = lost.or_else(|| {
                    let first = *lost_pages.first()?;
                    let count = lost_pages.into_iter().zip(first..).take_while(|(a, b)| a == b);
                    Some((locked.core.reservation.address(), first, count.count()))
                });
            }
            let Some((address, first, count)) = lost else { return Err(error) };
            crate::log::event!(ERROR, %error, %address, first, count, "pages are lost");
            let kind = ErrorKind::PagesLost { address, first, count, cause: Box::new(error) };
            Err(Error::new(operation, kind).for_pages(pages))
        }
    }
}

pub(super) fn invalid(page: usize, problem: Problem) -> ErrorKind {
    ErrorKind::invalid(Argument::Page, Value::Number(page as u64), problem)
}

/// Returns whether the first `size` bytes of a mapping are zeros.
///
/// Reads small parts: at the kernel's limit of mappings, a large allocation would end the process.
pub(super) fn is_zero(mapping: &Mapping, size: usize) -> Result<bool, Error> {
    let mut bytes = [0; 4096];
    for start in (0..size).step_by(bytes.len()) {
        let part = &mut bytes[..(size - start).min(4096)];
        mapping.read(start, part)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
