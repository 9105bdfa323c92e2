//! A second process with the same runtime, for cases that take two: it exports pool memory by IPC,
//! and frees it when it is told to.
//!
//! ```text
//!   the process of the cases                 the peer
//!   ┌──────────────────┐      requests       ┌────────────────┐
//!   │ Context::peer ├──────────────────►│ PoolMemory     │
//!   │ opens what the   │◄──────────────────┤ of a runtime   │
//!   │ handle names     │      handles      │ of its own     │
//!   └──────────────────┘                   └────────────────┘
//! ```

mod serve;

pub use serve::serve;

use crate::worker::{Output, Received, Worker};
use crate::{NotPassed, Verdict};
use hsa_vmm::ipc::IpcHandle;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

/// How long it may take to start its runtime, or to answer. Less than a case may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// To the peer.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Allocate so many bytes on the first GPU, write this at their beginning, and export them.
    Export { size: usize, text: String },
    /// What is at the beginning?
    Read { count: usize },
    /// Free them.
    Free,
}

/// From the peer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Started,
    Exported(Vec<u8>),
    Bytes(Vec<u8>),
    Freed,
    /// The runtime, or what drives it, cannot share memory.
    NotShared(String),
    Failed(String),
}

/// The second process. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Peer(Worker);

impl Peer {
    /// Starts it: the words are a program, which calls [`serve`], and its arguments.
    pub fn start(words: &[OsString]) -> Verdict<Self> {
        let Some((program, arguments)) = words.split_first() else {
            let why = "takes a second process, and none can be started here";
            return Err(NotPassed::Skipped(why.to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let mut peer = Self(Worker::start(command, Output::Capture)?);
        peer.receive()?;
        Ok(peer)
    }

    /// Has it export new memory that begins with a text.
    pub fn export(&mut self, size: usize, text: &str) -> Verdict<IpcHandle> {
        let answer = self.ask(&Request::Export { size, text: text.to_owned() })?;
        let Answer::Exported(bytes) = &answer else { return Err(unexpected(&answer)) };
        let bytes: &[u8; IpcHandle::SIZE] =
            bytes.as_slice().try_into().map_err(|_| unexpected(&answer))?;
        Ok(IpcHandle::from_bytes(bytes))
    }

    /// What it finds at the beginning of its memory.
    pub fn read(&mut self, count: usize) -> Verdict<Vec<u8>> {
        match self.ask(&Request::Read { count })? {
            Answer::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it free its memory.
    pub fn free(&mut self) -> Verdict {
        self.ask(&Request::Free).map(drop)
    }

    /// Ends it at once, whatever it has.
    pub fn kill(mut self) {
        self.0.kill();
    }

    fn ask(&mut self, request: &Request) -> Verdict<Answer> {
        self.0.send(request);
        self.receive()
    }

    fn receive(&mut self) -> Verdict<Answer> {
        let why = match self.0.receive(PATIENCE) {
            Received::Answer(Answer::NotShared(why)) => return Err(NotPassed::Skipped(why)),
            Received::Answer(Answer::Failed(why)) => why,
            Received::Answer(answer) => return Ok(answer),
            Received::Invalid(text) => format!("answered garbage: {text:?}"),
            Received::Timeout => format!("did not answer within {} s", PATIENCE.as_secs()),
            Received::Exited(end) => end.to_string(),
        };
        let last = self.0.last_call().map(|call| format!(", {call}")).unwrap_or_default();
        let printed = self.0.captured_output();
        let printed = printed.lines().last().map(|line| format!("; it printed: {line}"));
        let printed = printed.unwrap_or_default();
        Err(NotPassed::Failed(format!("the second process: {why}{last}{printed}")))
    }
}

fn unexpected(answer: &Answer) -> NotPassed {
    NotPassed::Failed(format!("the second process: answered {answer:?}"))
}
