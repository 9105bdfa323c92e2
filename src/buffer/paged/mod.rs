//! A large reservation whose pages get memory and lose it, one by one or in runs.

mod moving;
mod options;
mod table;

pub use options::{PagedBuilder, PagedStatistics};
pub use table::PageState;

use super::span::{self, check_alive, check_bounds};
use crate::agent::AgentId;
use crate::error::{Error, Operation};
use crate::sync::thread;
use crate::vmm::{Access, AccessDescriptor, Address, Mapping};
use core::fmt;
use std::ops::Range;
use std::sync::Arc;
use table::{Core, Next, Table};

#[cfg(doc)]
use crate::error::{ErrorKind, Problem};
#[cfg(doc)]
use crate::vmm::Vmm;

/// A buffer whose pages get memory and lose it one by one or in runs.
///
/// This is what a paged KV cache needs: its sequences grow and end, may share pages
/// ([`share_pages`](Self::share_pages)), and the addresses stay. Pages are counted from 0. All calls
/// can be made from any thread; they wait for each other.
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
/// The contents of a page that was just mapped are undefined: they may be those from before. A call
/// that fails leaves the buffer unchanged. If the runtime fails, and then fails again while the call
/// is rolled back, pages without their memory are lost: they are never used again, and counted
/// ([`ErrorKind::PagesLost`], [`PagedStatistics::lost`]).
///
/// ROCm 7.2 releases memory only when its reservation is freed
/// ([`Quirks::memory_returns_with_addresses`](crate::vmm::Quirks)). There the buffer keeps the memory
/// of unmapped pages for the next ones: it never uses more than at its fullest, and releases all of it
/// when it is dropped.
pub struct PagedBuffer {
    core: Arc<Core>,
    /// The thread that maps ahead.
    thread: Option<thread::JoinHandle<()>>,
}

impl PagedBuffer {
    /// Returns a builder for a buffer with addresses for `capacity` bytes.
    pub fn builder(capacity: usize) -> PagedBuilder {
        PagedBuilder::new(capacity)
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.core.address_of(0)
    }

