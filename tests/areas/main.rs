//! Areas on the simulation, and on AMD's own runtime with the emulated kernel driver.

#[path = "../amd_runtime/mod.rs"]
mod amd_runtime;
mod fixture;
#[path = "../process/mod.rs"]
mod process;

mod aml_defects;
mod combinations;
mod driver;
mod failures;
mod host_memory;
mod rejected_calls;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
