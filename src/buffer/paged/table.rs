//! The page table of a buffer: what is mapped at each page, and changing it.

use super::PagedStatistics;
use crate::address::Address;
use crate::buffer::handle_pool::{HandlePool, is_quarantine};
use crate::buffer::span::{Grants, Span, check_alive};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected, Value};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::vmm::{Allocation, AllocationProperties, MapRequest, Mapping, Reservation, Vmm};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// The most pages that pages ahead can be wanted for; the oldest are forgotten.
const MOST_WANTED: usize = 1024;

/// What is mapped at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageState {
    /// Nothing: a load faults.
    Empty,
    /// The zero page.
    Zero,
    /// Memory that was mapped ahead, before it was asked for.
    Ahead,
    /// Memory.
    Mapped,
    /// Unknown: the page is never used again.
    Lost,
}

/// The memory of a page. Each page of any buffer that maps it has one reference, and nothing else has.
pub(super) type PageMemory = Arc<Allocation>;

/// A page that is not empty.
#[derive(Debug)]
struct Page {
    state: PageState,
    /// `None` if it is lost.
    mapping: Option<Mapping>,
    /// `None` if it is lost, or the zero page.
    memory: Option<PageMemory>,
}

/// What a page is to become.
#[derive(Clone, Debug)]
pub(super) enum Next {
    /// Empty, or the zero page.
    Idle,
    Ahead(PageMemory),
    Mapped(PageMemory),
}

/// Pages of one buffer that are to be changed.
pub(super) struct Change<'a> {
    pub core: &'a Core,
    pub table: &'a mut Table,
    pub pages: Vec<(usize, Next)>,
}

/// What a buffer shares with the thread that maps ahead.
#[derive(Debug)]
pub(super) struct Core {
    table: Mutex<Table>,
    /// Notified when a page is wanted ahead, and at the end.
    pub changed: Condvar,
    pub thread_runs: AtomicBool,
    pub zero: Option<Allocation>,
    /// How many pages are mapped ahead.
    pub ahead: usize,
    /// The size of a page in bytes.
    pub page: usize,
    /// The number of pages.
    pub count: usize,
    pub reservation: Reservation,
    pub properties: AllocationProperties,
    pub pool: HandlePool,
    pub vmm: Vmm,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pages: BTreeMap<usize, Page>,
    pub grants: Grants,
    /// Memory that is kept because the runtime would not release it.
    spare: Vec<Allocation>,
    /// The pages after these are wanted ahead.
    wanted: VecDeque<usize>,
    pub ended: bool,
    figures: PagedStatistics,
}

impl Table {
    fn get(&self, page: usize) -> Option<(PageState, &Page)> {
        self.pages.get(&page).map(|found| (found.state, found))
    }

    pub fn state(&self, page: usize) -> PageState {
        self.get(page).map_or(PageState::Empty, |(state, _)| state)
    }

    pub fn mappings(&self) -> impl Iterator<Item = (PageState, &Mapping)> {
        self.pages.values().filter_map(|page| Some((page.state, page.mapping.as_ref()?)))
    }

