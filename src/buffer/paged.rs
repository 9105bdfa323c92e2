//! A large reservation whose pages get memory and lose it, one by one or in runs.

mod ahead;
mod backing;
mod statistics;
mod table;

pub use statistics::PagedStatistics;
pub use table::PageState;

use super::grants::Grants;
use super::stock::Stock;
use super::{BufferError, whole_granules};
use crate::agent::AgentId;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, thread};
use crate::vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Granularity, Operation,
    Reservation, Vmm, VmmError,
};
pub(super) use backing::{Backing, Failure};
use std::ops::Range;
use std::sync::Arc;
pub(super) use table::Table;

/// How a [`PagedBuffer`] is to be made; see [`PagedBuffer::of`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct PagedOptions {
    capacity: usize,
    page: Option<usize>,
    zero: bool,
    ahead: usize,
    stock: usize,
}

impl PagedOptions {
    /// Makes pages of this many bytes, rounded up to the granule; else of the recommended granule.
    /// A page is one handle and one mapping.
    pub fn in_pages_of(mut self, bytes: usize) -> Self {
        self.page = Some(bytes);
        self
    }

    /// Lets every page that is not mapped show one page of zeros, the same for all of them: agents
    /// that may use the buffer may read them without a fault.
    ///
    /// A store there must not happen. A CPU's is a fault, but a GPU's is not: AMD's driver maps
    /// everything writable, so that all those pages would show what was stored
    /// ([`PagedBuffer::zero_page_is_clean`]).
    pub fn with_zero_page(mut self) -> Self {
        self.zero = true;
        self
    }

    /// Has a thread of the buffer's own map so many pages behind those that were mapped last, so
    /// that a sequence that grows finds them there. They count as used memory.
    ///
    /// With a zero page the thread only makes the memory, as [`with_stock`](Self::with_stock) does:
    /// a page that may be read this very moment is not taken away behind the reader's back.
    pub fn mapping_ahead(mut self, pages: usize) -> Self {
        self.ahead = pages;
        self
    }

    /// Keeps memory for so many pages ready, made by a thread of the buffer's own, so that mapping
    /// does not wait for the runtime to make it. It counts as used memory.
    pub fn with_stock(mut self, pages: usize) -> Self {
        self.stock = pages;
        self
    }

    /// Reserves the addresses, and no memory but the zero page (`hipMemAddressReserve`). The
    /// capacity is rounded up to whole pages.
    ///
    /// With a zero page all of the buffer is mapped now, page by page.
    ///
    /// # Errors
    /// As for [`Vmm::allocation_granularity`], [`Vmm::address_reserve`], and with a zero page as for
    /// [`Vmm::create`], [`Vmm::map`] and [`Vmm::fill`]; [`VmmError::System`] if there can be no
    /// thread.
    pub fn reserve(
        self,
        vmm: &Vmm,
        properties: &AllocationProperties,
    ) -> Result<PagedBuffer, BufferError> {
        let owner = super::owner(properties)?;
        let recommended = vmm.allocation_granularity(properties, Granularity::Recommended)?;
        let page = whole_granules(vmm, self.page.unwrap_or(recommended))?;
        let count = self.capacity.div_ceil(page);
        let reservation = Reservation::of(whole_granules(vmm, count.saturating_mul(page))?);
        let reservation = reservation.reserve(vmm)?;
        let (ahead, stock) =
            if self.zero { (0, self.stock.max(self.ahead)) } else { (self.ahead, self.stock) };
        let mut core = Core {
            table: Mutex::new(Table::default()),
            changed: Condvar::default(),
            zero: None,
            ahead,
            page,
            count,
            reservation,
            properties: *properties,
            stock: Stock::new(vmm, properties, page, stock),
            vmm: vmm.clone(),
        };
        if self.zero {
            core.lay_zero_page(owner)?;
        }
        PagedBuffer::start(core)
    }
}

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

