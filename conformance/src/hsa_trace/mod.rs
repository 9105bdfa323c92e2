//! Recordings of a program's HSA calls, as `hsa-vmm record` makes them.
//!
//! A file has one JSON object per line. The first line describes the process and its runtime. When a recorded call
//! returns, a line with its arguments and results is added. The last line is `end`:
//!
//! ```json
//! {"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"program":"/p","extension":"1.7","agents":[{"agent":"0x5a10","kind":"gpu","name":"gfx942","pools":[{"pool":"0x5a90","segment":0,"flags":4,"granule":4096}]}],"stacks":false}
//! {"call":"hsa_amd_vmem_address_reserve","size":2097152,"hint":"0x0","flags":0,"address":"0x7f0000000000","status":0,"t":51,"ns":900,"tid":7}
//! {"call":"end","t":8000}
//! ```
//!
//! `t` is the time of the call since the beginning of the recording, and `ns` its duration, both in nanoseconds.
//! Addresses and handles are values of the recorded process, as text. Results are absent if the call failed. The line
//! `end` is missing if the program crashed or was killed. If call stacks were requested, a line with `"pending":true`
//! and the `stack` is written when the call begins. Calls of several threads are in the order in which they returned.
//!
//! [`steps`] replaces addresses and handles by numbers, so that another process can repeat the calls.
//! [`program`] writes the calls as a C program. [`lint`] finds mistakes.

pub mod lint;
pub mod program;
mod record;
pub mod steps;

pub use record::{Access, Agent, AgentKind, Call, Header, Pool, Record, Recording};
