//! Fetches AMD's own HSA runtime, and runs programs with it: on this machine's driver or on the
//! emulated one.
//!
//! ```text
//!   the package mirror of this machine            hsa-kfd, preloaded
//!            │ fetch                                     │ Emulation
//!   ┌────────▼─────────────────┐               ┌─────────▼─────────┐
//!   │ Installation             ├──── command ──► a process          │
//!   │ a release and its libc   │               │ that finds a GPU  │
//!   └──────────────────────────┘               └───────────────────┘
//! ```
//!
//! [`fetch`] downloads [releases](Release) from Debian's mirror, with all dependencies, into a
//! separate folder; it installs nothing. [`Installation::command`] starts a program with that
//! runtime and its own C library, which can be newer than the machine's. [`Emulation::apply`] runs
//! a program on the emulated kernel driver. [`mod@test`] does all three for tests.

mod apt;
mod emulation;
mod fetch;
mod folder;
mod hip;
mod installation;
mod release;
mod restart;
pub mod test;
mod timeout;

pub use apt::AptError;
pub use emulation::{Emulation, NoObject};
pub use fetch::{FetchError, fetch};
pub use folder::folder;
pub use hip::fetch_hip;
pub use installation::{Installation, NotInstalled, is_program};
pub use release::{Release, UnknownRelease};
pub use restart::restart;
