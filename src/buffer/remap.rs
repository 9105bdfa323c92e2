//! Pages moved and exchanged between paged buffers without copying: the same memory at other
//! addresses. What fragments a cache is the order in which its sequences end, not their contents.
//!
//! [`Vmm::exchange`](crate::Vmm::exchange) and [`Vmm::relocate`](crate::Vmm::relocate) are the same
//! for any addresses, [`Mapping::exchange`](crate::Mapping::exchange) and
//! [`Mapping::relocate`](crate::Mapping::relocate) for owned mappings.

use super::BufferError;
use super::paged::{Backing, PagedBuffer, Table};
use crate::sync::MutexGuard;
use crate::vmm::{Argument, Operation, Problem, VmmError};
use std::ops::Range;

impl PagedBuffer {
    /// Moves the memory behind pages to as many pages of this or another buffer that are not mapped,
    /// from `first` on, without copying it. Nobody may be using it meanwhile.
    ///
    /// The pages here are then as after [`unmap`](Self::unmap), those there as after
    /// [`map`](Self::map): in the other buffer, those may use it who may use that buffer.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`], [`BufferError::PageNotMapped`] of this buffer,
    /// [`BufferError::PageMapped`] of the other; [`BufferError::OtherPages`] if the other's pages
    /// are not of the same size and properties; [`VmmError::InvalidArgument`] if the other is another
    /// `Vmm`'s; [`BufferError::PagesLost`]; else as for [`map`](Self::map) and
    /// [`unmap`](Self::unmap).
    pub fn move_pages(
        &self,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(), BufferError> {
        let operation = Operation::Relocate;
        let (pages, there) = self.two_runs(operation, pages, other, first)?;
        let mut tables = Tables::lock(self, other);
        let memory = tables.here().memory(&pages)?;
        tables.there().check_free(&there)?;
        // What was mapped ahead makes room.
        let ahead = tables.there().ahead_in(there.clone());
        let (spare, answer) = other.core().take_back(tables.there(), ahead);
        other.core().give(tables.there(), spare);
        answer?;
        let (from, to) = (self.core(), other.core());
        let behind = Backing::Memory(&memory);
        let taken = from.swap(&pages, tables.here().grants(), behind, from.idle());
        taken.map_err(|failure| tables.here().lose_unless_undone(&pages, failure))?;
        let put = to.swap(&there, tables.there().grants(), to.idle(), behind);
        if let Err(failure) = put {
            if let Err(undo) = from.swap(&pages, tables.here().grants(), from.idle(), behind) {
                tables.here().lose(&pages, &undo);
                let (first, count) = (pages.start, pages.len());
                if failure.undone {
                    return Err(BufferError::PagesLost { first, count, cause: failure.error });
                }
            }
            return Err(tables.there().lose_unless_undone(&there, failure));
        }
        tables.here().note_unmapped(&pages);
        let idle = vec![there.clone()];
        tables.there().note_mapped(&there, idle, memory);
        // No page in use is before what was mapped ahead of these any more.
        from.take_back_behind(tables.here(), pages.end);
        Ok(())
    }

    /// Exchanges the memory behind pages with that behind as many pages of this or another buffer,
    /// from `first` on, without copying it. Who may use which pages does not change. Nobody may be
    /// using any of them meanwhile.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`], [`BufferError::PageNotMapped`], [`BufferError::OtherPages`];
    /// else as for [`Vmm::exchange`](crate::Vmm::exchange).
    pub fn exchange_pages(
        &self,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(), BufferError> {
        let (pages, there) = self.two_runs(Operation::Exchange, pages, other, first)?;
        let mut tables = Tables::lock(self, other);
        let (mine, theirs) = (tables.here().memory(&pages)?, tables.there().memory(&there)?);
        if pages.is_empty() {
            return Ok(());
        }
        let (here, place) = (self.core().address_of(pages.start), other.core().address_of(first));
        let (own, others) = (self.core().serials(&pages), other.core().serials(&there));
        let size = pages.len() * self.core().page;
        self.core().vmm.only(&own).exchange(here, (&others, place), size)?;
        tables.here().replace(&pages, theirs);
        tables.there().replace(&there, mine);
        Ok(())
    }

    /// These pages, and as many of the other buffer, if they can have each other's memory.
    fn two_runs(
        &self,
        operation: Operation,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(Range<usize>, Range<usize>), BufferError> {
        let (from, to) = (self.core(), other.core());
        from.alive(operation)?;
        let refuse = |argument, problem| {
            Err(VmmError::InvalidArgument { operation, argument, problem }.into())
        };
        if !from.vmm.is(&to.vmm) {
            return refuse(Argument::Handle, Problem::ForeignHandle);
        }
        if from.page != to.page || from.properties != to.properties {
            return Err(BufferError::OtherPages);
        }
        let there = to.check(first..first.saturating_add(pages.len()))?;
        let pages = from.check(pages)?;
        let apart = pages.end <= there.start || there.end <= pages.start;
        if std::ptr::eq(from, to) && !apart {
            return refuse(Argument::Source, Problem::Overlapping);
        }
        Ok((pages, there))
    }
}

/// The tables of two buffers that may be one.
struct Tables<'a> {
    here: MutexGuard<'a, Table>,
    there: Option<MutexGuard<'a, Table>>,
}

impl<'a> Tables<'a> {
    /// The one at the lower address first, whoever asks, so that two cannot wait for each other.
    fn lock(here: &'a PagedBuffer, there: &'a PagedBuffer) -> Self {
        if std::ptr::eq(here.core(), there.core()) {
            return Self { here: here.core().table(), there: None };
        }
        if here.address() < there.address() {
            let here = here.core().table();
            Self { here, there: Some(there.core().table()) }
        } else {
            let there = there.core().table();
            Self { here: here.core().table(), there: Some(there) }
        }
    }

    fn here(&mut self) -> &mut Table {
        &mut self.here
    }

    fn there(&mut self) -> &mut Table {
        self.there.as_mut().unwrap_or(&mut self.here)
    }
}
