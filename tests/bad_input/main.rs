//! Invalid input to any call is an error that names the argument, changes nothing, and does not reach the
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
