//! A software HSA runtime: it implements the functions of AMD's `libhsa-runtime64` with ordinary memory, without a GPU
//! and without a driver.
//!
//! [`Simulation::start`] returns a [table](hsa_sys::Table) of functions, like that of a loaded
//! runtime. The memory of a handle is a memory file. CPU access is a mapping whose protection the kernel enforces.
//! Each GPU has its own page table, which its copies use. Statuses and quirks are those of AMD's runtime, in
//! the ROCm generation ([`Generation`]) that the [configuration](Config) selects.
//!
//! ```
//! use hsa_sim::{Config, Simulation};
//!
//! let simulation = Simulation::start(Config::mi300x(2))?;
//! let hsa = &simulation.table().core;
//! // SAFETY: no arguments, and the simulation lives until the end.
//! assert_eq!(unsafe { (hsa.hsa_init)() }, hsa_sys::HSA_STATUS_SUCCESS);
//! assert_eq!(simulation.calls("hsa_init"), 1);
//! # Ok::<(), hsa_sim::Error>(())
//! ```
//!
//! The path of a call: `abi` (C functions for each slot) → `slots` (finds the simulation) →
//! `instance` (counts the call, applies planned faults, checks `hsa_init`) → the module that
//! implements the call. `generation` defines how releases differ. `exports` has the rest of AMD's
//! interface, in the shared object only.

mod abi;
mod access;
mod address_space;
mod agent_info;
mod agents;
mod attribute;
mod config;
mod config_text;
mod copy;
mod events;
#[cfg(feature = "export")]
pub mod exports;
mod fabric;
mod faults;
mod generation;
mod handles;
mod hardware;
mod host_memory;
mod identity;
mod instance;
mod ipc;
mod isa;
mod links;
mod mapping;
mod no_op;
mod overlap;
mod page_table;
mod physical;
mod pointer;
mod pool_memory;
mod pools;
#[cfg(feature = "export")]
mod queue;
mod ranges;
mod reservation;
mod share;
mod signal;
mod simulation;
mod slots;
mod status;
mod system;
mod thread;
mod usage;

pub use config::{Config, Cpu, Gpu, GpuKind, GpuPermissions, PageTableUpdates};
pub use config_text::ConfigError;
pub use faults::{FaultPlan, FaultPlanError};
pub use generation::Generation;
pub use hardware::Hardware;
pub use page_table::Page;
pub use simulation::{Error, Simulation};
pub use usage::Usage;
