//! Areas: on the simulation, and on AMD's own runtime over the emulated kernel driver.

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
mod refused;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
