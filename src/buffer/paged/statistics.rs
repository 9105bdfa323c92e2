//! How much of everything a paged buffer has.

use crate::vmm::VmmError;
use core::fmt;

/// How much of everything a [`PagedBuffer`](super::PagedBuffer) has, and what has happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagedStatistics {
    /// How many pages there are addresses for.
    pub pages: usize,
    /// The size of one in bytes.
    pub page_size: usize,
    /// Pages in use.
    pub mapped: usize,
    /// Pages that were mapped ahead and are not in use yet.
    pub ahead: usize,
    /// Pages that show the zero page.
    pub zero: usize,
    /// Pages that are not used any more because the runtime failed.
    pub lost: usize,
    /// Pages that memory is ready for.
    pub ready: usize,
    /// The most pages that were ever in use.
    pub most_mapped: usize,
    /// How many pages were mapped in all.
    pub maps: u64,
    /// How many of them had been mapped ahead.
    pub found_ahead: u64,
    /// How many pages were unmapped in all.
    pub unmaps: u64,
    /// How many pages were mapped ahead in all.
    pub mapped_ahead: u64,
    /// How often that failed.
    pub failures_ahead: u64,
    /// How it failed last.
    pub last_failure_ahead: Option<VmmError>,
    /// Whether there is a thread that maps ahead.
    pub mapper_runs: bool,
}

impl PagedStatistics {
    /// The bytes of memory that the buffer uses.
    #[must_use]
    pub fn memory(&self) -> usize {
        let zero_page = usize::from(self.zero > 0);
        (self.mapped + self.ahead + self.ready + zero_page) * self.page_size
    }
}

impl fmt::Display for PagedStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, mapped, ahead, zero, ready, lost, .. } = self;
        write!(f, "{mapped} of {pages} pages mapped (at most {}), ", self.most_mapped)?;
        write!(f, "{ahead} ahead, {zero} zero, {ready} ready, {lost} lost; ")?;
        write!(f, "{} mapped so far, {} of them found ahead, ", self.maps, self.found_ahead)?;
        write!(f, "{} unmapped; {:#x} bytes of memory", self.unmaps, self.memory())?;
        match &self.last_failure_ahead {
            None => Ok(()),
            Some(error) => {
                write!(f, "; mapping ahead failed {} times, last: {error}", self.failures_ahead)
            }
        }
    }
}
