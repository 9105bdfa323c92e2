//! The library on each release of AMD's own runtime, with the emulated kernel driver.

#[path = "../amd_runtime/mod.rs"]
mod amd_runtime;
#[path = "../exchange/mod.rs"]
mod exchange;
#[path = "../foreign_mapper/mod.rs"]
mod foreign_mapper;
#[path = "../log/mod.rs"]
mod log;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
#[path = "../retire_load/mod.rs"]
mod retire_load;
#[path = "../scenario/mod.rs"]
mod scenario;
#[path = "../segments/mod.rs"]
mod segments;
#[path = "../serial/mod.rs"]
mod serial;
#[path = "../signals/mod.rs"]
mod signals;
#[path = "../successor/mod.rs"]
mod successor;

use std::thread;

mod buffers;
mod calls;
mod examples;
mod failed_driver_calls;
mod failures;
mod foreign_mappings;
mod fork;
mod host_memory;
mod identity;
mod import_owner;
mod offsets;
mod owned;
mod page_table;
mod page_table_failures;
mod pages;
mod permissions;
mod ranges;
mod retire;
mod serial_order;
mod share;
mod shortage;
mod soak;
mod start;
mod successors;
mod transfers;
mod transport;
