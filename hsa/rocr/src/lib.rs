//! AMD's own HSA runtime, fetched and started: on this machine's driver or on the emulated one.
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
//! [`fetch`] gets one or all of the [releases](Release) that Debian has, with everything they need,
//! into a folder of their own; nothing is installed. [`Installation::command`] starts a program
//! with that runtime and its own C library, which may be newer than the machine's.
//! [`Emulation::apply`] puts the emulated kernel driver under a program. [`mod@test`] does all three
//! for tests.

mod again;
mod apt;
mod emulation;
mod fetch;
mod folder;
mod hip;
mod installation;
mod patience;
mod release;
pub mod test;

pub use again::again;
pub use apt::AptError;
pub use emulation::{Emulation, NoObject};
pub use fetch::{FetchError, fetch};
pub use folder::folder;
pub use hip::fetch_hip;
pub use installation::{Installation, NotInstalled, is_program};
pub use release::{Release, UnknownRelease};
