//! Repeats calls that were made on AMD's own runtime, and compares the results with the recorded
//! results. If the versions differ, a list has the results of 6.1.2, 6.4.3 and 7.2.4. If a call
//! crashed, the expected result is that of a runtime that checks arguments.
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
