//! Buffers that people build on virtual-memory management, ready made.
//!
//! * [`GrowableBuffer`]: grows and shrinks in place; [`GrowableVec`] is the same with a type.
//! * [`PagedBuffer`]: pages of memory come and go one by one, as in a KV cache; they can be moved
//!   between buffers without copying.
//! * [`PausableBuffer`]: gives its memory back for a while and keeps its addresses.
//! * [`RingBuffer`]: the same memory several times in a row, so that nothing has a seam.
//!
//! Device memory is never a slice: agents and other processes may change it at any time. What is
//! read and written here is copied ([memory model](crate::vmm#memory-model)), and a wrong offset is an
//! error and never a fault.
//!
//! If a part of a buffer is unmapped by its address ([`Vmm::unmap`]) and somebody maps other memory
//! there, calls that concern that part fail with [`Problem::NotMapped`] and change nothing.

mod addresses;
mod error;
mod grants;
mod growable;
mod paged;
mod pausable;
mod remap;
mod ring;
mod steps;
mod stock;
mod typed;

pub use error::BufferError;
pub use growable::{GrowableBuffer, GrowableOptions};
pub use paged::{PageState, PagedBuffer, PagedOptions, PagedStatistics};
pub use pausable::{Contents, PausableBuffer};
pub use ring::{RingBuffer, RingOptions};
pub use typed::GrowableVec;

use crate::agent::AgentId;
use crate::vmm::{AllocationProperties, Argument, Location, Operation, Problem, Vmm, VmmError};

/// A size of at least one byte in whole granules.
fn whole_granules(vmm: &Vmm, size: usize) -> Result<usize, VmmError> {
    if size == 0 {
        return Err(wrong_size(Problem::Zero));
    }
    round_up(size, vmm.reservation_granule())
}

/// A size in whole granules; nothing is none of them.
fn round_up(size: usize, granule: usize) -> Result<usize, VmmError> {
    size.checked_next_multiple_of(granule).ok_or(wrong_size(Problem::Overflow))
}

fn wrong_size(problem: Problem) -> VmmError {
    let (operation, argument) = (Operation::AddressReserve, Argument::Size);
    VmmError::InvalidArgument { operation, argument, problem }
}

/// Whose memory it is that is made with these properties.
fn owner(properties: &AllocationProperties) -> Result<AgentId, VmmError> {
    match properties.location {
        Location::Agent(agent) => Ok(agent),
        Location::Unknown => Err(VmmError::InvalidArgument {
            operation: Operation::Create,
            argument: Argument::Location,
            problem: Problem::NoLocation,
        }),
    }
}
