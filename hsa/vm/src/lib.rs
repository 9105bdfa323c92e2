//! Runs AMD's own kernel driver in a virtual machine, with software GPUs.
//!
//! ```text
//!   Debian's packages: kernel, headers, source, busybox       hsa/vm/module
//!            │ fetch                                               │ fetch compiles it
//!   ┌────────▼──────────────────────────────────────────────────────▼──┐
//!   │ Kernel: the image, and an initramfs with amdgpu.ko and hsa_vmm.ko │
//!   └────────┬──────────────────────────────────────────────────────────┘
//!            │ Machine::run: QEMU, with the host's files read-only
//!   ┌────────▼─────────────────────────────────┐
//!   │ init ── guest::run ── the program        │
//!   └──────────────────────────────────────────┘
//! ```
//!
//! [`fetch()`] downloads Debian's packages and compiles the kernel module; [`use_tree`] takes a kernel that was
//! compiled in its source tree. [`Machine::run`] starts a virtual machine, runs one program in it, and returns the
//! program's exit status. [`guest::run`] runs inside the virtual machine.

mod accelerator;
mod build;
mod detached;
mod faults;
mod fetch;
mod folder;
pub mod guest;
mod initramfs;
mod job;
mod kernel;
mod machine;
mod packages;
mod qemu;
mod running;
mod tool;
mod tree;

pub use faults::EngineFaults;
pub use fetch::{FetchError, fetch};
pub use folder::{NoSource, UntrustedFolder, folder};
pub use hsa_faults::PlanError;
pub use kernel::{Kernel, NotFetched};
pub use machine::{Machine, NotWritten, Outcome, RunError};
pub use tool::ToolError;
pub use tree::{TreeError, use_tree};