/// What the buffer shares with its thread.
#[derive(Debug)]
pub(super) struct Core {
    table: Mutex<Table>,
    /// There is something to map ahead, or the end has come.
    changed: Condvar,
    zero: Option<Allocation>,
    ahead: usize,
    /// The size of a page in bytes.
    pub page: usize,
    /// How many pages there are.
    pub count: usize,
    reservation: Reservation,
    pub properties: AllocationProperties,
    stock: Stock,
    pub vmm: Vmm,
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
                errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
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
        let of = |access| {
            agents.iter().map(move |&agent| AccessDescriptor { agent, access }).collect::<Vec<_>>()
        };
        let (all, reading) = (of(access), of(access.min(Access::Read)));
        core.vmm.check_access(&core.properties, &all)?;
        let mut table = core.table();
        core.change_access(&table, agents, |address, size, zero| {
            core.vmm.set_access(address, size, if zero { &reading } else { &all })
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
        core.change_access(&table, agents, |address, size, _| {
            core.vmm.revoke(address, size, agents)
        })?;
        table.set_grants(|grants| grants.with(agents, Access::None));
        Ok(())
    }

    /// Copies from it, `offset` bytes from its start; a CPU must have been granted to read.
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`]; [`BufferError::PageNotMapped`] without a zero page; else as for
    /// [`Vmm::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), BufferError> {
        let address = self.part(Operation::Read, offset, bytes.len())?;
        Ok(self.core.vmm.read(address, bytes)?)
    }

    /// Copies to it, `offset` bytes from its start; a CPU must have been granted to write.
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::PageNotMapped`]; else as for [`Vmm::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BufferError> {
        let address = self.part(Operation::Write, offset, bytes.len())?;
        Ok(self.core.vmm.write(address, bytes)?)
    }

    /// Has the GPU that owns the memory fill a part of it with a 32-bit value. `offset` and `size`
    /// are in bytes, multiples of four.
    ///
    /// # Errors
    /// [`BufferError::BeyondEnd`], [`BufferError::PageNotMapped`]; else as for [`Vmm::fill`].
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), BufferError> {
        let address = self.part(Operation::Fill, offset, size)?;
        Ok(self.core.vmm.fill(address, value, size)?)
    }

    /// The address at an offset, if `size` bytes from there may be used.
    fn part(
        &self,
        operation: Operation,
        offset: usize,
        size: usize,
    ) -> Result<Address, BufferError> {
        let core = &self.core;
        core.alive(operation)?;
        let beyond = BufferError::BeyondEnd { offset, size, end: self.capacity() };
        let end = offset.checked_add(size).filter(|&end| end <= self.capacity()).ok_or(beyond)?;
        let pages = offset / core.page..end.div_ceil(core.page);
        core.table().check_usable(&pages, operation == Operation::Read && core.zero.is_some())?;
        Ok(Address::new(self.address().get() + offset))
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
        let mut bytes = vec![0; self.core.page.min(1 << 16)];
        for done in (0..self.core.page).step_by(bytes.len()) {
            let part = bytes.len().min(self.core.page - done);
            let address = Address::new(self.core.address_of(page).get() + done);
            self.core.vmm.read(address, &mut bytes[..part])?;
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
        let runs = self.mapper.as_ref().is_some_and(|mapper| !mapper.is_finished());
        core.table().statistics(core.count, core.page, core.zero.is_some(), |figures| {
            figures.ready += core.stock.ready();
            figures.mapper_runs = runs;
        })
    }

    /// What it shares with its thread, for moving pages.
    pub(super) fn core(&self) -> &Core {
        &self.core
    }
}

