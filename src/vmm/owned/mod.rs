//! The same as [`Vmm`](super::Vmm), as values that clean up after themselves.
//!
//! A [`Mapping`] keeps its [`Reservation`] and its [`Allocation`] alive; the last one that is dropped
//! frees the addresses and the memory. What is leaked by `mem::forget` is freed with the `Vmm`.

mod allocation;
mod batch;
mod mapping;
mod reservation;

pub use allocation::Allocation;
pub use batch::MapRequest;
pub use mapping::Mapping;
pub use reservation::{Reservation, ReservationBuilder};
