//! Calls reject invalid input. The error names the argument, and the call changes nothing and does not call the
//! runtime.

#[path = "../machine/mod.rs"]
mod machine;

mod access;
mod addresses;
mod handles;
mod mapping;
mod memory;
mod setup;
mod transfer;
