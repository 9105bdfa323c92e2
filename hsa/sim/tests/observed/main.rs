//! Repeats calls that were made on AMD's own runtime, and compares the results with the recorded
//! results. If the results differ between versions, a list contains the results of 6.1.2, 6.4.3 and
//! 7.2.4, in this order. If a call crashes AMD's runtime, the expected result is that of the
//! simulation: mostly the status that a check of the arguments would return.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with null pointers or pointers to locals

#[path = "../setup/mod.rs"]
mod setup;

mod access;
mod addresses;
mod fixture;
mod mapping;
mod memory;
mod sharing;
mod shutdown_and_fork;
