//! Owned reservations, allocations and mappings: the calls of [`Vmm`](super::Vmm) with RAII.
//!
//! A [`Mapping`] keeps its [`Reservation`] and its [`Allocation`] alive: their last owner frees the addresses
//! and the memory. Dropping the `Vmm` frees values that `mem::forget` has leaked.

mod allocation;
mod batch;
mod mapping;
mod reservation;

pub use allocation::Allocation;
pub use batch::MapRequest;
pub use mapping::Mapping;
pub use reservation::{Reservation, ReservationBuilder};
