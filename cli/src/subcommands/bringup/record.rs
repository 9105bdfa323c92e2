//! The records that a level's process sends to its parent before and after each call. The records show which
//! calls were in flight when the process crashed or hung.

use serde::{Deserialize, Serialize};

/// A record, one line of JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A call begins.
    Begin(Begin),
    /// A call has returned.
    Returned(Return),
    /// The level failed because of this call.
    Failed(CallId),
    /// All calls succeeded, but the result is wrong. Contains the last call.
    Wrong(Option<CallId>, String),
    /// The level fails because of the last call of the function `call`, even if the call succeeded. The parent prefers
    /// a call by `task` before [`Self::Repeats`]. With `first`, the parent considers only calls with this first
    /// argument, such as copies to an address.
    Attributed { task: String, call: String, first: Option<String>, what: String },
    /// `task` repeats a check that failed. The calls that it makes from now on are not the cause of the failure.
    Repeats { task: String },
    /// The copy for which this call waits has not ended after half of the remaining time.
    StuckCopy(CallId, StuckCopy),
    /// The level does not apply. Contains the reason.
    Skip(String),
    /// A fact for the report of a level that was reached: `2 GPUs: gfx942, gfx942`.
    Fact(String),
    /// The library that was loaded. `None` for the simulation.
    Runtime(Option<String>),
    /// No library was found. Lists the rejected files.
    NoLibrary(String),
    /// The level was reached.
    Reached,
}

/// What the CPU finds while a wait for a copy does not end.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StuckCopy {
    /// Whether the destination has the contents of the source. `None` if the CPU cannot read both.
    pub arrived: Option<bool>,
    /// Whether the signal of the copy reports the end: its value is below 1.
    pub has_ended: bool,
}

/// Identifies a call.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct CallId {
    /// The number of the process, 0 for the level's first process.
    pub process: u8,
    /// The number of the call in the process.
    #[serde(rename = "call")]
    pub number: u64,
}

/// A call that begins.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Begin {
    #[serde(rename = "number")]
    pub id: CallId,
    /// The number of the thread, from 1. The main thread has the number 0.
    pub thread: u32,
    /// Process and thread ID: `16306:16308`.
    pub task: String,
    /// The function, `hsa_amd_vmem_map`, or another step (`fill`).
    pub call: String,
    pub arguments: Vec<Argument>,
    /// The statement for this call in the C program, if there is one.
    pub c_statement: Option<String>,
    pub logs: Logs,
}

/// A call that has returned.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Return {
    #[serde(rename = "number")]
    pub id: CallId,
    /// The status. `None` if the step returns no status.
    pub status: Option<u32>,
    /// The output arguments.
    #[serde(rename = "answered")]
    pub outputs: Vec<Argument>,
    pub microseconds: u64,
    pub logs: Logs,
}

/// An argument of a call, or an output of a call that has returned.
///
/// For an argument, `name` is the C expression: `size`, `&va` or the literal `0`. `value` is the value of the
/// expression. For some arguments, `value` is a word instead: `out` for an output argument, `callback` for a callback,
/// and the name or meaning of the parameter (`flags`) for most literals. For an output, `name` is the variable, without
/// `&`, and `value` is the returned value.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Argument {
    pub name: String,
    pub value: String,
}

/// The lengths of the logs in bytes when a record is sent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Logs {
    /// The length of the emulated driver's log.
    pub driver: u64,
    /// The length of the runtime's output.
    pub runtime: u64,
}

/// Returns the name of a status: `HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)`.
pub fn status_name(status: u32) -> String {
    hsa_vmm::error::Status(status).to_string()
}
