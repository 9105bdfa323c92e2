//! Calls reject invalid input: the error names the argument, nothing changes, and the runtime is not called.

#[path = "../machine/mod.rs"]
mod machine;

mod access;
mod addresses;
mod handles;
mod mapping;
mod memory;
mod setup;
mod transfer;
