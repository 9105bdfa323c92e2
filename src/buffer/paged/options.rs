//! The builder of a paged buffer, the states of its pages, and its statistics.

use super::PagedBuffer;
use super::table::PagedCore;
use crate::buffer::handle_pool::HandlePool;
use crate::buffer::{can_list_mappings, step_size};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::sync::{Condvar, Mutex, spawn};
use crate::vmm::{Access, Allocation, AllocationProperties, Reservation, Vmm};
use core::fmt;
use std::sync::Arc;

/// The builder of a [`PagedBuffer`]; see [`PagedBuffer::builder`].
///
/// ```
/// use hsa_vmm::buffer::PagedBuffer;
/// use hsa_vmm::{AllocationProperties, Error, Vmm};
///
/// fn reserve(vmm: &Vmm, properties: &AllocationProperties) -> Result<PagedBuffer, Error> {
///     PagedBuffer::builder(8 << 30).with_page_size(2 << 20).reserve(vmm, properties)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct PagedBuilder {
    pub(super) capacity: usize,
    pub(super) page_size: Option<usize>,
    pub(super) zero_page: bool,
    pub(super) pages_ahead: usize,
    pub(super) pooled_pages: usize,
}

impl PagedBuilder {
    /// Sets the size of a page in bytes, rounded up to the granule; the default is the recommended
    /// granule. Each page has one handle and one mapping.
    pub fn with_page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Maps one shared page of zeros, the zero page, at every page that is not in use. Agents with access to the buffer
    /// can read these pages without a fault.
    ///
    /// Agents must not write to these pages. A store by a CPU faults, and so does a store by a GPU whose page table the
    /// [`Vmm`] controls. A store by any other GPU succeeds, because AMD's driver maps everything writable. Such a store
    /// changes all pages that map the zero page ([`PagedBuffer::zero_page_is_clean`]).
    /// [`PagedBuffer::grant`] grants at most read access to these pages. Do not grant more by [`Vmm::set_access`].
    ///
    /// [`PagedBuffer::retire`] is not supported for a buffer with a zero page.
    pub fn with_zero_page(mut self) -> Self {
        self.zero_page = true;
        self
    }

    /// Makes a thread of the buffer map `pages` pages after the pages that the caller mapped last. A growing
    /// sequence then finds its next pages mapped. These pages count as used memory.
    ///
    /// If the buffer has a zero page, the thread only creates memory, as with
    /// [`with_handle_pool`](Self::with_handle_pool). Mapping ahead would replace a mapping of the zero page that an
    /// agent may be reading.
    pub fn with_pages_ahead(mut self, pages: usize) -> Self {
        self.pages_ahead = pages;
        self
    }

    /// Makes a thread of the buffer create memory in advance, so that memory for `pages` pages is ready. If enough
    /// memory is ready, mapping does not wait for the runtime to create memory. Ready memory counts as used. The
    /// buffer never keeps more memory ready than it has pages.
    pub fn with_handle_pool(mut self, pages: usize) -> Self {
        self.pooled_pages = pages;
        self
    }

