//! A large reservation whose pages get memory and lose it, one by one or in runs.

mod ahead;
mod backing;
mod core;
mod options;
mod statistics;
mod table;

pub use options::PagedOptions;
pub use statistics::PagedStatistics;
pub use table::PageState;

use super::BufferError;
use crate::agent::AgentId;
use crate::sync::{MutexGuard, thread};
use crate::vmm::{Access, AccessDescriptor, Address, Operation, Serial, VmmError};
pub(super) use backing::{Backing, Failure};
pub(super) use core::Core;
use std::ops::Range;
use std::sync::Arc;
pub(super) use table::Table;

#[cfg(doc)]
use crate::vmm::Vmm;

/// A buffer whose pages get memory and lose it one by one or in runs: what a KV cache needs, whose
/// sequences grow and end while the addresses stay.
///
/// Pages are counted from 0. All calls may come from any thread; they wait for each other.
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
/// let cache = PagedBuffer::of(1 << 30).with_zero_page();
/// let cache = cache.reserve(&vmm, &AllocationProperties::on(gpu))?;
/// cache.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// cache.map(100..103)?;
/// cache.write(101 * cache.page_size(), b"keys and values")?;
/// cache.unmap(100..101)?;
///
/// let mut bytes = [1; 4];
/// cache.read(100 * cache.page_size(), &mut bytes)?;
/// assert_eq!(bytes, [0; 4], "a page that is not mapped shows zeros");
/// assert_eq!(cache.statistics().mapped, 2);
/// # Ok(())
/// # }
/// ```
///
/// What a page holds that was just mapped is not defined: memory that was never used, or what was in
/// it before. What fails leaves the buffer as it was. If the runtime fails half-way and then fails to
/// take back what it did, the pages are lost: they are not used any more, and counted
/// ([`BufferError::PagesLost`], [`PagedStatistics::lost`]).
///
/// ROCm 7.2 gives memory back only when its reservation is freed
/// ([`Quirks::memory_returns_with_addresses`](crate::vmm::Quirks)). There the memory of pages that
/// are unmapped is kept for the next ones, so that the buffer never uses more than it did at its
/// fullest, and gives all of it back in the end.
#[derive(Debug)]
pub struct PagedBuffer {
    core: Arc<Core>,
    /// The thread that maps ahead.
    mapper: Option<thread::JoinHandle<()>>,
}

/// Bytes of a buffer whose pages stay what they are meanwhile.
struct Part<'a> {
    address: Address,
    serials: Vec<Serial>,
    _table: MutexGuard<'a, Table>,
}

impl PagedBuffer {
    /// Begins a buffer with addresses for `capacity` bytes and nothing behind them.
    pub fn of(capacity: usize) -> PagedOptions {
        PagedOptions { capacity, page: None, zero: false, ahead: 0, stock: 0 }
    }

    fn start(core: Core) -> Result<Self, BufferError> {
        let core = Arc::new(core);
        let mapper = if core.ahead == 0 {
            None
        } else {
            let core = core.clone();
            let thread = thread::Builder::new().name("hsa-vmm ahead".to_owned());
            Some(thread.spawn(move || core.map_ahead()).map_err(|error| VmmError::System {
                operation: Operation::AddressReserve,
                call: "pthread_create",
                errno: crate::Errno::of(
                    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
                ),
            })?)
        };
        Ok(Self { core, mapper })
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        self.core.address_of(0)
    }

