//! `libhsavmm`: HIP's virtual-memory management and IPC for C and C++, under HIP's own names.
//!
//! What each function does is said in `include/hip/hip_runtime_api.h` and `include/hsavmm.h`; the
//! library behind it is [`hsa_vmm`]. Here a C argument becomes a value of that library's, or an
//! error; nothing else is decided.
//!
//! * `types`: C's types, as HIP lays them out. `answer`: errors, and what is between C and a panic.
//! * `process`: the one runtime that a C program has. `devices`: which GPUs it sees.
//! * `virtual_memory`, `memory`, `transfer`, `ipc`: HIP's functions, a file a subject.
//! * `own`, `areas`, `batches`, `buffers`: what HIP lacks (`hsavmm_…`); `objects`: their numbers.
//!
//! A pointer that is given for a result must be null or writable, and one to bytes must be that
//! many bytes long: of C's pointers no more can be known. Null, handles and addresses of this
//! library's are checked.

#![allow(non_camel_case_types, non_snake_case)]
#![allow(clippy::missing_safety_doc, reason = "the headers say it once for all")]

mod answer;
mod areas;
mod batches;
mod buffers;
mod by_name;
mod devices;
mod errors;
mod ipc;
mod log;
mod memory;
mod objects;
mod own;
mod pointers;
mod process;
mod transfer;
mod types;
mod unsupported;
mod virtual_memory;