    /// Reserves the addresses (`hipMemAddressReserve`). The capacity is rounded up to whole pages.
    ///
    /// If the buffer has a zero page, this method creates the zero page, fills it and maps it at all pages. Without
    /// [`VmmOptions::with_barrier`](crate::vmm::VmmOptions::with_barrier), the fill by a GPU can fault, as a copy can
    /// ([`Vmm::copy`]).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the page size is zero or larger than the address space. As for
    /// [`Vmm::allocation_granularity`], [`Vmm::address_reserve`], and with a zero page as for
    /// [`Vmm::create`], [`Vmm::map_many`] and [`Vmm::fill`]; with a zero page, [`Problem::OutOfMemory`] if the process
    /// cannot allocate the list of all pages; [`ErrorKind::System`] if the thread that maps pages ahead
    /// cannot be created. If the thread that creates memory in advance cannot be created, the library only logs this.
    pub fn reserve(
        self,
        vmm: &Vmm,
        properties: &AllocationProperties,
    ) -> Result<PagedBuffer, Error> {
        let owner = vmm.owner(properties)?;
        let page_size = step_size(vmm, properties, Argument::PageSize, self.page_size)?;
        let page_count = self.capacity.div_ceil(page_size);
        let size = Operation::AddressReserve.run(|| {
            Argument::Capacity.check_not_zero(self.capacity)?;
            let overflow =
                || ErrorKind::invalid(Argument::Capacity, self.capacity, Problem::Overflow);
            page_count.checked_mul(page_size).ok_or_else(overflow)
        })?;
        if self.zero_page && !can_list_mappings(page_count) {
            let (argument, problem) = (Argument::Capacity, Problem::OutOfMemory);
            let kind = ErrorKind::invalid(argument, self.capacity, problem);
            return Err(Error::new(Operation::Map, kind));
        }
        let reservation = Reservation::builder(size).reserve(vmm)?;
        // With a zero page, no thread maps pages ahead: the handle pool creates memory for the next pages.
        let pages_ahead = if self.zero_page { 0 } else { self.pages_ahead };
        // The buffer could never map memory for more pages than it has, and other code would lack the memory.
        let pooled_pages = self.pooled_pages.max(self.pages_ahead - pages_ahead).min(page_count);
        let zero_page = if self.zero_page {
            let zero_page = Allocation::create(vmm, page_size, properties)?;
            // The contents of new memory are undefined.
            let mapping = reservation.map(0, &zero_page)?;
            mapping.grant(&[owner], Access::ReadWrite)?;
            mapping.fill(0, 0, page_size)?;
            mapping.unmap()?;
            zero_page.mark_as_zero_page();
            Some(zero_page)
        } else {
            None
        };
        let core = Arc::new(PagedCore {
            table: Mutex::default(),
            changed: Condvar::default(),
            zero_page,
            pages_ahead,
            page_size,
            page_count,
            pool: HandlePool::new(vmm, properties, page_size, pooled_pages),
            reservation,
            properties: *properties,
            vmm: vmm.clone(),
        });
        let mut buffer = PagedBuffer { core, thread: None };
        if self.zero_page {
            let mapped = buffer.core.lock().empty_pages(0..page_count);
            mapped.map_err(|error| error.with_operation(Operation::Map))?;
        }
        if pages_ahead > 0 {
            let core = buffer.core.clone();
            let thread = spawn("hsa-vmm ahead", move || core.map_ahead()).map_err(|error| {
                Error::new(Operation::AddressReserve, ErrorKind::of_io("pthread_create", &error))
            });
            buffer.thread = Some(thread?);
        }
        Ok(buffer)
    }
}

/// The state of a page.
///
/// ```
/// use hsa_vmm::Error;
/// use hsa_vmm::buffer::{PageState, PagedBuffer};
///
/// fn first_free(cache: &PagedBuffer, pages: usize) -> Result<Option<usize>, Error> {
///     for page in 0..pages {
///         if cache.state(page)? == PageState::Empty {
///             return Ok(Some(page));
///         }
///     }
///     Ok(None)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageState {
    /// Not mapped: a load faults.
    Empty,
    /// Not in use, like [`Empty`](Self::Empty), but a load reads zeros from the zero page.
    Zero,
    /// Mapped ahead by the buffer's thread, and not in use yet.
    Ahead,
    /// Mapped by the caller: in use.
    Mapped,
    /// Submitted to a retire queue, and still mapped ([`PagedBuffer::retire`]).
    Retiring,
    /// Submitted to a retire queue that could not unmap the page, for example because signals did not fire in time.
    /// The page is never used again. It stays mapped at least until the last `Vmm` is dropped.
    Quarantined,
    /// In an unknown state after a failed rollback, and never used again. The buffer's addresses are quarantined.
    Lost,
}