    /// How many bytes of addresses it has: the capacity in whole pages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.core.count * self.core.page
    }

    /// The size of a page in bytes.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.core.page
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.core.count
    }

    /// Where a page begins.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`].
    pub fn address_of(&self, page: usize) -> Result<Address, BufferError> {
        self.core.check(page..page.saturating_add(1))?;
        Ok(self.core.address_of(page))
    }

    /// Puts memory behind pages (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`): behind all of
    /// them or, if that fails, none.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`], [`BufferError::PageMapped`], [`BufferError::PageLost`],
    /// [`BufferError::PagesLost`]; else as for [`Vmm::create`], [`Vmm::map`] and
    /// [`Vmm::set_access`].
    pub fn map(&self, pages: Range<usize>) -> Result<(), BufferError> {
        self.core.alive(Operation::Map)?;
        let pages = self.core.check(pages)?;
        let mut table = self.core.table();
        table.check_free(&pages)?;
        // Pages that were mapped ahead are there already.
        let idle = table.absent(&pages);
        let memory = self.core.take(&mut table, idle.iter().map(Range::len).sum())?;
        let memory = self.core.lay_runs(&mut table, &idle, memory)?;
        table.note_mapped(&pages, idle, memory);
        if self.core.ahead > 0 {
            table.want_ahead(pages.end);
            self.core.changed.notify_all();
        }
        Ok(())
    }

    /// Takes the memory behind pages back (`hipMemUnmap`, `hipMemRelease`): behind all of them or,
    /// if that fails, none. Work of GPUs that still uses them must have ended.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`], [`BufferError::PageNotMapped`], [`BufferError::PagesLost`];
    /// else as for [`Vmm::unmap`], and with a zero page as for [`Vmm::map`] and
    /// [`Vmm::set_access`].
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), BufferError> {
        self.core.alive(Operation::Unmap)?;
        let pages = self.core.check(pages)?;
        let mut table = self.core.table();
        let memory = table.memory(&pages)?;
        let (before, after) = (Backing::Memory(&memory), self.core.idle());
        if let Err(failure) = self.core.swap(&pages, table.grants(), before, after) {
            drop(memory);
            return Err(table.lose_unless_undone(&pages, failure));
        }
        table.note_unmapped(&pages);
        self.core.give(&mut table, memory);
        self.core.take_back_behind(&mut table, pages.end);
        Ok(())
    }

    /// Gives back memory that no page in use needs: what was mapped ahead.
    ///
    /// # Errors
    /// As for [`Vmm::unmap`]; what could be given back has been.
    pub fn trim(&self) -> Result<(), BufferError> {
        self.core.alive(Operation::Unmap)?;
        let mut table = self.core.table();
        table.want_nothing_ahead();
        let ahead = table.ahead();
        let (memory, answer) = self.core.take_back(&mut table, ahead);
        self.core.give(&mut table, memory);
        Ok(answer?)
    }

    /// Gives agents access to all of it, to what is mapped now and later (`hipMemSetAccess`); to
    /// the zero page, to read. Agents not named keep what they have.
    ///
    /// # Errors
    /// As for [`Vmm::set_access`].
    pub fn grant(&self, agents: &[AgentId], access: Access) -> Result<(), BufferError> {
        let core = &self.core;
        let all = AccessDescriptor::of_each(agents, access);
        let reading = AccessDescriptor::of_each(agents, access.min(Access::Read));
        core.vmm.check_access(&core.properties, &all)?;
        let mut table = core.table();
        core.change_access(&table, agents, |mappings, address, size, zero| {
            mappings.set_access(address, size, if zero { &reading } else { &all })
        })?;
        table.set_grants(|grants| grants.with(agents, access));
        Ok(())
    }

    /// Really takes it away from agents, GPUs too; the others lose it for a moment.
    ///
    /// # Errors
    /// As for [`Vmm::revoke`].
    pub fn revoke(&self, agents: &[AgentId]) -> Result<(), BufferError> {
        let core = &self.core;
        core.alive(Operation::Revoke)?;
        let mut table = core.table();
        core.change_access(&table, agents, |mappings, address, size, _| {
            mappings.revoke(address, size, agents)
        })?;
        table.set_grants(|grants| grants.with(agents, Access::None));
        Ok(())
    }

    /// What an agent may do with what is mapped, now and later.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for an agent that is none of the runtime's, or if a page was
    /// unmapped by its address.
    pub fn access(&self, agent: AgentId) -> Result<Access, BufferError> {
        self.core.vmm.check_agent(agent)?;
        let table = self.core.table();
        self.core.check_mapped(&table)?;
        Ok(table.grants().of(agent))
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have been granted to read.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`]; [`BufferError::PageNotMapped`] without a zero page; else as for
    /// [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), BufferError> {
        let part = self.part(Operation::Read, offset, bytes.len())?;
        let read = self.core.vmm.only(&part.serials).read(part.address, bytes);
        Ok(read.map_err(|error| error.about_offset(self.address()))?)
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have been granted to write.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::PageNotMapped`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BufferError> {
        let part = self.part(Operation::Write, offset, bytes.len())?;
        let written = self.core.vmm.only(&part.serials).write(part.address, bytes);
        Ok(written.map_err(|error| error.about_offset(self.address()))?)
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::PageNotMapped`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), BufferError> {
        let part = self.part(Operation::Fill, offset, size)?;
        let filled = self.core.vmm.only(&part.serials).fill(part.address, value, size);
        Ok(filled.map_err(|error| error.about_offset(self.address()))?)
    }

    /// What is at an offset, if `size` bytes from there may be used.
    fn part(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
    ) -> Result<Part<'_>, BufferError> {
        let core = &self.core;
        core.alive(operation)?;
        let beyond = BufferError::BeyondEnd { offset, size, end: self.capacity() };
        let end = offset.checked_add(size).filter(|&end| end <= self.capacity()).ok_or(beyond)?;
        let pages = offset / core.page..end.div_ceil(core.page);
        let table = core.table();
        table.check_usable(&pages, operation == Operation::Read && core.zero.is_some())?;
        let address = Address::new(self.address().get() + offset);
        Ok(Part { address, serials: core.serials(&pages), _table: table })
    }

    /// Whether the zero page still holds nothing but zeros; `true` without one. A GPU has stored to
    /// a page that was not mapped if not. Reads all of the page, by a CPU that may read the buffer.
    ///
    /// # Errors
    /// As for [`Vmm::read`].
    pub fn zero_page_is_clean(&self) -> Result<bool, BufferError> {
        self.core.alive(Operation::Read)?;
        let table = self.core.table();
        let Some(page) = self.core.zero.as_ref().and_then(|_| table.a_zero_page(self.core.count))
        else {
            return Ok(true);
        };
        let serials = self.core.serials(&(page..page + 1));
        let mut bytes = vec![0; self.core.page.min(1 << 16)];
        for done in (0..self.core.page).step_by(bytes.len()) {
            let part = bytes.len().min(self.core.page - done);
            let address = Address::new(self.core.address_of(page).get() + done);
            self.core.vmm.only(&serials).read(address, &mut bytes[..part])?;
            if bytes[..part].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is behind a page.
    ///
    /// # Errors
    /// [`BufferError::NoSuchPage`].
    pub fn state(&self, page: usize) -> Result<PageState, BufferError> {
        self.core.alive(Operation::GetAccess)?;
        self.core.check(page..page.saturating_add(1))?;
        Ok(self.core.table().state(page, self.core.zero.is_some()))
    }

    /// How much there is of everything, and what has happened.
    #[must_use]
    pub fn statistics(&self) -> PagedStatistics {
        let core = &self.core;
        if core.vmm.runtime().has_forked() {
            return PagedStatistics::default();
        }
        core.table().statistics(core.count, core.page, core.zero.is_some(), |figures| {
            figures.ready += core.stock.ready();
            figures.mapper_runs = core.is_mapping_ahead();
        })
    }

    /// What it shares with its thread, for moving pages.
    pub(super) fn core(&self) -> &Core {
        &self.core
    }
}

impl Drop for PagedBuffer {
    fn drop(&mut self) {
        if self.core.vmm.runtime().has_forked() {
            // The thread is the parent's, and may have been in the middle of a change.
            std::mem::forget((self.core.clone(), self.mapper.take()));
            return;
        }
        self.core.table().end();
        self.core.changed.notify_all();
        if let Some(mapper) = self.mapper.take()
            && mapper.join().is_err()
        {
            crate::log::error!("the thread that maps pages ahead has panicked");
        }
    }
}
