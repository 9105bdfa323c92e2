//! The calls of a sequence, written so that they mean the same to either runtime: addresses count
//! from reservations, handles and descriptors are named after the call that made them.

use serde::{Deserialize, Serialize};

/// What a call made is known by the call's own number, which stays when other calls are left out.
pub type Name = u32;

/// One call of a sequence. `id` names what it makes.
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
    /// Ends with an error at every address of virtual memory.
    PoolFree {
        at: Location,
    },
    /// The processor writes a word, where it may.
    Write {
        at: Location,
        value: u64,
    },
    /// A GPU writes a word, where every GPU may.
    Poke {
        at: Location,
        value: u64,
    },
    /// A GPU reads a word, where every GPU may.
    Peek {
        at: Location,
    },
    /// A GPU copies, where every GPU may.
    Copy {
        to: Location,
        from: Location,
        size: u64,
    },
    /// The same with a signal, by the GPU of this number.
    CopyAsync {
        to: Location,
        from: Location,
        size: u64,
        gpu: usize,
    },
    /// A GPU fills words, where every GPU may.
    Fill {
        at: Location,
        value: u32,
        words: u64,
    },
}

impl Call {
    /// The name under which it is counted.
    pub fn function(&self) -> String {
        let call = serde_json::to_value(self).expect("a call is plain data");
        call["call"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether it is carried out by `hsa_memory_copy`.
    pub fn is_memory_copy(&self) -> bool {
        matches!(self, Self::Poke { .. } | Self::Peek { .. } | Self::Copy { .. })
    }

    /// The locations that it names.
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
            _ => self.copied().into_iter().map(|(at, _)| at).collect(),
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

    /// The descriptor that it names, by the call that exported it.
    pub fn descriptor(&self) -> Option<Name> {
        match *self {
            Self::Close { descriptor: name }
            | Self::Import { descriptor: Descriptor::Of(name), .. } => Some(name),
            _ => None,
        }
    }

    /// The ranges that a copy touches.
    pub fn copied(&self) -> Vec<(Location, u64)> {
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

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    Null,
    /// So many bytes from where a reservation begins.
    In(Name, i64),
    /// So many bytes from where a runtime's own area begins, whoever has reserved that.
    Area(u64),
}

/// Where a reservation is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    Nowhere,
    /// So many bytes from where the runtime's own area begins.
    Area(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handle {
    Of(Name),
    Zero,
    /// A number that no runtime gives out.
    Garbage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    Of(Name),
    Negative,
    /// A number under which nothing is open.
    Closed,
    DevNull,
    /// Memory of the process's own, which is no buffer object.
    MemoryFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// The first of a GPU: coarse-grained video memory.
    Gpu(usize),
    /// The number among all pools of all agents.
    Number(usize),
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// The number among all agents; the processor is 0.
    Number(usize),
    Zero,
}

/// Agent and permission.
pub type AccessRequest = (Agent, u32);

/// A sequence as text: a call a line.
pub fn to_text(calls: &[Call]) -> String {
    let line = |call| serde_json::to_string(call).expect("a call is plain data") + "\n";
    calls.iter().map(line).collect()
}

/// The calls in a text; lines that begin with `#` say what it is about.
pub fn from_text(text: &str) -> Vec<Call> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let call = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    lines.map(call).collect()
}
