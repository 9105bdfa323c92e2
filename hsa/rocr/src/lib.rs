//! Fetches AMD's own HSA runtime, and runs programs with it: on this machine's driver or on the
//! emulated driver.
//!
//! ```text
//!   the package mirror of this machine            hsa-kfd, preloaded
//!            │ fetch                                     │ Emulation
//!   ┌────────▼─────────────────┐               ┌─────────▼─────────┐
//!   │ FetchedRelease           ├──── command ──► a process          │
//!   │ a release and its libc   │               │ that finds a GPU  │
//!   └──────────────────────────┘               └───────────────────┘
//! ```
//!
//! [`fetch`] downloads [releases](Release) from Debian's mirror, with all dependencies, into a
//! separate folder; it installs nothing. [`fetch_from`] stores a release that the user has.
//! [`FetchedRelease::command`] starts a program with a release and its C library, which can be
//! newer than the machine's. [`Emulation::apply`] runs a program on the emulated kernel driver.
//! [`Recording::apply`] records a program's virtual memory calls. [`mod@test`] runs tests with a
//! release on the emulated driver.

mod apt;
mod emulation;
mod executable;
mod fetch;
mod fetched_release;
mod folder;
mod hip;
mod local;
mod object;
mod recording;
mod release;
mod restart;
mod rocrtst;
pub mod test;
mod timeout;

pub use apt::AptError;
pub use emulation::Emulation;
pub use executable::{NotPreloadable, check_preloadable};
pub use fetch::{FetchError, fetch};
pub use fetched_release::{FetchedRelease, NotFetched, find_program};
pub use folder::{UntrustedFolder, folder};
pub use hip::fetch_hip;
pub use local::{SourceError, fetch_from};
pub use object::NoObject;
pub use recording::Recording;
pub use release::{InvalidRelease, Release};
pub use restart::restart_command;
pub use rocrtst::{Rocrtst, fetch_rocrtst};
