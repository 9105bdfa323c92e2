//! Pages moved, exchanged and shared between paged buffers without copying.
//!
//! [`Vmm::exchange`](crate::Vmm::exchange) and [`Vmm::relocate`](crate::Vmm::relocate) do the same
//! for any addresses, [`Mapping::exchange`](crate::Mapping::exchange) and
//! [`Mapping::relocate`](crate::Mapping::relocate) for owned mappings.

use super::PagedBuffer;
use super::table::{Change, Next, Table, apply};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Value};
use crate::sync::MutexGuard;
use crate::vmm::{Location, Mapping};
use std::ops::Range;

impl PagedBuffer {
    /// Moves the memory of pages to pages of this or another buffer that are not mapped, from page
    /// `first` on, without copying it. No agent may be using it meanwhile.
    ///
    /// The pages here are then as after [`unmap`](Self::unmap), those of the destination as after
    /// [`map`](Self::map): the agents with access to that buffer have access.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`], [`Problem::PageNotMapped`] of this buffer, [`Problem::PageMapped`] of
    /// the destination; [`Problem::DifferentPages`] if its pages have another size or other
    /// properties; [`Problem::ForeignHandle`] if it belongs to another `Vmm`;
    /// [`ErrorKind::PagesLost`]; else as for [`map`](Self::map) and [`unmap`](Self::unmap).
    pub fn move_pages(
        &self,
        pages: Range<usize>,
        destination: &Self,
        first: usize,
    ) -> Result<(), Error> {
        let operation = Operation::MovePages;
        let fail = |kind| Error::new(operation, kind);
        let (pages, there) = self.check_both(pages, destination, first).map_err(fail)?;
        let mut tables = Tables::lock(self, destination);
        let memory = tables.here().memory(&pages).map_err(fail)?;
        tables.there().check_free(&there).map_err(fail)?;
        let (from, to) = (&*self.core, &*destination.core);
        let idle = pages.clone().map(|page| (page, Next::Idle));
        let mapped = there.zip(memory.into_iter().map(Next::Mapped));
        match tables.both() {
            (here, None) => from.change(operation, here, idle.chain(mapped).collect())?,
            (here, Some(there)) => apply(
                operation,
                &mut [
                    Change { core: from, table: here, pages: idle.collect() },
                    Change { core: to, table: there, pages: mapped.collect() },
                ],
            )?,
        }
        self.unmap_ahead(tables.here(), pages.end);
        Ok(())
    }

    /// Maps the memory of pages also at pages of this or another buffer that are not mapped, from
    /// page `first` on.
    ///
    /// Both pages then are the same memory: what is written through one is read through the other.
    /// The access to each is that of its buffer. The pages are equal: each can be unmapped, moved,
    /// exchanged and shared again by itself, and the memory is released with its last page
    /// ([`page_users`](Self::page_users)). The library does not copy on write; the caller does, before
    /// it writes to a page with more than one user:
    ///
    /// ```
    /// # use hsa_vmm::buffer::PagedBuffer;
    /// # use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let vmm = Vmm::open(&runtime)?;
    /// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// # let new = || -> Result<_, hsa_vmm::Error> {
    /// #     let buffer = PagedBuffer::builder(1 << 30).reserve(&vmm, &AllocationProperties::on(gpu))?;
    /// #     buffer.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
    /// #     Ok(buffer)
    /// # };
    /// let (one, other) = (new()?, new()?);
    /// one.map(0..1)?;
    /// one.write(0, b"prompt")?;
    /// // Two sequences begin with the same prompt.
    /// one.share_pages(0..1, &other, 0)?;
    /// assert_eq!(other.page_users(0)?, 2);
    ///
    /// // The second is about to write to its page 0. Page 7 is free.
    /// if other.page_users(0)? > 1 {
    ///     other.map(7..8)?;
    ///     vmm.copy(gpu, other.address_of(7)?, other.address_of(0)?, other.page_size())?;
    ///     other.exchange_pages(0..1, &other, 7)?;
    ///     other.unmap(7..8)?;
    /// }
    /// other.write(0, b"PROMPT")?;
    ///
    /// let mut text = [0; 6];
    /// one.read(0, &mut text)?;
    /// assert_eq!((&text, one.page_users(0)?), (b"prompt", 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`move_pages`](Self::move_pages); the pages here do not change.
    pub fn share_pages(
        &self,
        pages: Range<usize>,
        destination: &Self,
        first: usize,
    ) -> Result<(), Error> {
        let operation = Operation::SharePages;
        let fail = |kind| Error::new(operation, kind);
        let (pages, there) = self.check_both(pages, destination, first).map_err(fail)?;
        let mut tables = Tables::lock(self, destination);
        let memory = tables.here().memory(&pages).map_err(fail)?;
        tables.there().check_free(&there).map_err(fail)?;
        tables.here().check_mapped(&pages)?;
        let mapped = there.zip(memory.into_iter().map(Next::Mapped)).collect();
        destination.core.change(operation, tables.there(), mapped)
    }

