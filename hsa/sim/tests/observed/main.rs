//! The probes that were made on AMD's own runtime, group by group, and what it answered. Where
//! three versions differ, three answers are written down: 6.1.2, 6.4.3, 7.2.4. Where one of them
//! crashed, its place has what a runtime that checks would have said.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with null pointers or pointers to locals

#[path = "../rig/mod.rs"]
mod rig;

mod access;
mod addresses;
mod end;
mod fixture;
mod mapping;
mod memory;
mod sharing;