/// The counts of pages and calls of a [`PagedBuffer`] ([`PagedBuffer::statistics`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagedStatistics {
    /// The number of pages.
    pub pages: usize,
    /// The size of a page in bytes.
    pub page_size: usize,
    /// Pages in use.
    pub mapped: usize,
    /// Pages in use whose memory has other mappings, for example at pages of this or other buffers.
    pub shared: usize,
    /// The number of pages in use, retiring or quarantined, minus the number of distinct handles that these pages
    /// map.
    pub repeated: usize,
    /// Pages that were mapped ahead and are not in use yet.
    pub ahead: usize,
    /// Pages that map the zero page.
    pub zero: usize,
    /// Whether the buffer has a zero page.
    pub has_zero_page: bool,
    /// Pages that were submitted to a retire queue and are still mapped.
    pub retiring: usize,
    /// Pages that a retire queue could not unmap: they stay mapped, and are never used again.
    pub quarantined: usize,
    /// Pages that are never used again because the runtime failed. If there are any, the buffer is quarantined.
    pub lost: usize,
    /// Pages for which memory is ready.
    pub ready: usize,
    /// The highest number of pages that were in use at the same time.
    pub most_mapped: usize,
    /// The number of times that a page came into use, including pages that were mapped ahead.
    pub maps: u64,
    /// The part of `maps` in which the page was already mapped ahead.
    pub found_ahead: u64,
    /// The number of times that a page was unmapped. A retired page counts when its queue has unmapped it.
    pub unmaps: u64,
    /// The number of times that a page was mapped ahead.
    pub mapped_ahead: u64,
    /// The number of times that mapping ahead failed.
    pub failures_ahead: u64,
    /// The last failure of mapping ahead.
    pub last_failure_ahead: Option<Error>,
    /// Whether the thread that maps ahead is running.
    pub thread_runs: bool,
}

impl PagedStatistics {
    /// Returns the bytes of memory that the buffer uses, including the memory of retiring and quarantined pages. Memory
    /// that two buffers share counts in each of them.
    pub fn memory_size(&self) -> usize {
        let zero_page = usize::from(self.has_zero_page);
        let retired = self.retiring + self.quarantined;
        // The fields are public.
        let distinct = (self.mapped + retired).saturating_sub(self.repeated);
        (distinct + self.ahead + self.ready + zero_page) * self.page_size
    }

    /// Counts a change of a page's state.
    pub(super) fn count(&mut self, before: PageState, after: PageState) {
        match (before, after) {
            (PageState::Mapped, PageState::Mapped) => {}
            (_, PageState::Mapped) => {
                self.maps += 1;
                self.mapped += 1;
                self.most_mapped = self.most_mapped.max(self.mapped);
                self.found_ahead += u64::from(before == PageState::Ahead);
            }
            (PageState::Mapped, PageState::Lost | PageState::Retiring) => self.mapped -= 1,
            (PageState::Retiring, PageState::Empty) => self.unmaps += 1,
            (PageState::Mapped, _) => {
                self.mapped -= 1;
                self.unmaps += 1;
            }
            (_, PageState::Ahead) => self.mapped_ahead += 1,
            _ => {}
        }
    }
}

impl fmt::Display for PagedStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, mapped, shared, repeated, ahead, zero, retiring, .. } = self;
        let Self { quarantined, lost, ready, .. } = self;
        write!(f, "{mapped} of {pages} pages mapped (at most {}), ", self.most_mapped)?;
        write!(f, "{shared} shared, {repeated} repeated, {ahead} ahead, {zero} zero, ")?;
        write!(f, "{retiring} retiring, {quarantined} quarantined, {lost} lost, {ready} ready; ")?;
        write!(f, "{} mapped in all, {} of them found ahead, ", self.maps, self.found_ahead)?;
        write!(f, "{} unmapped; {} KiB of memory", self.unmaps, self.memory_size() / 1024)?;
        if let Some(error) = &self.last_failure_ahead {
            write!(f, "; failures to map ahead: {}, the last: {error}", self.failures_ahead)?;
        }
        Ok(())
    }
}
