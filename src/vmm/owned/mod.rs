//! Owned reservations, allocations and mappings: the calls of [`Vmm`](super::Vmm) with RAII.
//!
//! A [`Mapping`] keeps its [`Reservation`] and its [`Allocation`] alive. Dropping the last owner of a
//! reservation frees the addresses; dropping the last owner of an allocation releases the memory. If the runtime or the
//! [barrier](super::VmmOptions::with_barrier) fails repeatedly while a value is dropped, its addresses and memory stay
//! until the `Vmm` is dropped; a failure is logged. To learn of a failure and try again, call [`Mapping::unmap`],
//! [`Reservation::free`] and [`Allocation::release`]. Each of these values also keeps its `Vmm` alive. If `mem::forget`
//! leaks a value, the `Vmm` is therefore never dropped, and the value's addresses and memory stay until the process ends.

mod allocation;
mod batch;
mod mapping;
mod reservation;

pub use allocation::Allocation;
pub use batch::MapRequest;
pub use mapping::Mapping;
pub use reservation::{Reservation, ReservationBuilder};
