//! The same as [`Vmm`](super::Vmm), as values that clean up after themselves.
//!
//! A [`Mapping`] keeps its [`Reservation`] and its [`Allocation`] alive; the last one to go frees
//! the addresses and the memory. Nothing can be used after it was freed, nothing leaks by being
//! forgotten about (short of `mem::forget`; and then the `Vmm`'s own end cleans up).

mod allocation;
mod batch;
mod mapping;
mod reservation;

pub use allocation::Allocation;
pub use batch::MapRequest;
pub use mapping::Mapping;
pub use reservation::{Reservation, ReservationBuilder};
