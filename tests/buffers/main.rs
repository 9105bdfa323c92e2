//! Buffers on simulations of every ROCm generation.

#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
#[path = "../signals/mod.rs"]
mod signals;

mod access;
mod errors;
mod extension;
mod fault_injection;
mod growable_failures;
mod growth;
mod handle_pool;
mod messages;
mod model;
mod moves;
mod paged;
mod paged_failures;
mod pages_ahead;
mod pages_model;
mod pausable;
mod pausable_failures;
mod remap;
mod retire;
mod ring;
mod sharing;
mod sizes;
mod typed;
