//! The lines of a recording.

use crate::trace::{Reader, TraceError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The value of `format` in the first line.
const FORMAT: &str = "hsa-vmm-hsa-trace";
/// The newest version of the format.
const VERSION: u32 = 1;

/// The first line: the process and its runtime.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Header {
    format: String,
    version: u32,
    /// The process ID.
    pub pid: u32,
    /// The file of the program.
    #[serde(default)]
    pub program: String,
    /// The file of the runtime.
    #[serde(default)]
    pub runtime: String,
    /// The version of AMD's extension.
    #[serde(default)]
    pub extension: String,
    /// The agents, in the runtime's order.
    pub agents: Vec<Agent>,
}

/// The kind of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say all")]
pub enum AgentKind {
    Cpu,
    Gpu,
    Other,
}

/// An agent of the recorded runtime.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Agent {
    /// The runtime's handle of the agent.
    #[serde(with = "hex")]
    pub agent: u64,
    /// The kind.
    pub kind: AgentKind,
    /// The name, such as `gfx942`.
    pub name: String,
    /// The pools, in the runtime's order.
    pub pools: Vec<Pool>,
}

/// A pool of an agent.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Pool {
    /// The runtime's handle of the pool.
    #[serde(with = "hex")]
    pub pool: u64,
}

/// A call.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The line number in the recording.
    #[serde(skip)]
    pub line: u64,
    /// Whether the call has not returned: the program crashed in the call, or ended before the call returned.
    #[serde(default)]
    pub pending: bool,
    /// The name of the function.
    #[serde(skip)]
    pub name: String,
    /// The arguments and results.
    #[serde(flatten)]
    pub call: Call,
    /// The status that the runtime returned.
    #[serde(default)]
    pub status: u32,
    /// The thread ID.
    #[serde(default)]
    pub tid: u32,
    /// The frames of the call stack, the innermost first: `FILE+0xOFFSET FUNCTION`. Empty if stacks were not recorded.
    #[serde(default)]
    pub stack: Vec<String>,
}

/// The access of an agent in a call of `hsa_amd_vmem_set_access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Access {
    /// The agent.
    #[serde(with = "hex")]
    pub agent: u64,
    /// The permissions: 0 none, 1 read, 2 write, 3 both.
    pub permissions: u32,
}

/// The arguments and results of a call. Results are `None` if the call failed.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "call")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the parameters of the functions")]
pub enum Call {
    /// Both functions that reserve addresses. Only `hsa_amd_vmem_address_reserve_align` has an `alignment`.
    #[serde(rename = "hsa_amd_vmem_address_reserve", alias = "hsa_amd_vmem_address_reserve_align")]
    Reserve {
        size: u64,
        #[serde(with = "hex")]
        hint: u64,
        alignment: Option<u64>,
        flags: u64,
        #[serde(default, with = "hex::option")]
        address: Option<u64>,
    },
    #[serde(rename = "hsa_amd_vmem_address_free")]
    Free {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
    },
    #[serde(rename = "hsa_amd_vmem_handle_create")]
    Create {
        #[serde(with = "hex")]
        pool: u64,
        size: u64,
        #[serde(rename = "type")]
        kind: u32,
        flags: u64,
        #[serde(default, with = "hex::option")]
        handle: Option<u64>,
    },
    #[serde(rename = "hsa_amd_vmem_handle_release")]
    Release {
        #[serde(with = "hex")]
        handle: u64,
    },
    #[serde(rename = "hsa_amd_vmem_map")]
    Map {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
        offset: u64,
        #[serde(with = "hex")]
        handle: u64,
        flags: u64,
    },
    #[serde(rename = "hsa_amd_vmem_unmap")]
    Unmap {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
    },
    #[serde(rename = "hsa_amd_vmem_set_access")]
    SetAccess {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
        count: u64,
        access: Vec<Access>,
    },
    #[serde(rename = "hsa_amd_vmem_get_access")]
    GetAccess {
        #[serde(with = "hex")]
        address: u64,
        #[serde(with = "hex")]
        agent: u64,
        permissions: Option<u32>,
    },
    #[serde(rename = "hsa_amd_vmem_export_shareable_handle")]
    Export {
        #[serde(with = "hex")]
        handle: u64,
        flags: u64,
        fd: Option<i64>,
    },
    #[serde(rename = "hsa_amd_vmem_import_shareable_handle")]
    Import {
        fd: i64,
        #[serde(default, with = "hex::option")]
        handle: Option<u64>,
    },
    #[serde(rename = "hsa_amd_vmem_retain_alloc_handle")]
    Retain {
        #[serde(with = "hex")]
        address: u64,
        #[serde(default, with = "hex::option")]
        handle: Option<u64>,
    },
    #[serde(rename = "hsa_amd_vmem_get_alloc_properties_from_handle")]
    Properties {
        #[serde(with = "hex")]
        handle: u64,
        #[serde(default, with = "hex::option")]
        pool: Option<u64>,
    },
    #[serde(rename = "hsa_amd_memory_pool_allocate")]
    Allocate {
        #[serde(with = "hex")]
        pool: u64,
        size: u64,
        flags: u32,
        #[serde(default, with = "hex::option")]
        address: Option<u64>,
    },
    /// Both functions that free memory of pools.
    #[serde(rename = "hsa_amd_memory_pool_free", alias = "hsa_memory_free")]
    FreeMemory {
        #[serde(with = "hex")]
        address: u64,
    },
    #[serde(rename = "hsa_amd_agents_allow_access")]
    AllowAccess {
        #[serde(with = "hex")]
        address: u64,
        #[serde(with = "hex::list")]
        agents: Vec<u64>,
    },
    #[serde(rename = "hsa_amd_ipc_memory_create")]
    IpcCreate {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
    },
    #[serde(rename = "hsa_amd_ipc_memory_attach")]
    IpcAttach {
        size: u64,
        #[serde(default, with = "hex::option")]
        address: Option<u64>,
    },
    #[serde(rename = "hsa_amd_ipc_memory_detach")]
    IpcDetach {
        #[serde(with = "hex")]
        address: u64,
    },
    /// Both versions of the function.
    #[serde(rename = "hsa_amd_portable_export_dmabuf", alias = "hsa_amd_portable_export_dmabuf_v2")]
    ExportMemory {
        #[serde(with = "hex")]
        address: u64,
        size: u64,
        fd: Option<i64>,
    },
    #[serde(rename = "hsa_amd_portable_close_dmabuf")]
    CloseDmabuf { fd: i64 },
    /// The recorded functions that copy.
    #[serde(
        rename = "hsa_memory_copy",
        alias = "hsa_amd_memory_async_copy",
        alias = "hsa_amd_memory_async_copy_on_engine"
    )]
    Copy {
        #[serde(with = "hex")]
        destination: u64,
        #[serde(with = "hex")]
        source: u64,
        size: u64,
    },
    #[serde(rename = "hsa_amd_memory_fill")]
    Fill {
        #[serde(with = "hex")]
        address: u64,
        value: u32,
        count: u64,
    },
    /// Not a call: the program has stopped the runtime, or has exited normally.
    #[serde(rename = "end")]
    End,
}

