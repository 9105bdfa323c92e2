//! How a paged buffer is made.

use super::{Core, PagedBuffer};
use crate::buffer::stock::Stock;
use crate::buffer::{BufferError, owner, whole_granules};
use crate::vmm::{AllocationProperties, Granularity, Reservation, Vmm};

#[cfg(doc)]
use crate::vmm::VmmError;

/// How a [`PagedBuffer`] is to be made; see [`PagedBuffer::of`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before `reserve`"]
pub struct PagedOptions {
    pub(super) capacity: usize,
    pub(super) page: Option<usize>,
    pub(super) zero: bool,
    pub(super) ahead: usize,
    pub(super) stock: usize,
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
        let owner = owner(properties)?;
        let recommended = vmm.allocation_granularity(properties, Granularity::Recommended)?;
        let page = whole_granules(vmm, self.page.unwrap_or(recommended))?;
        let count = self.capacity.div_ceil(page);
        let reservation = Reservation::of(whole_granules(vmm, count.saturating_mul(page))?);
        let reservation = reservation.reserve(vmm)?;
        let (ahead, stock) =
            if self.zero { (0, self.stock.max(self.ahead)) } else { (self.ahead, self.stock) };
        let stock = Stock::new(vmm, properties, page, stock);
        let mut core = Core::new(vmm, *properties, reservation, page, count, ahead, stock);
        if self.zero {
            core.lay_zero_page(owner)?;
        }
        PagedBuffer::start(core)
    }
}