    /// Returns the number of pages, of this and other buffers, that have the memory of a page: 1 if it
    /// is not shared, 0 if it is not mapped.
    ///
    /// A call of another thread that is moving or sharing the page counts as one more.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`].
    pub fn page_users(&self, page: usize) -> Result<usize, Error> {
        let checked = self.core.check(page..page.saturating_add(1));
        checked.map_err(|kind| Error::new(Operation::GetAccess, kind))?;
        Ok(self.core.lock().users(page))
    }

    /// Exchanges the memory of pages with that of pages of this or another buffer, from page `first`
    /// on, without copying it. The access to each page does not change. No agent may be using them
    /// meanwhile.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`], [`Problem::PageNotMapped`], [`Problem::DifferentPages`]; else as for
    /// [`Vmm::exchange`](crate::Vmm::exchange).
    pub fn exchange_pages(
        &self,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(), Error> {
        let fail = |kind| Error::new(Operation::Exchange, kind);
        let (pages, there) = self.check_both(pages, other, first).map_err(fail)?;
        let mut tables = Tables::lock(self, other);
        tables.here().memory(&pages).map_err(fail)?;
        tables.there().memory(&there).map_err(fail)?;
        let mut ours = tables.here().take_mapped(&pages);
        let mut theirs = tables.there().take_mapped(&there);
        let exchanged = Mapping::exchange_run(&mut ours.0, &mut theirs.0);
        if exchanged.is_ok() {
            core::mem::swap(&mut ours.1, &mut theirs.1);
        }
        tables.here().put_mapped(&pages, ours);
        tables.there().put_mapped(&there, theirs);
        exchanged
    }

    /// Checks that pages here and as many there exist, and can have each other's memory.
    fn check_both(
        &self,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(Range<usize>, Range<usize>), ErrorKind> {
        let (from, to) = (&*self.core, &*other.core);
        let pages = from.check(pages)?;
        let there = to.check(first..first.saturating_add(pages.len()))?;
        if let Location::Agent(agent) = to.properties.location
            && from.vmm.runtime().agent(agent).is_none()
        {
            return Err(ErrorKind::invalid_list(Argument::Destination, Problem::ForeignHandle));
        }
        if from.page != to.page || from.properties != to.properties {
            return Err(ErrorKind::invalid_list(Argument::Destination, Problem::DifferentPages));
        }
        let apart = pages.end <= there.start || there.end <= pages.start;
        if std::ptr::eq(from, to) && !apart {
            let value = Value::Number(first as u64);
            return Err(ErrorKind::invalid(Argument::Page, value, Problem::Overlapping));
        }
        Ok((pages, there))
    }
}

/// The tables of two buffers, which may be the same buffer.
struct Tables<'a> {
    here: MutexGuard<'a, Table>,
    there: Option<MutexGuard<'a, Table>>,
}

impl<'a> Tables<'a> {
    /// Locks the one at the lower address first, so that two threads cannot wait for each other.
    fn lock(here: &'a PagedBuffer, there: &'a PagedBuffer) -> Self {
        if std::ptr::eq(here.core(), there.core()) {
            return Self { here: here.core().lock(), there: None };
        }
        if here.address() < there.address() {
            let here = here.core().lock();
            Self { here, there: Some(there.core().lock()) }
        } else {
            let there = there.core().lock();
            Self { here: here.core().lock(), there: Some(there) }
        }
    }

    fn here(&mut self) -> &mut Table {
        &mut self.here
    }

    fn there(&mut self) -> &mut Table {
        self.there.as_mut().unwrap_or(&mut self.here)
    }

    fn both(&mut self) -> (&mut Table, Option<&mut Table>) {
        (&mut self.here, self.there.as_deref_mut())
    }
}
