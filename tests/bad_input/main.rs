//! Bad input to any call gives an error that names the argument; nothing else changes, and the
//! runtime is not even asked.

#[path = "../machine/mod.rs"]
mod machine;

mod access;
mod addresses;
mod handles;
mod mapping;
mod memory;
mod setup;
mod transfer;
