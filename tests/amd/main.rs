//! The library on AMD's own runtime, over the emulated kernel driver: on each release.

#[path = "../amd_runtime/mod.rs"]
mod amd_runtime;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
#[path = "../scene/mod.rs"]
mod scene;

mod examples;
mod failures;
mod fork;
mod owned;
mod share;
mod shortage;
mod start;
mod threads;
