//! The calls of a sequence in a form that is valid for both runtimes. Addresses are relative to
//! reservations. Handles and descriptors are named after the call that created them.

use serde::{Deserialize, Serialize};

/// The number of the call that created an object. The number stays the same when `shrink` removes
/// other calls.
pub type Name = u32;

/// One call of a sequence. `id` names the created object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    Reserve {
        id: Name,
        size: u64,
        hint: Hint,
        alignment: u64,
        flags: u64,
    },
    Free {
        at: Location,
        size: u64,
    },
    Create {
        id: Name,
        pool: Pool,
        size: u64,
        memory_type: u32,
        flags: u64,
    },
    Release {
        handle: Handle,
    },
    Map {
        at: Location,
        size: u64,
        offset: u64,
        handle: Handle,
        flags: u64,
    },
    Unmap {
        at: Location,
        size: u64,
    },
    SetAccess {
        at: Location,
        size: u64,
        requests: Vec<AccessRequest>,
    },
    GetAccess {
        at: Location,
        agent: Agent,
    },
    AllowAccess {
        at: Location,
        agents: Vec<Agent>,
    },
    Export {
        id: Name,
        handle: Handle,
        flags: u64,
    },
    Import {
        id: Name,
        descriptor: Descriptor,
    },
    Close {
        descriptor: Name,
    },
    Retain {
        at: Location,
    },
    Properties {
        handle: Handle,
    },
    PointerInfo {
        at: Location,
    },
    /// Fails for every address of virtual memory.
    PoolFree {
        at: Location,
    },
    /// The CPU writes a word without a call of the runtime. Has no effect if the CPU has no access.
    Write {
        at: Location,
        value: u64,
    },
    /// Writes a word with `hsa_memory_copy`. Up to ROCm 6.4, the CPU performs the copy; in later releases, a GPU.
    Poke {
        at: Location,
        value: u64,
    },
    /// Reads a word with `hsa_memory_copy`.
    Peek {
        at: Location,
    },
    /// Copies with `hsa_memory_copy`.
    Copy {
        to: Location,
        from: Location,
        size: u64,
    },
    /// The GPU with this number copies in the background.
    CopyAsync {
        to: Location,
        from: Location,
        size: u64,
        gpu: usize,
    },
    /// A GPU fills words.
    Fill {
        at: Location,
        value: u32,
        words: u64,
    },
}

impl Call {
    /// Returns the name under which the call is counted.
    pub fn kind(&self) -> String {
        let call = serde_json::to_value(self).expect("a call is plain data");
        call["call"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns whether the call uses `hsa_memory_copy`.
    pub fn is_memory_copy(&self) -> bool {
        matches!(self, Self::Poke { .. } | Self::Peek { .. } | Self::Copy { .. })
    }

    /// Returns the locations in the call.
    pub fn locations(&self) -> Vec<Location> {
        match *self {
            Self::Free { at, .. }
            | Self::Map { at, .. }
            | Self::Unmap { at, .. }
            | Self::SetAccess { at, .. }
            | Self::GetAccess { at, .. }
            | Self::AllowAccess { at, .. }
            | Self::Retain { at }
            | Self::PointerInfo { at }
            | Self::PoolFree { at }
            | Self::Write { at, .. } => vec![at],
            _ => self.copied_ranges().into_iter().map(|(at, _)| at).collect(),
        }
    }

    pub fn handle(&self) -> Option<Handle> {
        match *self {
            Self::Release { handle }
            | Self::Map { handle, .. }
            | Self::Export { handle, .. }
            | Self::Properties { handle } => Some(handle),
            _ => None,
        }
    }

    /// Returns the name of the descriptor in the call.
    pub fn descriptor(&self) -> Option<Name> {
        match *self {
            Self::Close { descriptor: name }
            | Self::Import { descriptor: Descriptor::Of(name), .. } => Some(name),
            _ => None,
        }
    }

    /// Returns the ranges that the call copies or fills.
    pub fn copied_ranges(&self) -> Vec<(Location, u64)> {
        match *self {
            Self::Poke { at, .. } | Self::Peek { at } => vec![(at, 8)],
            Self::Copy { to, from, size } | Self::CopyAsync { to, from, size, .. } => {
                vec![(to, size), (from, size)]
            }
            Self::Fill { at, words, .. } => vec![(at, words * 4)],
            _ => vec![],
        }
    }
}

/// An address. Each runtime uses only addresses of its area during one sequence
/// (`tested_runtime::AREA_SIZE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    Null,
    /// An offset from the start of a reservation.
    In(Name, i64),
    /// An offset from the start of the runtime's own area, with or without a reservation there.
    Area(u64),
}

/// The hint of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// No hint.
    Nowhere,
    /// An offset from the start of the runtime's own area.
    Area(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handle {
    Of(Name),
    Zero,
    /// A value that no runtime returns.
    Garbage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    Of(Name),
    Negative,
    /// The number of a closed descriptor.
    Closed,
    DevNull,
    /// A memory file of this process, which is not a buffer object.
    MemoryFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// The first pool of a GPU: coarse-grained video memory.
    Gpu(usize),
    /// The index among all pools of all agents.
    Number(usize),
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// The index among all agents. The CPU's index is 0.
    Number(usize),
    Zero,
}

/// An agent and its requested permission.
pub type AccessRequest = (Agent, u32);

/// Formats a sequence as text, one call per line.
pub fn to_text(calls: &[Call]) -> String {
    let line = |call| serde_json::to_string(call).expect("a call is plain data") + "\n";
    calls.iter().map(line).collect()
}

/// Parses the calls of a text. Lines that begin with `#` are comments.
pub fn from_text(text: &str) -> Vec<Call> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let call = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    lines.map(call).collect()
}
