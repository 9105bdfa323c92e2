//! HIP's virtual-memory management directly on AMD's HSA runtime, without HIP.
//!
//! A runtime that avoids HIP still needs what `hipMemAddressReserve`, `hipMemCreate`, `hipMemMap`
//! and `hipMemSetAccess` give: ranges of addresses that stay, physical memory that comes and
//! goes below them, and a say in who may touch it. This crate loads `libhsa-runtime64` when it
//! runs, finds the agents and their memory pools, and gives those calls HIP's documented
//! meaning on `hsa_amd_vmem_*` — with every argument checked before anything happens, and
//! everything put back when something fails half-way.
//!
//! ```
//! use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On hardware: Runtime::load()?. The simulation needs no GPU, and is only used when asked for.
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
//! // Dropping the mapping unmaps it; the last of its owners frees addresses and memory.
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! * [`runtime`], [`agent`], [`pool`]: what is there.
//! * [`vmm`]: the fourteen calls of HIP's virtual-memory management ([`Vmm`]), and owned types
//!   above them ([`Reservation`], [`Allocation`], [`Mapping`]).
//! * [`memory`], [`ipc`]: memory as `hipMalloc` gives it ([`PoolMemory`]), and the same memory in
//!   other processes ([`Ipc`]).
//! * [`report`]: what is reserved, mapped and held, for people, for programs and as a picture.
//! * [`buffer`]: buffers that people build on it: [`GrowableBuffer`], [`GrowableVec`],
//!   [`RingBuffer`], [`PagedBuffer`], [`PausableBuffer`].
//! * [`area`]: memory by a few flags, as AML's areas give it ([`Area`]).
//! * [`transport`]: memory sent to another process, with what describes it.
//! * [`hip`]: HIP's error codes and what its releases answer differently.
//!
//! # Where it is known to hold
//!
//! On AMD's own runtime 6.1.2, 6.4.3 and 7.2.4, unmodified, over a kernel driver that is emulated;
//! and on the software runtime [`hsa-sim`](simulation), which is compared with them call by call.
//! No AMD GPU has been used to develop it.

#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hsa-vmm needs 64-bit Linux, as AMD's HSA runtime does");

mod access;
mod address;
pub mod agent;
#[allow(unsafe_code)]
pub mod area;
pub mod buffer;
pub mod error;
mod handle;
pub mod hip;
// Closes memory that the runtime has mapped.
#[allow(unsafe_code)]
pub mod ipc;
mod log;
#[allow(unsafe_code)]
pub mod memory;
// The only module that calls foreign functions and accesses mapped memory. The others that are allowed
// unsafe code call its unsafe functions.
#[allow(unsafe_code)]
mod native;
pub mod pool;
pub mod report;
pub mod runtime;
mod sync;
pub mod transport;
mod trust;
#[allow(unsafe_code)]
pub mod vmm;

pub use agent::{Agent, AgentId, AgentKind, Enforcement};
pub use area::{Area, AreaFlags, AreaMemory};
pub use buffer::{GrowableBuffer, GrowableVec, PagedBuffer, PausableBuffer, RingBuffer};
pub use error::{Errno, Error, ErrorKind};
pub use hip::{HipError, HipProfile};
/// The software HSA runtime, for machines without a GPU and for tests.
///
/// It is used only when it is asked for: by [`Runtime::simulated`], or by `HSA_VMM_RUNTIME=sim`.
#[cfg(feature = "simulation")]
pub use hsa_sim as simulation;
/// C's types of the HSA ABI, for HSA calls that the caller makes itself ([`Runtime::function`]).
pub use hsa_sys;
pub use ipc::{Ipc, IpcHandle, OpenedMemory};
pub use memory::PoolMemory;
pub use native::Status;
pub use pool::{Pool, PoolFlags, Segment};
pub use report::Report;
pub use runtime::Runtime;
pub use trust::{Trust, UntrustedUser};
pub use vmm::{
    Access, AccessDescriptor, Address, Allocation, AllocationProperties, Granularity, Handle,
    HandleType, Mapping, NewMapping, Reservation, Vmm,
};

/// The README's program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The guide's program is compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
mod embedding {}
