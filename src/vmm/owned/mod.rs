//! Owned reservations, allocations and mappings: the calls of [`Vmm`](super::Vmm) with RAII.
//!
//! A [`Mapping`] keeps its [`Reservation`] and its [`Allocation`] alive; dropping the last one frees the
//! addresses and the memory. Values that `mem::forget` leaks are freed with the `Vmm`.

mod allocation;
mod batch;
mod mapping;
mod reservation;

pub use allocation::Allocation;
pub use batch::MapRequest;
pub use mapping::Mapping;
pub use reservation::{Reservation, ReservationBuilder};
