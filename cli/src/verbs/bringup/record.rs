//! What the process of a level tells the one that started it, before a call and after it, so that it is
//! known what was in flight when it crashed or hung.

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A call begins.
    Begin(Begin),
    /// It has returned.
    Returned(Return),
    /// The call of this process and number is why the level failed.
    Failed(Number),
    /// All calls were answered well, and something is wrong all the same, after this call.
    Wrong(Option<Number>, String),
    /// The level does not apply here, and why.
    Skip(String),
    /// Something to know of a level that was reached: `2 GPUs: gfx942, gfx942`.
    Fact(String),
    /// The library that was loaded; no path for the simulation.
    Runtime(Option<String>),
    /// There is no library; what was tried.
    NoLibrary(String),
    /// The level is reached.
    Reached,
}

/// A call: the process it is made in (0, or 1: the other one of "shared") and its number there.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Number(pub u8, pub u64);

/// A call that begins.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Begin {
    pub number: Number,
    /// Which of several threads makes it, from 1; 0 if there is one.
    pub thread: u32,
    /// The kernel's numbers of process and thread: `16306:16308`.
    pub task: String,
    /// `hsa_amd_vmem_map`, or what else is done (`fill`).
    pub call: String,
    /// What goes in.
    pub arguments: Vec<Argument>,
    /// The statement in C, if it stands by itself there.
    pub c: Option<String>,
    /// Where the two logs were.
    pub logs: Logs,
}

/// A call that has returned.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Return {
    pub number: Number,
    /// What it answered; none if it is no function that answers a status.
    pub status: Option<u32>,
    /// What came out besides.
    pub answered: Vec<Argument>,
    pub microseconds: u64,
    pub logs: Logs,
}

/// An argument or an answer, as it is written in C and what it is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Argument {
    pub name: String,
    pub value: String,
}

/// How long the logs were.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Logs {
    /// The emulated driver's.
    pub driver: u64,
    /// What the runtime has printed.
    pub runtime: u64,
}

/// The name of a status: `HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)`.
pub fn status(status: u32) -> String {
    hsa_vmm::error::Status(status).to_string()
}