impl Core {
    /// Before a lock is touched that another thread may have held when the process forked.
    pub fn alive(&self, operation: Operation) -> Result<(), VmmError> {
        if self.vmm.runtime().has_forked() { Err(VmmError::Forked { operation }) } else { Ok(()) }
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub fn address_of(&self, page: usize) -> Address {
        Address::new(self.reservation.address().get() + page * self.page)
    }

    /// These pages, if there are such. One that ends before it begins has none.
    pub fn check(&self, pages: Range<usize>) -> Result<Range<usize>, BufferError> {
        let end = pages.end.max(pages.start);
        if end > self.count {
            let page = pages.start.max(self.count);
            return Err(BufferError::NoSuchPage { page, pages: self.count });
        }
        Ok(pages.start..end)
    }

    /// Memory for so many pages, or none.
    fn take(&self, table: &mut Table, count: usize) -> Result<Vec<Allocation>, VmmError> {
        let mut memory = table.take_spare(count);
        let answer = match self.stock.take(count - memory.len()) {
            // What was mapped ahead is needed less than this.
            Err(error @ VmmError::OutOfMemory { .. }) => {
                let ahead = table.ahead();
                let (back, _) = self.take_back(table, ahead);
                if back.is_empty() {
                    Err(error)
                } else {
                    memory.extend(back);
                    let extra = memory.split_off(count.min(memory.len()));
                    self.give(table, extra);
                    self.stock.take(count - memory.len())
                }
            }
            answer => answer,
        };
        match answer {
            Ok(more) => {
                memory.extend(more);
                Ok(memory)
            }
            Err(error) => {
                self.give(table, memory);
                Err(error)
            }
        }
    }

    /// Takes memory back that no page needs any more.
    pub fn give(&self, table: &mut Table, memory: Vec<Allocation>) {
        if self.vmm.quirks().memory_returns_with_addresses {
            table.keep_spare(memory);
        } else {
            memory.into_iter().for_each(|memory| self.stock.give(memory));
        }
    }

    /// Puts memory behind idle runs, in their order; or behind none, and takes it back.
    fn lay_runs(
        &self,
        table: &mut Table,
        runs: &[Range<usize>],
        memory: Vec<Allocation>,
    ) -> Result<Vec<Allocation>, BufferError> {
        let mut laid = 0;
        for (number, run) in runs.iter().enumerate() {
            let now = laid..laid + run.len();
            let after = Backing::Memory(&memory[now.clone()]);
            if let Err(failure) = self.swap(run, table.grants(), self.idle(), after) {
                let mut lost = if failure.undone { Vec::new() } else { vec![now] };
                lost.extend(self.lift_runs(table, &runs[..number], &memory));
                // What is behind a lost page must not come to be behind another.
                let is_free = |index: &usize| !lost.iter().any(|lost| lost.contains(index));
                let free = (0..).zip(memory).filter(|(index, _)| is_free(index));
                self.give(table, free.map(|(_, memory)| memory).collect());
                return Err(table.lose_unless_undone(run, failure));
            }
            laid = now.end;
        }
        Ok(memory)
    }

    /// Makes runs idle again that memory was put behind, and says which of it is lost.
    fn lift_runs(
        &self,
        table: &mut Table,
        runs: &[Range<usize>],
        memory: &[Allocation],
    ) -> Vec<Range<usize>> {
        let (mut lost, mut laid) = (Vec::new(), 0);
        for run in runs {
            let now = laid..laid + run.len();
            let before = Backing::Memory(&memory[now.clone()]);
            laid = now.end;
            if let Err(failure) = self.swap(run, table.grants(), before, self.idle()) {
                table.lose(run, &failure);
                lost.push(now);
            }
        }
        lost
    }

    /// Changes access run by run, or leaves it as it was. `change` is told where, how much, and
    /// whether it is the zero page.
    fn change_access(
        &self,
        table: &Table,
        agents: &[AgentId],
        change: impl Fn(Address, usize, bool) -> Result<(), VmmError>,
    ) -> Result<(), VmmError> {
        let runs = table.runs(self.count, self.zero.is_some());
        for (number, (run, zero)) in runs.iter().enumerate() {
            let size = run.len() * self.page;
            if let Err(error) = change(self.address_of(run.start), size, *zero) {
                for (done, zero) in &runs[..number] {
                    if let Err(undo) = self.restore_access(table.grants(), agents, done, *zero) {
                        tracing::warn!(%undo, ?done, "access to pages stays changed");
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives agents what they had in a run.
    fn restore_access(
        &self,
        grants: &Grants,
        agents: &[AgentId],
        run: &Range<usize>,
        zero: bool,
    ) -> Result<(), VmmError> {
        let (address, size) = (self.address_of(run.start), run.len() * self.page);
        let most = if zero { Access::Read } else { Access::ReadWrite };
        let (known, new): (Vec<AgentId>, Vec<AgentId>) =
            agents.iter().partition(|&&agent| grants.of(agent) != Access::None);
        if !known.is_empty() {
            let of =
                |&agent: &AgentId| AccessDescriptor { agent, access: grants.of(agent).min(most) };
            let before: Vec<_> = known.iter().map(of).collect();
            self.vmm.set_access(address, size, &before)?;
        }
        // To forbid it would leave it to a GPU that has been let in.
        if new.is_empty() { Ok(()) } else { self.vmm.revoke(address, size, &new) }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.vmm.runtime().has_forked() {
            return;
        }
        let table = self.table();
        for (run, _) in table.runs(self.count, self.zero.is_some()) {
            let unmap = |run: Range<usize>| {
                self.vmm.unmap(self.address_of(run.start), run.len() * self.page)
            };
            if let Err(error) = unmap(run.clone()) {
                tracing::warn!(%error, ?run, "pages were not unmapped at once");
                for page in run {
                    let _ = unmap(page..page + 1);
                }
            }
        }
        // What is behind a lost page is not known: nothing, or what cannot be unmapped.
        for page in table.lost() {
            let _ = self.vmm.unmap(self.address_of(page), self.page);
        }
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
            tracing::error!("the thread that maps pages ahead has panicked");
        }
    }
}