/// A recording of one process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// The process and its runtime.
    pub header: Header,
    /// The calls, in the order in which they returned. Calls that did not return are last.
    pub calls: Vec<Record>,
    /// Whether the program has stopped the runtime or exited normally, instead of crashing or being killed.
    pub complete: bool,
}

/// A line after the first.
enum Line {
    Record(Record),
    /// The program ended while it wrote the line.
    Incomplete,
}

impl Record {
    fn parse(text: &str) -> serde_json::Result<Line> {
        #[derive(Deserialize)]
        struct Name {
            call: String,
        }
        let parse = || {
            let Name { call } = serde_json::from_str(text)?;
            let mut record: Self = serde_json::from_str(text)?;
            record.name = call;
            Ok(Line::Record(record))
        };
        match parse() {
            Err(_) if !text.ends_with('\n') => Ok(Line::Incomplete),
            result => result,
        }
    }

    /// Returns whether the call succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status == 0 && !self.pending
    }
}

impl Header {
    fn parse(text: &str) -> serde_json::Result<Self> {
        let header: Self = serde_json::from_str(text)?;
        if header.format != FORMAT {
            return Err(serde::de::Error::custom("not a recording of `hsa-vmm record`"));
        }
        if header.version > VERSION {
            return Err(serde::de::Error::custom(format_args!(
                "version {} of the format is newer than this program, which reads version {VERSION}",
                header.version
            )));
        }
        Ok(header)
    }

    /// Returns the index of an agent.
    #[must_use]
    pub fn agent(&self, handle: u64) -> Option<usize> {
        self.agents.iter().position(|agent| agent.agent == handle)
    }

    /// Returns the index of a pool's agent, and the index of the pool among the agent's pools.
    #[must_use]
    pub fn pool(&self, handle: u64) -> Option<(usize, usize)> {
        self.agents.iter().enumerate().find_map(|(index, agent)| {
            Some((index, agent.pools.iter().position(|pool| pool.pool == handle)?))
        })
    }

    /// Returns the name of an agent in messages: its kind and number, such as `gpu 1`.
    #[must_use]
    pub fn agent_name(&self, handle: u64) -> String {
        let Some(index) = self.agent(handle) else { return format!("agent {handle:#x}") };
        let kind = self.agents[index].kind;
        let number = self.agents[..index].iter().filter(|agent| agent.kind == kind).count();
        let kind = match kind {
            AgentKind::Cpu => "cpu",
            AgentKind::Gpu => "gpu",
            AgentKind::Other => "agent",
        };
        format!("{kind} {number}")
    }
}

