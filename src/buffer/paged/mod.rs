//! A buffer whose pages are mapped and unmapped, one by one or in ranges.

mod options;
mod table;
mod transfer;

pub use options::{PageState, PagedBuilder, PagedStatistics};

use super::check_agents;
use crate::agent::AgentId;
use crate::error::{Error, Feature, Operation};
use crate::sync::thread;
use crate::vmm::{
    Access, AccessDescriptor, Address, Mapping, Reservation, RetireQueue, SignalCondition,
};
use derive_more::Debug;
use hsa_sys::hsa_signal_t;
use std::ops::Range;
use std::sync::Arc;
use table::{Page, PagedCore, is_zero};
use transfer::transfer;

#[cfg(doc)]
use crate::error::{ErrorKind, Problem};
#[cfg(doc)]
use crate::vmm::Vmm;

/// A buffer whose pages are mapped and unmapped, one by one or in ranges.
///
/// For example, a paged KV cache: its sequences grow and end, can share pages ([`share_pages`](Self::share_pages)), and
/// keep their addresses. Calls can be made from any thread; concurrent calls wait for each other. Concurrent accesses
/// to memory are described in the [memory model](crate::vmm#memory-model). Page numbers begin at 0. As for slices, an
/// empty range of pages changes nothing, and is valid up to `page_count..page_count`. A range is an error if it starts
/// after its end ([`Problem::StartAfterEnd`]), or ends after [`page_count`](Self::page_count), even if it is empty.
///
/// ```
/// use hsa_vmm::buffer::PagedBuffer;
/// use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
///
/// let cache = PagedBuffer::builder(1 << 30).with_zero_page();
/// let cache = cache.reserve(&vmm, &AllocationProperties::on(gpu))?;
/// cache.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// cache.map(100..103)?;
/// cache.write(101 * cache.page_size(), b"keys and values")?;
/// cache.unmap(100..101)?;
///
/// let mut bytes = [1; 4];
/// cache.read(100 * cache.page_size(), &mut bytes)?;
/// assert_eq!(bytes, [0; 4], "a page that is not mapped reads as zeros");
/// assert_eq!(cache.statistics().mapped, 2);
/// # Ok(())
/// # }
/// ```
///
/// The contents of a newly mapped page are undefined, because memory is reused. A failed call leaves the buffer
/// unchanged. However, if memory runs out, a call unmaps pages of this buffer that were mapped ahead and are not in use.
/// It does not unmap such pages of other buffers ([`trim`](Self::trim)).
///
/// If the runtime fails, and fails again during the rollback, some pages cannot get their memory back: they are lost
/// ([`ErrorKind::PagesLost`], [`PagedStatistics::lost`]). The buffer's addresses are then quarantined
/// ([`Vmm::quarantined_ranges`]). Calls that change any page of the buffer fail, so use another buffer.
#[derive(Debug)]
#[debug("PagedBuffer({} pages of {:#x} bytes at {})", self.page_count(), self.page_size(), self.address())]
pub struct PagedBuffer {
    core: Arc<PagedCore>,
    /// The thread that maps ahead.
    thread: Option<thread::JoinHandle<()>>,
}

impl PagedBuffer {
    /// Returns a builder for a buffer with addresses for `capacity` bytes.
    pub fn builder(capacity: usize) -> PagedBuilder {
        PagedBuilder {
            capacity,
            page_size: None,
            zero_page: false,
            pages_ahead: 0,
            pooled_pages: 0,
        }
    }

    /// Returns the address of the buffer.
    pub fn address(&self) -> Address {
        self.core.address_of(0)
    }

    /// Returns the size of all pages in bytes.
    pub fn capacity(&self) -> usize {
        self.core.page_count * self.core.page_size
    }

    /// Returns the size of a page in bytes.
    pub fn page_size(&self) -> usize {
        self.core.page_size
    }

    /// Returns the number of pages.
    pub fn page_count(&self) -> usize {
        self.core.page_count
    }

    /// Returns the address of a page.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`].
    pub fn address_of(&self, page: usize) -> Result<Address, Error> {
        let checked = self.core.check_range(page..page.saturating_add(1));
        checked.map_err(|kind| Error::new(Operation::GetPage, kind))?;
        Ok(self.core.address_of(page))
    }

