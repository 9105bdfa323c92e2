//! `libhsavmm`: HIP's virtual memory management and IPC for C and C++, under HIP's own names.
//!
//! `include/hip/hip_runtime_api.h` and `include/hsavmm.h` document the functions, and [`hsa_vmm`] implements them. This
//! crate converts arguments, results and errors, and implements HIP's streams, events and contexts.
//!
//! * `types`: C's types, in HIP's layout. `pointers`: checked access to C's pointers. `errors`: HIP's errors. `status`:
//!   the error number and the message of a call. `names`: replaces Rust's names in messages by C's names. `log`: the
//!   log on standard error.
//! * `process`: the runtime that all calls of the process share. `forks`: detects forked children.
//! * `devices`, `virtual_memory`, `memory`, `registered`, `queries`, `transfer`, `asynchronous`, `ipc`, `streams`,
//!   `events`, `contexts`, `properties`, `by_name`, `unsupported`: HIP's functions, one file per subject. `devices`
//!   also selects the visible GPUs. `endpoint`: the source and the destination of copies and fills.
//! * `ranges`: exports address ranges as dma-bufs, by HIP's function and by an extension.
//! * `extensions`, `areas`, `batches`, `buffers`, `retire`: extensions of HIP (`hsavmm_…`). `objects`: the numbers by
//!   which C identifies areas, buffers, retire queues, streams and events.
//!
//! Locks, in their order. A thread that holds a lock takes only locks further down.
//!
//! | lock | held |
//! |---|---|
//! | `opening` (`process`) | while the runtime is opened, configured or closed |
//! | `AccessLocks` (`process`) | while `hipMemSetAccess` reads and changes access |
//! | `Registered` (`registered`) | while memory is registered or unregistered |
//! | a buffer's mutex (`objects`) | during a call on a growable or pausable buffer |
//! | `OpenArea::mapped` (`objects`) | during copies of an area's memory, `munmap` and `destroy` |
//! | `Objects` (`objects`), `state` (`process`) | for a look-up or a change |
//! | `Allocations::opened`; `peers`, then `allocated` (`allocations`) | also during calls of the runtime |
//!
//! The C caller must pass valid pointers. A pointer to a result is null or writable. A pointer to an argument is null
//! or readable. A text ends in a zero byte. A pointer to several elements or bytes is valid for all of them. The
//! functions check for null, and check handles and addresses of this library.

#![allow(non_camel_case_types, non_snake_case)]
#![allow(clippy::missing_safety_doc, reason = "the headers document the rules for pointers")]

mod allocations;
mod areas;
mod asynchronous;
mod batches;
mod buffers;
mod by_name;
mod contexts;
mod devices;
mod endpoint;
mod errors;
mod events;
mod extensions;
mod forks;
mod ipc;
mod log;
mod memory;
mod names;
mod objects;
mod pointers;
mod process;
mod properties;
mod queries;
mod ranges;
mod registered;
mod retire;
mod shareable;
mod status;
mod streams;
mod transfer;
mod types;
mod unsupported;
mod virtual_memory;