    /// Checks that no page is in use or lost.
    pub fn check_free(&self, pages: &Range<usize>) -> Result<(), ErrorKind> {
        for (&page, found) in self.pages.range(pages.clone()) {
            match found.state {
                PageState::Mapped => return Err(invalid(page, Problem::PageMapped)),
                PageState::Lost => return Err(invalid(page, Problem::PageLost)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The mapping and the memory of a page, which must be in use.
    fn in_use(&self, page: usize) -> Result<(&Mapping, &PageMemory), ErrorKind> {
        match self.get(page) {
            Some((
                PageState::Mapped,
                Page { mapping: Some(mapping), memory: Some(memory), .. },
            )) => Ok((mapping, memory)),
            Some((PageState::Lost, _)) => Err(invalid(page, Problem::PageLost)),
            _ => Err(invalid(page, Problem::PageNotMapped)),
        }
    }

    /// The memory of pages, all of which must be in use.
    pub fn memory(&self, pages: &Range<usize>) -> Result<Vec<PageMemory>, ErrorKind> {
        pages.clone().map(|page| Ok(self.in_use(page)?.1.clone())).collect()
    }

    /// Checks that pages still have their mappings.
    pub fn check_mapped(&self, pages: &Range<usize>) -> Result<(), Error> {
        let mut mappings =
            self.pages.range(pages.clone()).filter_map(|(_, it)| it.mapping.as_ref());
        mappings.try_for_each(Mapping::check_mapped)
    }

    /// The mappings of pages in use; of the zero page too, if they are only read.
    pub fn span(
        &self,
        core: &Core,
        (offset, end): (usize, usize),
        reads: bool,
    ) -> Result<Span<'_>, ErrorKind> {
        let mapping = |page| match self.get(page) {
            Some((PageState::Zero, Page { mapping: Some(mapping), .. })) if reads => Ok(mapping),
            _ => self.in_use(page).map(|(mapping, _)| mapping),
        };
        let mappings = (offset / core.page..end.div_ceil(core.page)).map(mapping);
        let base = core.reservation.address();
        Ok(Span { base, offset, mappings: mappings.collect::<Result<_, _>>()? })
    }

    /// Takes mappings and memory of pages out, for [`put_mapped`](Self::put_mapped).
    pub fn take_mapped(&mut self, pages: &Range<usize>) -> (Vec<Mapping>, Vec<PageMemory>) {
        let taken = self.pages.range_mut(pages.clone());
        taken.filter_map(|(_, page)| Some((page.mapping.take()?, page.memory.take()?))).unzip()
    }

    pub fn put_mapped(&mut self, pages: &Range<usize>, taken: (Vec<Mapping>, Vec<PageMemory>)) {
        let taken = taken.0.into_iter().zip(taken.1);
        for ((_, page), (mapping, memory)) in self.pages.range_mut(pages.clone()).zip(taken) {
            (page.mapping, page.memory) = (Some(mapping), Some(memory));
        }
    }

    /// The number of pages, of all buffers, with the memory of this page.
    pub fn users(&self, page: usize) -> usize {
        self.in_use(page).map_or(0, |(_, memory)| Arc::strong_count(memory))
    }

    /// The pages mapped ahead in a range.
    pub fn ahead(&self, pages: Range<usize>) -> impl Iterator<Item = usize> {
        let ahead = self.pages.range(pages).filter(|(_, it)| it.state == PageState::Ahead);
        ahead.map(|(&page, _)| page)
    }

    /// Uses the pages in a range that were mapped ahead.
    pub fn use_ahead(&mut self, pages: &Range<usize>) {
        for (_, page) in self.pages.range_mut(pages.clone()) {
            if page.state == PageState::Ahead {
                page.state = PageState::Mapped;
                self.figures.found_ahead += 1;
                self.figures.count_mapped(1);
            }
        }
    }

    /// Whether one of the `pages` pages before this one is in use.
    pub fn follows_a_mapped_page(&self, page: usize, pages: usize) -> bool {
        let before = self.pages.range(page.saturating_sub(pages)..page);
        before.rev().any(|(_, it)| it.state == PageState::Mapped)
    }

    /// Asks for pages ahead, after the page before `page`.
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

    /// The next page to map ahead.
    pub fn next_ahead(&mut self, core: &Core) -> Option<usize> {
        while let Some(&from) = self.wanted.front() {
            let is_wanted = from > 0 && self.state(from - 1) == PageState::Mapped;
            let mut pages = from..from.saturating_add(core.ahead).min(core.count);
            let found = pages.find(|page| !self.pages.contains_key(page));
            if let Some(page) = found.filter(|_| is_wanted) {
                return Some(page);
            }
            self.wanted.pop_front();
        }
        None
    }

    /// Notes that mapping ahead failed. It pauses until more is wanted.
    pub fn note_failure_ahead(&mut self, error: Error) {
        crate::log::debug!(%error, "a page was not mapped ahead");
        self.wanted.clear();
        self.figures.failures_ahead += 1;
        self.figures.last_failure_ahead = Some(error);
    }

    pub fn statistics(&self, core: &Core) -> PagedStatistics {
        let count = |state| self.pages.values().filter(|page| page.state == state).count();
        let memory = self.pages.values().filter(|page| page.state == PageState::Mapped);
        let memory = memory.filter_map(|page| page.memory.as_ref());
        let shared: Vec<_> = memory.filter(|memory| Arc::strong_count(memory) > 1).collect();
        let distinct: HashSet<_> = shared.iter().map(|memory| Arc::as_ptr(memory)).collect();
        PagedStatistics {
            pages: core.count,
            page_size: core.page,
            ahead: count(PageState::Ahead),
            zero: count(PageState::Zero),
            lost: count(PageState::Lost),
            shared: shared.len(),
            repeated: shared.len() - distinct.len(),
            ready: self.spare.len() + core.pool.ready(),
            thread_runs: core.thread_runs.load(Ordering::Relaxed),
            ..self.figures.clone()
        }
    }

    /// Enters a page that was changed, and returns its old memory.
    fn enter(&mut self, page: usize, next: Next, mapping: Option<Mapping>) -> Option<PageMemory> {
        let (state, memory) = match next {
            Next::Idle => (PageState::Zero, None),
            Next::Ahead(memory) => (PageState::Ahead, Some(memory)),
            Next::Mapped(memory) => (PageState::Mapped, Some(memory)),
        };
        match state {
            PageState::Mapped => self.figures.count_mapped(1),
            PageState::Ahead => self.figures.mapped_ahead += 1,
            _ => {}
        }
        let old = match mapping {
            None => self.pages.remove(&page),
            mapping => self.pages.insert(page, Page { state, mapping, memory }),
        }?;
        if old.state == PageState::Mapped {
            self.figures.count_unmapped(1);
        }
        old.memory
    }

    /// Marks changed pages whose mapping could not be restored, and returns the first of them and
    /// how many follow each other.
    fn lose(&mut self, changed: &[(usize, Next)]) -> Option<(usize, usize)> {
        let mut lost: Option<(usize, usize)> = None;
        for &(page, _) in changed {
            let Some(entry) = self.pages.get_mut(&page) else { continue };
            if entry.mapping.is_some() || entry.state == PageState::Lost {
                continue;
            }
            if entry.state == PageState::Mapped {
                self.figures.mapped -= 1;
            }
            *entry = Page { state: PageState::Lost, mapping: None, memory: None };
            lost = match lost {
                None => Some((page, 1)),
                Some((first, count)) if page == first + count => Some((first, count + 1)),
                more => more,
            };
        }
        lost
    }
}

impl Core {
    pub fn new(
        vmm: &Vmm,
        properties: &AllocationProperties,
        reservation: Reservation,
        (page, count): (usize, usize),
        ahead: usize,
        pool: HandlePool,
    ) -> Self {
        Self {
            table: Mutex::default(),
            changed: Condvar::default(),
            thread_runs: AtomicBool::new(false),
            zero: None,
            ahead,
            page,
            count,
            reservation,
            properties: *properties,
            pool,
            vmm: vmm.clone(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub fn address_of(&self, page: usize) -> Address {
        Address::new(self.reservation.address().get() + page * self.page)
    }

    /// Checks that pages exist, and that the lock can be taken.
    pub fn check(&self, pages: Range<usize>) -> Result<Range<usize>, ErrorKind> {
        check_alive(&self.vmm)?;
        self.check_exists(pages)
    }

    /// Checks that pages exist. A range that ends before it begins is empty.
    pub fn check_exists(&self, pages: Range<usize>) -> Result<Range<usize>, ErrorKind> {
        let end = pages.end.max(pages.start);
        if end > self.count {
            let problem = Problem::NoSuchPage { pages: self.count };
            return Err(invalid(pages.start.max(self.count), problem));
        }
        Ok(pages.start..end)
    }

    /// Takes memory for `count` pages, or none.
    pub fn take(&self, table: &mut Table, count: usize) -> Result<Vec<PageMemory>, Error> {
        let mut memory = table.spare.split_off(table.spare.len().saturating_sub(count));
        let mut taken = self.pool.take(count - memory.len());
        let ahead: Vec<_> = table.ahead(0..self.count).collect();
        if let Err(error) = &taken
            && matches!(error.kind(), ErrorKind::OutOfMemory { .. })
            && !ahead.is_empty()
            && self.make_idle(table, ahead).is_ok()
        {
            // Pages mapped ahead are less important than this.
            let more = count - memory.len();
            memory.extend(table.spare.split_off(table.spare.len().saturating_sub(more)));
            taken = self.pool.take(count - memory.len());
        }
        match taken {
            Ok(more) => Ok(memory.into_iter().chain(more).map(Arc::new).collect()),
            Err(error) => {
                self.put(table, memory.into_iter().map(Arc::new));
                Err(error)
            }
        }
    }

    /// Takes back references to memory; memory without another reference is free.
    pub fn put(&self, table: &mut Table, memory: impl IntoIterator<Item = PageMemory>) {
        for memory in memory.into_iter().filter_map(Arc::into_inner) {
            if self.vmm.quirks().memory_returns_with_addresses {
                table.spare.push(memory);
            } else {
                self.pool.put(memory);
            }
        }
    }

    /// Unmaps pages, all or none, and takes their memory back.
    pub fn make_idle(
        &self,
        table: &mut Table,
        pages: impl IntoIterator<Item = usize>,
    ) -> Result<(), Error> {
        let pages = pages.into_iter().map(|page| (page, Next::Idle)).collect();
        self.change(Operation::UnmapPages, table, pages)
    }

    /// Changes pages, all or none. Takes back the memory that is free then.
    pub fn change(
        &self,
        operation: Operation,
        table: &mut Table,
        pages: Vec<(usize, Next)>,
    ) -> Result<(), Error> {
        let mut changes = [Change { core: self, table, pages }];
        apply(operation, &mut changes)
    }

    /// The thread: maps pages ahead until the end. It holds the lock only while it maps one page.
    pub fn map_ahead(&self) {
        let _end = ThreadEnd(&self.thread_runs);
        let mut table = self.lock();
        while !table.ended {
            let Some(page) = table.next_ahead(self) else {
                table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut memory = table.spare.pop();
            if memory.is_none() {
                drop(table);
                let created = self.pool.take(1);
                table = self.lock();
                match created {
                    Ok(mut created) => memory = created.pop(),
                    Err(error) => {
                        table.note_failure_ahead(error);
                        continue;
                    }
                }
            }
            let Some(memory) = memory.map(Arc::new) else { continue };
            // The page may have been mapped meanwhile, or the one before it unmapped.
            if table.ended || table.next_ahead(self) != Some(page) {
                self.put(&mut table, [memory]);
                continue;
            }
            let next = vec![(page, Next::Ahead(memory))];
            if let Err(error) = self.change(Operation::MapPages, &mut table, next) {
                table.note_failure_ahead(error);
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.vmm.runtime().has_forked() {
            return;
        }
        let pages = core::mem::take(&mut self.lock().pages);
        let (mappings, memory): (Vec<_>, Vec<_>) =
            pages.into_values().map(|page| (page.mapping, page.memory)).unzip();
        // On failure the mappings are dropped, each by itself.
        if let Err(rejected) = Mapping::unmap_many(mappings.into_iter().flatten().collect()) {
            crate::log::warning!(error = %rejected.error, "pages were not unmapped at once");
        }
        drop(memory);
    }
}

/// Notes that the thread has ended, also by a panic.
struct ThreadEnd<'a>(&'a AtomicBool);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Changes pages of one or two buffers, all or none. Takes back the memory that is free then: the old
/// memory of the pages, or the new one if it fails.
pub(super) fn apply(operation: Operation, changes: &mut [Change<'_>]) -> Result<(), Error> {
    let mut old = Vec::new();
    for change in &mut *changes {
        for (page, _) in &change.pages {
            let entry = change.table.pages.get_mut(page);
            old.extend(entry.and_then(|entry| entry.mapping.take()));
        }
    }
    let zero_access: Vec<_> = changes.iter().map(|it| it.table.grants.for_reading()).collect();
    let mut new = Vec::new();
    for (change, zero_access) in changes.iter().zip(&zero_access) {
        let core = change.core;
        for (page, next) in &change.pages {
            let (allocation, access) = match (next, &core.zero) {
                (Next::Ahead(memory) | Next::Mapped(memory), _) => {
                    (&**memory, change.table.grants.list())
                }
                (Next::Idle, Some(zero)) => (zero, zero_access.as_slice()),
                (Next::Idle, None) => continue,
            };
            let (reservation, offset) = (&core.reservation, page * core.page);
            new.push(MapRequest { reservation, offset, allocation, access });
        }
    }
    match Mapping::replace_many(old, &new) {
        Ok(made) => {
            drop(new);
            let mut made = made.into_iter();
            for change in changes {
                let mut freed = Vec::new();
                for (page, next) in core::mem::take(&mut change.pages) {
                    let is_empty = matches!(next, Next::Idle) && change.core.zero.is_none();
                    let mapping = if is_empty { None } else { made.next() };
                    freed.extend(change.table.enter(page, next, mapping));
                }
                change.core.put(change.table, freed);
            }
            Ok(())
        }
        Err(Rejected { value: restored, error }) => {
            drop(new);
            for mapping in restored {
                let base = mapping.reservation().address();
                let is_there = |it: &&mut Change<'_>| it.core.reservation.address() == base;
                let Some(change) = changes.iter_mut().find(is_there) else { continue };
                let page = (mapping.address().get() - base.get()) / change.core.page;
                if let Some(entry) = change.table.pages.get_mut(&page) {
                    entry.mapping = Some(mapping);
                }
            }
            let mut lost = None;
            for change in changes {
                lost = lost.or(change.table.lose(&change.pages));
                let memory = core::mem::take(&mut change.pages).into_iter();
                let memory = memory.filter_map(|(_, next)| match next {
                    Next::Idle => None,
                    Next::Ahead(memory) | Next::Mapped(memory) => Some(memory),
                });
                if !is_quarantine(&error) {
                    change.core.put(change.table, memory);
                }
            }
            let Some((first, count)) = lost else { return Err(error) };
            crate::log::error!(%error, first, count, "pages are lost");
            let cause = Box::new(error);
            Err(Error::new(operation, ErrorKind::PagesLost { first, count, cause }))
        }
    }
}

pub(super) fn invalid(page: usize, problem: Problem) -> ErrorKind {
    ErrorKind::invalid(Argument::Page, Value::Number(page as u64), problem)
}
