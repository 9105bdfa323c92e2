//! HIP's virtual memory management directly on AMD's HSA runtime, without HIP.
//!
//! A program that avoids HIP still needs `hipMemAddressReserve`, `hipMemCreate`, `hipMemMap` and
//! `hipMemSetAccess`. These calls reserve address ranges, create physical memory, map the memory in the ranges, and set
//! the access of each agent. This crate loads `libhsa-runtime64` at run time, discovers agents and memory pools, and
//! implements HIP's documented semantics on `hsa_amd_vmem_*`. The crate checks all arguments before it changes
//! anything, and rolls back an operation that fails half-way.
//!
//! ```
//! use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On hardware: Runtime::load()?. The simulation needs no GPU.
//! let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
//! let vmm = Vmm::open(&runtime)?;
//! let gpu = runtime.gpus().next().ok_or("no GPU")?;
//!
//! let size = 2 << 20;
//! let reservation = Reservation::builder(8 * size).reserve(&vmm)?;
//! let allocation = Allocation::create(&vmm, size, &AllocationProperties::on(gpu.id()))?;
//! let mapping = reservation.map(0, &allocation)?;
//! mapping.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
//!
//! mapping.write(0, b"hello")?;
//! let mut text = [0; 5];
//! mapping.read(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! // Dropping the mapping unmaps it. Addresses and memory are freed with their last owner.
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! * [`runtime`], [`agent`], [`pool`]: the loaded runtime, its CPUs and GPUs, and their memory pools.
//! * [`vmm`]: one method for each of HIP's virtual memory calls ([`Vmm`]), and owned values for the same calls
//!   ([`Reservation`], [`Allocation`], [`Mapping`]). [`RetireQueue`](vmm::RetireQueue) unmaps memory when signals fire.
//! * [`memory`], [`ipc`]: memory as `hipMalloc` allocates it ([`PoolMemory`]), and the same memory in
//!   other processes ([`Ipc`]).
//! * [`report`]: everything that is reserved, mapped and allocated, as text and as data.
//! * [`buffer`]: buffers that grow in place ([`GrowableBuffer`], [`GrowableVec`](buffer::GrowableVec)),
//!   ring buffers ([`RingBuffer`](buffer::RingBuffer)), paged and pausable buffers
//!   ([`PagedBuffer`](buffer::PagedBuffer), [`PausableBuffer`](buffer::PausableBuffer)).
//! * [`area`]: memory selected by a few flags, like the areas of AML, Argonne's memory library ([`Area`]).
//! * [`transport`]: memory that is sent to another process, with its description.
//! * [`error`], [`hip`]: the error of every operation, and HIP's error codes.
//! * [`hsa_sys`]: the C types of the HSA ABI, for HSA calls that the program makes itself ([`Runtime::function`]).
//!
//! # Features
//!
//! * `simulation`: includes the software HSA runtime (`Runtime::simulated`, `HSA_VMM_RUNTIME=sim`). Off by default,
//!   because an environment variable must not replace the runtime of a production program.
//! * `serde`: makes reports serialisable.
//!
//! # Tested with
//!
//! * AMD's own runtimes 6.1.2, 6.4.3 and 7.2.4, unmodified, on two kernel drivers: `amdgpu` with software GPUs, in
//!   QEMU, and an emulated driver.
//! * The simulation. Tests compare it with these runtimes call by call.
//!
//! No AMD GPU was used in development.

#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hsa-vmm needs 64-bit Linux, as AMD's HSA runtime does");

mod access;
mod address;
pub mod agent;
// `native` is the only module that calls foreign functions and accesses mapped memory. The unsafe code of `area`, `ipc`,
// `memory`, `runtime` and `vmm` calls unsafe functions of `native`; that of `area` and `ipc` also creates and copies a
// `memory::Span`, whose contract is as important.
#[allow(unsafe_code)]
pub mod area;
pub mod buffer;
pub mod error;
mod handle;
pub mod hip;
// Unsafe code detaches memory of other processes that this process has opened.
#[allow(unsafe_code)]
pub mod ipc;
mod log;
#[allow(unsafe_code)]
pub mod memory;
#[allow(unsafe_code)]
mod native;
pub mod pool;
pub mod report;
pub mod runtime;
mod signal;
mod sync;
pub mod transport;
mod trust;
#[allow(unsafe_code)]
pub mod vmm;

#[doc(inline)]
pub use agent::{Agent, AgentId};
#[doc(inline)]
pub use area::Area;
#[doc(inline)]
pub use buffer::GrowableBuffer;
#[doc(inline)]
pub use error::{Error, ErrorKind};
/// The software HSA runtime, for machines without a GPU and for tests.
///
/// Only [`Runtime::simulated`] and `HSA_VMM_RUNTIME=sim` start it.
#[cfg(feature = "simulation")]
pub use hsa_sim as simulation;
/// The C types of the HSA ABI, for HSA calls that the caller makes itself ([`Runtime::function`]).
pub use hsa_sys;
#[doc(inline)]
pub use ipc::Ipc;
#[doc(inline)]
pub use memory::PoolMemory;
#[doc(inline)]
pub use pool::Pool;
#[doc(inline)]
pub use runtime::Runtime;
#[doc(inline)]
pub use vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Handle, HandleType,
    Mapping, Reservation, Vmm,
};

/// Compiles and runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the guide's program.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
mod embedding {}
