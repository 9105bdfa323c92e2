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

/// AML's error numbers, which `Error::aml` returns.
const AML_FAILURE: i32 = 1;
const AML_OUT_OF_MEMORY: i32 = 2;
const AML_INVALID_VALUE: i32 = 3;
const AML_NOT_SUPPORTED: i32 = 5;
const AML_BUSY: i32 = 6;