impl Recording {
    /// Reads a file, plain or compressed.
    ///
    /// # Errors
    /// [`TraceError`]: the file cannot be read, or is not a recording. An incomplete last line is ignored, because the
    /// program may have been killed while it wrote the line.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::read(Reader::open(path)?)
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// The same errors as [`open`](Self::open) returns.
    pub fn read(mut lines: Reader<'_>) -> Result<Self, TraceError> {
        let header = lines.next_line(Header::parse).unwrap_or_else(|| {
            let error = serde::de::Error::custom("the file is empty");
            Err(TraceError::Parse { line: 1, error })
        })?;
        let (mut calls, mut complete) = (Vec::new(), false);
        // The call that each thread has begun and not completed.
        let mut pending: BTreeMap<u32, Record> = BTreeMap::new();
        while let Some(line) = lines.next_line(Record::parse) {
            let Line::Record(mut record) = line? else { break };
            record.line = lines.line();
            if record.pending {
                pending.insert(record.tid, record);
            } else if matches!(record.call, Call::End) {
                complete = true;
            } else {
                if let Some(begun) = pending.remove(&record.tid) {
                    record.stack = begun.stack;
                }
                calls.push(record);
            }
        }
        calls.extend(pending.into_values());
        Ok(Self { header, calls, complete })
    }

    /// Returns whether the first line of a file is the header of a recording.
    #[must_use]
    pub fn is_recording(path: &Path) -> bool {
        let lines = Reader::open(path);
        lines.is_ok_and(|mut lines| matches!(lines.next_line(Header::parse), Some(Ok(_))))
    }
}

/// Hexadecimal numbers as text.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer};

    fn parse<E: Error>(text: &str) -> Result<u64, E> {
        let digits = text.strip_prefix("0x");
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.ok_or_else(|| E::custom(format_args!("`{text}` is not a hexadecimal number")))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        parse(&String::deserialize(input)?)
    }

    pub mod option {
        use super::*;

        pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
            Option::<String>::deserialize(input)?.map(|text| parse(&text)).transpose()
        }
    }

    pub mod list {
        use super::*;

        pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u64>, D::Error> {
            Vec::<String>::deserialize(input)?.iter().map(|text| parse(text)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"agents":[]}"#;
    const FREE: &str =
        r#"{"call":"hsa_memory_free","address":"0x10","status":0,"t":1,"ns":2,"tid":3}"#;

    fn read(text: &str) -> Result<Recording, TraceError> {
        Recording::read(Reader::new(text.as_bytes())?)
    }

    #[test]
    fn recording_is_read() {
        let recording = read(&format!("{HEADER}\n{FREE}\n{{\"call\":\"end\",\"t\":5}}\n")).unwrap();
        assert!(recording.complete);
        let [record] = &recording.calls[..] else { panic!("{recording:?}") };
        assert_eq!((record.name.as_str(), record.tid), ("hsa_memory_free", 3));
        assert!(matches!(record.call, Call::FreeMemory { address: 16 }));
    }

    #[test]
    fn incomplete_last_line_is_ignored() {
        let recording = read(&format!("{HEADER}\n{FREE}\n{}", &FREE[..40])).unwrap();
        assert_eq!((recording.calls.len(), recording.complete), (1, false));
        // In the middle of the file, an incomplete line is an error.
        let error = read(&format!("{HEADER}\n{}\n{FREE}\n", &FREE[..40])).unwrap_err();
        assert_eq!(error.line(), Some(2));
    }

    #[test]
    fn call_that_does_not_return_is_last() {
        let begin = r#"{"call":"hsa_memory_free","address":"0x20","pending":true,"tid":4,"stack":["a","b"]}"#;
        let text = format!("{HEADER}\n{begin}\n{FREE}\n");
        let recording = read(&text).unwrap();
        let lines: Vec<_> = recording.calls.iter().map(|it| (it.line, it.pending)).collect();
        assert_eq!(lines, [(3, false), (2, true)]);
        // After the call has returned, its record has the stack of the line that was written when the call began.
        let recording = read(&(text + &FREE.replace(":3}", ":4}") + "\n")).unwrap();
        let lines: Vec<_> =
            recording.calls.iter().map(|it| (it.line, it.pending, it.stack.len())).collect();
        assert_eq!(lines, [(3, false, 0), (4, false, 2)]);
    }

    #[test]
    fn recording_rejects_other_files() {
        for text in ["", "{}\n", "{\"format\":\"x\",\"version\":1,\"pid\":1,\"agents\":[]}\n"] {
            assert_eq!(read(text).unwrap_err().line(), Some(1), "{text}");
        }
        let newer = HEADER.replace("\"version\":1", "\"version\":2");
        assert!(read(&newer).unwrap_err().to_string().contains("newer"));
    }
}