    /// Maps memory at pages (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`): at all of these pages or at none.
    ///
    /// Without [`VmmOptions::with_barrier`](crate::vmm::VmmOptions::with_barrier), a GPU's access can fault for a short
    /// time after the call.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`], [`Problem::PageMapped`], [`Problem::PageRetiring`], [`Problem::PageQuarantined`],
    /// [`Problem::PageLost`], [`ErrorKind::PagesLost`]; otherwise as for [`Vmm::create`] and [`Vmm::map_many`].
    pub fn map(&self, pages: Range<usize>) -> Result<(), Error> {
        let (core, operation) = (&*self.core, Operation::MapPages);
        let to_error = |kind| Error::new(operation, kind);
        let mut locked = core.lock_for(operation)?;
        let pages = core.check_range(pages).map_err(to_error)?;
        let memory = loop {
            locked.check_free(&pages).map_err(to_error)?;
            let missing_count = locked.count_missing(&pages);
            match locked.take(missing_count, &pages) {
                Ok(memory) => break memory,
                Err(error) => locked = locked.wait_for_memory(error)?,
            }
        };
        let missing = pages.clone().filter(|&page| locked.state(page) != PageState::Ahead);
        let plan = missing.zip(memory.into_iter().map(Page::mapped)).collect();
        locked.change(operation, plan)?;
        locked.mark_used(&pages);
        if core.pages_ahead > 0 && !pages.is_empty() {
            locked.table.ahead_from.insert(pages.end);
            core.changed.notify_all();
        }
        Ok(())
    }

