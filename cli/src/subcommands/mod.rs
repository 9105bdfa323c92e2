//! The subcommands, one file or folder each.

pub mod bench;
pub mod bringup;
pub mod completions;
pub mod conform;
pub mod diff;
pub mod emulate;
pub mod fuzz;
pub mod info;
pub mod kfd_version;
pub mod lint;
pub mod man;
pub mod map;
pub mod record;
pub mod replay;
pub mod rocr;
pub mod stress;
pub mod vm;
