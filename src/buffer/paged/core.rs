//! What a paged buffer shares with its thread: memory, and what is behind which page.

use super::{Backing, Table};
use crate::agent::AgentId;
use crate::buffer::BufferError;
use crate::buffer::stock::Stock;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Condvar, Mutex, MutexGuard, lock};
use crate::vmm::{
    Access, Address, Allocation, AllocationProperties, Only, Operation, Reservation, Serial, Vmm,
    VmmError,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// What the buffer shares with its thread.
#[derive(Debug)]
pub(in crate::buffer) struct Core {
    table: Mutex<Table>,
    /// Which mapping each page has that has any, the zero page's too. Changed with the table locked.
    serials: Mutex<BTreeMap<usize, Serial>>,
    /// There is something to map ahead, or the end has come.
    pub(super) changed: Condvar,
    /// Whether there is a thread that waits for that.
    pub(super) mapping: AtomicBool,
    pub(super) zero: Option<Allocation>,
    pub(super) ahead: usize,
    /// The size of a page in bytes.
    pub page: usize,
    /// How many pages there are.
    pub count: usize,
    pub(super) reservation: Reservation,
    pub properties: AllocationProperties,
    pub(super) stock: Stock,
    pub vmm: Vmm,
}

impl Core {
    /// Of a buffer with nothing in it.
    pub(super) fn new(
        vmm: &Vmm,
        properties: AllocationProperties,
        reservation: Reservation,
        page: usize,
        count: usize,
        ahead: usize,
        stock: Stock,
    ) -> Self {
        Self {
            table: Mutex::new(Table::default()),
            serials: Mutex::default(),
            changed: Condvar::default(),
            mapping: AtomicBool::new(false),
            zero: None,
            ahead,
            page,
            count,
            reservation,
            properties,
            stock,
            vmm: vmm.clone(),
        }
    }

    /// Whether every page still has the mapping that it was given.
    pub(super) fn check_mapped(&self, table: &Table) -> Result<(), VmmError> {
        for (run, _) in table.runs(self.count, self.zero.is_some()) {
            let (address, size) = (self.address_of(run.start), run.len() * self.page);
            self.vmm.only(&self.serials(&run)).check(Operation::GetAccess, address, size)?;
        }
        Ok(())
    }

    /// Before a lock is touched that another thread may have held when the process forked.
    pub fn alive(&self, operation: Operation) -> Result<(), VmmError> {
        if self.vmm.runtime().has_forked() { Err(VmmError::Forked { operation }) } else { Ok(()) }
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Which mappings pages have, whatever is mapped at their addresses by now.
    pub fn serials(&self, pages: &Range<usize>) -> Vec<Serial> {
        lock(&self.serials).range(pages.clone()).map(|(_, &serial)| serial).collect()
    }

    /// Maps one page.
    pub(super) fn map_page(&self, page: usize, memory: &Allocation) -> Result<(), VmmError> {
        let (_, serial) = self.reservation.map_unowned(page * self.page, self.page, memory)?;
        lock(&self.serials).insert(page, serial);
        Ok(())
    }

    /// Unmaps a run of pages, all of them or none.
    pub(super) fn unmap_pages(&self, run: &Range<usize>) -> Result<(), VmmError> {
        let (address, size) = (self.address_of(run.start), run.len() * self.page);
        self.vmm.only(&self.serials(run)).unmap(address, size)?;
        let mut serials = lock(&self.serials);
        for page in run.clone() {
            serials.remove(&page);
        }
        Ok(())
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
    pub(super) fn take(
        &self,
        table: &mut Table,
        count: usize,
    ) -> Result<Vec<Allocation>, VmmError> {
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
    pub(super) fn lay_runs(
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

    /// Changes access run by run, or leaves it as it was. `change` is told what and where, how much,
    /// and whether it is the zero page.
    pub(super) fn change_access(
        &self,
        table: &Table,
        agents: &[AgentId],
        change: impl Fn(Only<'_>, Address, usize, bool) -> Result<(), VmmError>,
    ) -> Result<(), VmmError> {
        let runs = table.runs(self.count, self.zero.is_some());
        for (number, (run, zero)) in runs.iter().enumerate() {
            let size = run.len() * self.page;
            let serials = self.serials(run);
            let mappings = self.vmm.only(&serials);
            if let Err(error) = change(mappings, self.address_of(run.start), size, *zero) {
                for (done, zero) in &runs[..number] {
                    let place = (self.address_of(done.start), done.len() * self.page);
                    let most = if *zero { Access::Read } else { Access::ReadWrite };
                    let serials = self.serials(done);
                    let mappings = self.vmm.only(&serials);
                    if let Err(undo) = table.grants().restore(mappings, place, agents, most) {
                        crate::log::warning!(%undo, ?done, "access to pages stays changed");
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.vmm.runtime().has_forked() {
            return;
        }
        let table = self.table();
        for (run, _) in table.runs(self.count, self.zero.is_some()) {
            if let Err(error) = self.unmap_pages(&run) {
                crate::log::warning!(%error, ?run, "pages were not unmapped at once");
                for page in run {
                    let _ = self.unmap_pages(&(page..page + 1));
                }
            }
        }
        // What is behind a lost page is not known: nothing, or what cannot be unmapped.
        for page in table.lost() {
            let _ = self.unmap_pages(&(page..page + 1));
        }
    }
}
