//! Buffers built on virtual-memory management.
//!
//! * [`GrowableBuffer`] grows and shrinks in place; [`GrowableVec`] is the same with a type.
//! * [`PagedBuffer`] maps and unmaps single pages, as a KV cache does; pages can be moved and shared
//!   between buffers without copying.
//! * [`PausableBuffer`] releases its memory for a while and keeps its addresses.
//! * [`RingBuffer`] maps the same memory several times in a row.
//!
//! Device memory is never a slice: agents and other processes may change it at any time. Reading and
//! writing copy ([memory model](crate::vmm#memory-model)), and a wrong offset is an error and never a
//! fault.
//!
//! If a part of a buffer is unmapped by its address ([`Vmm::unmap`]) and other memory is mapped there,
//! calls that concern that part fail with [`Problem::NotMapped`] and change nothing.
//!
//! Errors of the virtual memory below are passed on as they are: their
//! [operation](crate::Error::operation) is the call that failed, such as `create` or `map`. If the
//! runtime fails and then fails again while a call is rolled back, the reservation is quarantined
//! ([`ErrorKind::Quarantined`]).

mod growable;
mod handle_pool;
mod paged;
mod pausable;
mod ring;
mod span;
mod typed;

pub use growable::{GrowableBuffer, GrowableBuilder};
pub use paged::{PageState, PagedBuffer, PagedBuilder, PagedStatistics};
pub use pausable::{Contents, PausableBuffer};
pub use ring::{RingBuffer, RingBuilder};
pub use typed::GrowableVec;

use crate::agent::AgentId;
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use crate::vmm::{AllocationProperties, Location, Vmm};

/// Rounds a size of at least one byte up to whole granules.
fn whole_granules(vmm: &Vmm, size: usize) -> Result<usize, Error> {
    if size == 0 {
        return Err(wrong_size(size, Problem::Zero));
    }
    round_up(size, vmm.reservation_granule())
}

/// Rounds a size up to whole granules.
fn round_up(size: usize, granule: usize) -> Result<usize, Error> {
    size.checked_next_multiple_of(granule).ok_or_else(|| wrong_size(size, Problem::Overflow))
}

fn wrong_size(size: usize, problem: Problem) -> Error {
    let kind = ErrorKind::invalid(Argument::Size, size, problem);
    Error::new(Operation::AddressReserve, kind)
}

/// The agent whose memory is created with these properties.
fn owner(properties: &AllocationProperties) -> Result<AgentId, Error> {
    match properties.location {
        Location::Agent(agent) => Ok(agent),
        Location::Unknown => {
            let kind = ErrorKind::invalid_list(Argument::Location, Problem::MissingLocation);
            Err(Error::new(Operation::Create, kind))
        }
    }
}