    /// Unmaps pages (`hipMemUnmap`), all or none. No GPU may still use them. Releases their memory (`hipMemRelease`), or
    /// keeps it in the pool. If a release fails, the buffer keeps the memory for later pages or [`trim`](Self::trim).
    ///
    /// # Errors
    /// [`Problem::OutOfRange`], [`Problem::PageNotMapped`], [`Problem::PageRetiring`], [`Problem::PageQuarantined`],
    /// [`Problem::PageLost`], [`ErrorKind::PagesLost`]; otherwise as for [`Vmm::unmap_many`], and with a zero page as
    /// for [`Vmm::map_many`].
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), Error> {
        let to_error = |kind| Error::new(Operation::UnmapPages, kind);
        let mut locked = self.core.lock_for(Operation::UnmapPages)?;
        let pages = self.core.check_range(pages).map_err(to_error)?;
        locked.memory(&pages).map_err(to_error)?;
        locked.empty_pages(pages.clone())?;
        locked.unmap_ahead(pages.end);
        Ok(())
    }

    /// Submits pages to a retire queue, all of them or none ([`RetireQueue::submit_many`]). The queue unmaps the pages
    /// when every signal meets its condition. A kernel may still read the pages.
    ///
    /// The pages are [`PageState::Retiring`] until the queue has unmapped them. Then they are [`PageState::Empty`].
    /// While they are retiring, the buffer does not read or change them, and they cannot be mapped. A page whose
    /// signals do not fire in time becomes [`PageState::Quarantined`]: it stays mapped until the process ends, and
    /// cannot be used again.
    ///
    /// Each page counts as one mapping of the queue's [capacity](RetireQueue::capacity). The buffer can be dropped
    /// while pages are retiring: the queue keeps their memory and the addresses.
    ///
    /// ```
    /// use hsa_vmm::buffer::{PageState, PagedBuffer};
    /// # use hsa_vmm::vmm::RetireQueue;
    /// # use hsa_vmm::{AllocationProperties, Runtime, Vmm};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let vmm = Vmm::open(&runtime)?;
    /// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// let cache = PagedBuffer::builder(1 << 30).reserve(&vmm, &AllocationProperties::on(gpu))?;
    /// cache.map(0..8)?;
    /// let queue = RetireQueue::builder(1024).open(&vmm)?;
    /// # let signals = [];
    /// // SAFETY: the kernel's completion signals are destroyed after the queue is drained.
    /// unsafe { cache.retire(4..8, &queue, &signals) }?;
    /// let report = queue.drain(std::time::Duration::from_secs(5))?;
    /// assert!(report.failures.is_empty(), "{report:?}");
    /// assert_eq!(cache.state(4)?, PageState::Empty);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Problem::OutOfRange`], [`Problem::PageNotMapped`], [`Problem::PageRetiring`], [`Problem::PageQuarantined`],
    /// [`Problem::PageLost`]; as for [`RetireQueue::submit_many`]; [`ErrorKind::NotSupported`] for a buffer with a
    /// [zero page](PagedBuilder::with_zero_page), because retired pages would not map the zero page immediately.
    ///
    /// # Safety
    /// As for [`RetireQueue::submit`].
    pub unsafe fn retire(
        &self,
        pages: Range<usize>,
        queue: &RetireQueue,
        signals: &[(hsa_signal_t, SignalCondition)],
    ) -> Result<(), Error> {
        let to_error = |kind| Error::new(Operation::Retire, kind);
        let mut locked = self.core.lock_for(Operation::Retire)?;
        let pages = self.core.check_range(pages).map_err(to_error)?;
        if self.core.zero_page.is_some() {
            return Err(to_error(Feature::RetireFromZeroPageBuffer.into()));
        }
        let mapped = pages.clone().try_for_each(|page| locked.mapping_and_memory(page).map(drop));
        mapped.map_err(to_error)?;
        let end = pages.end;
        // SAFETY: the caller guarantees the conditions of `RetireQueue::submit`, which are also those of `submit_many`.
        unsafe { locked.retire(pages, queue, signals) }?;
        locked.unmap_ahead(end);
        Ok(())
    }

    /// Unmaps the pages that were mapped ahead. Releases their memory, and the memory that `unmap` could not release, or
    /// keeps it in the pool.
    ///
    /// # Errors
    /// As for [`unmap`](Self::unmap).
    pub fn trim(&self) -> Result<(), Error> {
        let mut locked = self.core.lock_all(Operation::UnmapPages)?;
        locked.table.ahead_from.clear();
        let ahead: Vec<_> = locked.mapped_ahead(0..self.core.page_count).collect();
        locked.empty_pages(ahead)?;
        self.core.pool.store([]);
        Ok(())
    }

    /// Moves the memory of pages to unmapped pages of this or another buffer, from page `first` on, without
    /// copying it. No agent may access the addresses of the pages during the call.
    ///
    /// After the call, the pages of this buffer are in the same state as after [`unmap`](Self::unmap). The pages of the
    /// destination are in use, with the destination's access.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`], [`Problem::PageNotMapped`] of this buffer, [`Problem::PageMapped`] or
    /// [`Problem::Overlapping`] of the destination, [`Problem::PageRetiring`] and [`Problem::PageQuarantined`] of either
    /// buffer; [`Problem::DifferentPages`], [`Problem::DifferentLocation`] or [`Problem::DifferentProperties`] if the
    /// destination's pages have another size, or memory at another location or with other properties;
    /// [`Problem::ForeignHandle`] if the destination belongs to another `Vmm`; [`ErrorKind::PagesLost`]; otherwise as
    /// for [`map`](Self::map) and [`unmap`](Self::unmap).
    pub fn move_pages(
        &self,
        pages: Range<usize>,
        destination: &Self,
        first: usize,
    ) -> Result<(), Error> {
        transfer(Operation::MovePages, (&self.core, pages), (&destination.core, first))
    }

    /// Maps the memory of pages a second time, at unmapped pages of this or another buffer, from page `first` on.
    /// Kernels may use the pages of this buffer during the call.
    ///
    /// Both buffers must have their memory at the same location, such as one GPU. To use the pages on another GPU,
    /// grant that GPU access to this buffer ([`grant`](Self::grant)), or copy the pages ([`Vmm::copy`]).
    ///
    /// After the call, the pages of both buffers map the same memory, each page with the access of its buffer. Each
    /// page can be unmapped, moved, exchanged and shared again. The memory is released when its last page is unmapped.
    /// The library does not copy on write. Before the caller writes to a page with more than one user
    /// ([`page_users`](Self::page_users)), the caller must copy the page:
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
    /// let (first, second) = (new()?, new()?);
    /// first.map(0..1)?;
    /// first.write(0, b"prompt")?;
    /// // Two sequences begin with the same prompt.
    /// first.share_pages(0..1, &second, 0)?;
    /// assert_eq!(second.page_users(0)?, 2);
    ///
    /// // The second sequence is about to write to its page 0. Page 7 is free.
    /// if second.page_users(0)? > 1 {
    ///     second.map(7..8)?;
    ///     vmm.copy(gpu, second.address_of(7)?, second.address_of(0)?, second.page_size())?;
    ///     second.exchange_pages(0..1, &second, 7)?;
    ///     second.unmap(7..8)?;
    /// }
    /// second.write(0, b"PROMPT")?;
    ///
    /// let mut text = [0; 6];
    /// first.read(0, &mut text)?;
    /// assert_eq!((&text, first.page_users(0)?), (b"prompt", 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`move_pages`](Self::move_pages); the shared pages do not change.
    pub fn share_pages(
        &self,
        pages: Range<usize>,
        destination: &Self,
        first: usize,
    ) -> Result<(), Error> {
        transfer(Operation::SharePages, (&self.core, pages), (&destination.core, first))
    }

    /// Returns the number of mappings of a page's memory in this `Vmm`: 1 if no other page shares the memory, 0 if the
    /// page is not in use.
    ///
    /// Counts pages of this and other buffers, mappings by address, and retiring pages, which a kernel may still read.
    /// While another thread moves or shares the page, that call counts as one more mapping.
    ///
    /// Does not count mappings of an import of the memory, in this `Vmm`, another `Vmm` or another process
    /// ([`Vmm::export_to_shareable_handle`]). The caller must copy an exported page before it writes, even if the count
    /// is 1.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`].
    pub fn page_users(&self, page: usize) -> Result<usize, Error> {
        let locked = self.core.lock_for(Operation::GetPage)?;
        self.address_of(page)?;
        Ok(locked.mapping_and_memory(page).map_or(0, |(_, memory)| memory.mapping_count()))
    }

    /// Exchanges the memory of pages with the memory of the same number of pages of this or another buffer, from page
    /// `first` on, without copying. Each page keeps its access, also access that [`Vmm::set_access`] has set. During the
    /// call, no agent may access the pages' addresses, and no other thread may change access to them by address.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`], [`Problem::PageNotMapped`], [`Problem::PageRetiring`],
    /// [`Problem::DifferentPages`], [`Problem::Overlapping`]; otherwise as for [`move_pages`](Self::move_pages).
    pub fn exchange_pages(
        &self,
        pages: Range<usize>,
        other: &Self,
        first: usize,
    ) -> Result<(), Error> {
        transfer(Operation::Exchange, (&self.core, pages), (&other.core, first))
    }

    /// Grants agents access to all pages, including pages that are mapped later (`hipMemSetAccess`). Grants at most
    /// read access to the zero page. Other agents keep their access. The call can unmap memory ([`Vmm::set_access`]).
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), Error> {
        let core = &self.core;
        let requested = AccessDescriptor::of_each(agents, access);
        core.vmm.check_access(&core.properties, &requested)?;
        let for_zero_page = AccessDescriptor::of_each(agents, access.min(Access::Read));
        let mut locked = core.lock_all(Operation::SetAccess)?;
        let changes = locked.mappings().map(|(state, mapping)| {
            let is_zero = state == PageState::Zero;
            (mapping, if is_zero { for_zero_page.as_slice() } else { requested.as_slice() })
        });
        Mapping::set_access_many(&changes.collect::<Vec<_>>())?;
        locked.table.grants.set(agents, access);
        Ok(())
    }

    /// Revokes all access of agents, including GPUs. During the call, the other agents may have no access.
    ///
    /// Pages that are [retiring](Self::retire) keep their access until the queue unmaps them, because a kernel may
    /// still use them. To revoke access to retiring pages, drain the queue first.
    ///
    /// Pages that are [quarantined](PageState::Quarantined) keep their access, at least until the last `Vmm` is dropped.
    /// The call returns `Ok` even if there are such pages; [`PagedStatistics::quarantined`] counts them.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), Error> {
        check_agents(Operation::Revoke, &self.core.vmm, &self.core.properties, agents)?;
        let mut locked = self.core.lock_all(Operation::Revoke)?;
        let mappings: Vec<_> = locked.mappings().map(|(_, mapping)| mapping).collect();
        Mapping::revoke_many(&mappings, agents)?;
        locked.table.grants.set(agents, Access::None);
        Ok(())
    }

    /// Returns the access of an agent to all pages, including pages that are mapped later, except
    /// [retiring](Self::retire) and [quarantined](PageState::Quarantined) pages. [`Vmm::get_access`] returns the access
    /// to a single page.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown agent, or if a page was unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, Error> {
        check_agents(Operation::GetAccess, &self.core.vmm, &self.core.properties, &[agent])?;
        let locked = self.core.lock_all(Operation::GetAccess)?;
        locked.mappings().try_for_each(|(_, mapping)| mapping.access(agent).map(drop))?;
        Ok(locked.table.grants.of(agent))
    }

    /// Copies from the buffer, `offset` bytes from its start; a CPU must have read access.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`Problem::PageNotMapped`] without a zero page; [`Problem::PageRetiring`],
    /// [`Problem::PageQuarantined`], [`Problem::PageLost`]; otherwise as for [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let locked = self.core.lock_for(Operation::Read)?;
        locked.part(Operation::Read, offset, bytes.len())?.read(bytes)
    }

    /// Copies to the buffer, `offset` bytes from its start; a CPU must have write access.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`], [`Problem::PageNotMapped`], [`Problem::PageRetiring`],
    /// [`Problem::PageQuarantined`], [`Problem::PageLost`]; otherwise as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let locked = self.core.lock_for(Operation::Write)?;
        locked.part(Operation::Write, offset, bytes.len())?.write(bytes)
    }

    /// Fills a part of the buffer with a 32-bit value, as [`Vmm::fill`] does. `offset` and
    /// `size` are in bytes, multiples of four. If `size` is 0, writes nothing.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`], [`Problem::PageNotMapped`], [`Problem::PageRetiring`],
    /// [`Problem::PageQuarantined`], [`Problem::PageLost`]; otherwise as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        let locked = self.core.lock_for(Operation::Fill)?;
        locked.part(Operation::Fill, offset, size)?.fill(value, size)
    }

    /// Returns whether the zero page contains only zeros. If it does not, a GPU has stored to a page that was not
    /// mapped. Returns `true` if there is no zero page.
    ///
    /// Reads the whole zero page; a CPU must have read access. If all pages of the buffer are mapped, the call maps the
    /// zero page at other addresses to read it.
    ///
    /// # Errors
    /// As for [`Vmm::read`]; if all pages are mapped, also as for [`Vmm::address_reserve`] and [`Vmm::map_many`].
    pub fn zero_page_is_clean(&self) -> Result<bool, Error> {
        let core = &self.core;
        let locked = core.lock_for(Operation::Read)?;
        let Some(zero_page) = &core.zero_page else { return Ok(true) };
        let mapping = locked.mappings().find(|(state, _)| *state == PageState::Zero);
        match mapping {
            Some((_, mapping)) => is_zero(mapping, core.page_size),
            // No page of the buffer maps the zero page now.
            None => {
                let reservation = Reservation::builder(core.page_size).reserve(&core.vmm)?;
                let mapping = reservation.map(0, zero_page)?;
                mapping.grant(&[core.vmm.runtime().host().id()], Access::Read)?;
                is_zero(&mapping, core.page_size)
            }
        }
    }

    /// Returns the state of a page.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`].
    pub fn state(&self, page: usize) -> Result<PageState, Error> {
        let mut locked = self.core.lock_for(Operation::GetPage)?;
        self.address_of(page)?;
        locked.reclaim(page..page + 1);
        Ok(locked.state(page))
    }

    /// Returns the counts of pages and calls; zeros in a [forked child](crate::Runtime::has_forked).
    pub fn statistics(&self) -> PagedStatistics {
        if self.core.vmm.runtime().has_forked() {
            return PagedStatistics::default();
        }
        // The thread holds the second reference to `core` until the thread ends or panics.
        let thread_runs = self.thread.is_some() && Arc::strong_count(&self.core) > 1;
        PagedStatistics { thread_runs, ..self.core.lock().statistics() }
    }
}

impl Drop for PagedBuffer {
    fn drop(&mut self) {
        if self.core.vmm.runtime().has_forked() {
            // The thread does not exist in a forked child, and may have held the lock.
            std::mem::forget((self.core.clone(), self.thread.take()));
            return;
        }
        self.core.lock().table.stopped = true;
        self.core.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            crate::log::event!(ERROR, "the thread that maps pages ahead has panicked");
        }
        self.core.lock().unmap_all();
    }
}