    /// Returns the bytes of addresses: the capacity in whole pages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.core.count * self.core.page
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.core.page
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.core.count
    }

    /// Returns the address of a page.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`].
    pub fn address_of(&self, page: usize) -> Result<Address, Error> {
        let checked = self.core.check_exists(page..page.saturating_add(1));
        checked.map_err(|kind| Error::new(Operation::GetAccess, kind))?;
        Ok(self.core.address_of(page))
    }

    /// Maps memory at pages (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`): at all of them or none.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`], [`Problem::PageMapped`], [`Problem::PageLost`],
    /// [`ErrorKind::PagesLost`]; else as for [`Vmm::create`] and [`Vmm::map_many`].
    pub fn map(&self, pages: Range<usize>) -> Result<(), Error> {
        let (core, operation) = (&*self.core, Operation::MapPages);
        let fail = |kind| Error::new(operation, kind);
        let pages = core.check(pages).map_err(fail)?;
        let mut table = core.lock();
        table.check_free(&pages).map_err(fail)?;
        let ahead = |page: &usize| table.state(*page) == PageState::Ahead;
        let missing: Vec<_> = pages.clone().filter(|page| !ahead(page)).collect();
        let memory = core.take(&mut table, missing.len())?;
        let mapped = missing.into_iter().zip(memory.into_iter().map(Next::Mapped)).collect();
        core.change(operation, &mut table, mapped)?;
        table.use_ahead(&pages);
        if core.ahead > 0 {
            table.want_ahead(pages.end);
            core.changed.notify_all();
        }
        Ok(())
    }

    /// Unmaps pages and takes their memory back (`hipMemUnmap`, `hipMemRelease`): all of them or none.
    /// GPUs must not be using them any more.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`], [`Problem::PageNotMapped`], [`ErrorKind::PagesLost`]; else as for
    /// [`Vmm::unmap_many`], and with a zero page as for [`Vmm::map_many`].
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), Error> {
        let fail = |kind| Error::new(Operation::UnmapPages, kind);
        let pages = self.core.check(pages).map_err(fail)?;
        let mut table = self.core.lock();
        table.memory(&pages).map_err(fail)?;
        self.core.make_idle(&mut table, pages.clone())?;
        self.unmap_ahead(&mut table, pages.end);
        Ok(())
    }

    /// Unmaps what was mapped ahead of pages that are not in use any more.
    fn unmap_ahead(&self, table: &mut Table, page: usize) {
        let ahead = self.core.ahead;
        let near = table.ahead(page..page.saturating_add(ahead));
        let idle: Vec<_> = near.filter(|&page| !table.follows_a_mapped_page(page, ahead)).collect();
        if let Err(error) = self.core.make_idle(table, idle) {
            crate::log::warning!(%error, "pages stay mapped ahead");
        }
    }

    /// Releases memory that no page in use needs: what was mapped ahead.
    ///
    /// # Errors
    /// As for [`unmap`](Self::unmap).
    pub fn trim(&self) -> Result<(), Error> {
        let alive = check_alive(&self.core.vmm);
        alive.map_err(|kind| Error::new(Operation::UnmapPages, kind))?;
        let mut table = self.core.lock();
        table.want_nothing_ahead();
        let ahead: Vec<_> = table.ahead(0..self.core.count).collect();
        self.core.make_idle(&mut table, ahead)
    }

    /// Grants agents access to all of it, to what is mapped now and later (`hipMemSetAccess`); to
    /// the zero page, read access. Agents not named keep what they have.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), Error> {
        let core = &self.core;
        let all = span::check_access(&core.vmm, &core.properties, agents, access)?;
        let zero = AccessDescriptor::of_each(agents, access.min(Access::Read));
        let mut table = core.lock();
        let changes: Vec<_> = table
            .mappings()
            .map(|(state, mapping)| {
                let is_zero = state == PageState::Zero;
                (mapping, if is_zero { zero.as_slice() } else { all.as_slice() })
            })
            .collect();
        Mapping::set_access_many(&changes)?;
        table.grants.set(agents, access);
        Ok(())
    }

    /// Revokes all access of agents, GPUs too; the others lose theirs for a moment.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), Error> {
        check_alive(&self.core.vmm).map_err(|kind| Error::new(Operation::Revoke, kind))?;
        let mut table = self.core.lock();
        let mappings: Vec<_> = table.mappings().map(|(_, mapping)| mapping).collect();
        Mapping::revoke_many(&mappings, agents)?;
        table.grants.set(agents, Access::None);
        Ok(())
    }

    /// Returns the access of an agent to what is mapped, now and later.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an unknown agent, or if a page was unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, Error> {
        check_alive(&self.core.vmm).map_err(|kind| Error::new(Operation::GetAccess, kind))?;
        let table = self.core.lock();
        let mappings = table.mappings().map(|(_, mapping)| mapping);
        span::access(&self.core.vmm, &table.grants, agent, mappings)
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have read access.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`]; [`Problem::PageNotMapped`] without a zero page; else as for
    /// [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let fail = |kind| Error::new(Operation::Read, kind);
        let part = self.part(offset, bytes.len()).map_err(fail)?;
        let table = self.core.lock();
        table.span(&self.core, part, true).map_err(fail)?.read(bytes)
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have write access.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`], [`Problem::PageNotMapped`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let fail = |kind| Error::new(Operation::Write, kind);
        let part = self.part(offset, bytes.len()).map_err(fail)?;
        let table = self.core.lock();
        table.span(&self.core, part, false).map_err(fail)?.write(bytes)
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`], [`Problem::PageNotMapped`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        let fail = |kind| Error::new(Operation::Fill, kind);
        let part = self.part(offset, size).map_err(fail)?;
        let table = self.core.lock();
        table.span(&self.core, part, false).map_err(fail)?.fill(value, size)
    }

    /// Checks a part of the buffer; returns its start and end.
    fn part(&self, offset: usize, size: usize) -> Result<(usize, usize), crate::ErrorKind> {
        check_alive(&self.core.vmm)?;
        Ok((offset, check_bounds(offset, size, self.capacity())?))
    }

    /// Returns whether the zero page still contains only zeros; `true` without one. If not, a GPU has
    /// stored to a page that was not mapped. Reads all of the page, by a CPU with read access.
    ///
    /// # Errors
    /// As for [`Vmm::read`].
    pub fn zero_page_is_clean(&self) -> Result<bool, Error> {
        let core = &self.core;
        check_alive(&core.vmm).map_err(|kind| Error::new(Operation::Read, kind))?;
        let table = core.lock();
        let Some((_, zero)) = table.mappings().find(|(state, _)| *state == PageState::Zero) else {
            return Ok(true);
        };
        let mut bytes = vec![0; core.page.min(1 << 16)];
        for offset in (0..core.page).step_by(bytes.len()) {
            let part = bytes.len().min(core.page - offset);
            zero.read(offset, &mut bytes[..part])?;
            if bytes[..part].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns what is mapped at a page.
    ///
    /// # Errors
    /// [`Problem::NoSuchPage`].
    pub fn state(&self, page: usize) -> Result<PageState, Error> {
        let checked = self.core.check(page..page.saturating_add(1));
        checked.map_err(|kind| Error::new(Operation::GetAccess, kind))?;
        Ok(self.core.lock().state(page))
    }

    /// Counts its pages and its calls. Zeros in a [child of a fork](crate::Runtime::has_forked).
    #[must_use]
    pub fn statistics(&self) -> PagedStatistics {
        if self.core.vmm.runtime().has_forked() {
            return PagedStatistics::default();
        }
        self.core.lock().statistics(&self.core)
    }

    /// What it shares with its thread.
    fn core(&self) -> &Core {
        &self.core
    }
}

impl Drop for PagedBuffer {
    fn drop(&mut self) {
        if self.core.vmm.runtime().has_forked() {
            // The thread does not exist here, and may have held the lock.
            std::mem::forget((self.core.clone(), self.thread.take()));
            return;
        }
        self.core.lock().ended = true;
        self.core.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            crate::log::error!("the thread that maps pages ahead has panicked");
        }
    }
}

impl fmt::Debug for PagedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedBuffer")
            .field("address", &self.address())
            .field("pages", &self.pages())
            .field("page_size", &self.page_size())
            .finish_non_exhaustive()
    }
}
