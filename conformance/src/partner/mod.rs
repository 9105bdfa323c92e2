//! A second process with the same runtime, for cases that take two: it exports pool memory by IPC,
//! and frees it when it is told to.
//!
//! ```text
//!   the process of the cases                 the partner
//!   ┌──────────────────┐      orders       ┌────────────────┐
//!   │ Context::partner ├──────────────────►│ PoolMemory     │
//!   │ opens what the   │◄──────────────────┤ of a runtime   │
//!   │ handle names     │      handles      │ of its own     │
//!   └──────────────────┘                   └────────────────┘
//! ```

mod serve;

pub use serve::serve;

use crate::worker::{Heard, Prints, Worker};
use crate::{NotPassed, Verdict};
use hsa_vmm::ipc::IpcHandle;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

/// How long it may take to start its runtime, or to answer. Less than a case may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// To the partner.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Allocate so many bytes on the first GPU, write this at their beginning, and export them.
    Export { size: usize, text: String },
    /// What is at the beginning?
    Read { count: usize },
    /// Free them.
    Free,
}

/// From the partner.
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
pub(crate) struct Partner(Worker);

impl Partner {
    /// Starts it: the words are a program, which calls [`serve`], and its arguments.
    pub fn start(words: &[OsString]) -> Verdict<Self> {
        let Some((program, arguments)) = words.split_first() else {
            let why = "takes a second process, and none can be started here";
            return Err(NotPassed::Skipped(why.to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let mut partner = Self(Worker::start(command, Prints::Kept)?);
        partner.hear()?;
        Ok(partner)
    }

    /// Has it export new memory that begins with a text.
    pub fn export(&mut self, size: usize, text: &str) -> Verdict<IpcHandle> {
        let answer = self.ask(&Order::Export { size, text: text.to_owned() })?;
        let Answer::Exported(bytes) = &answer else { return Err(unexpected(&answer)) };
        let bytes: &[u8; IpcHandle::SIZE] =
            bytes.as_slice().try_into().map_err(|_| unexpected(&answer))?;
        Ok(IpcHandle::from_bytes(bytes))
    }

    /// What it finds at the beginning of its memory.
    pub fn read(&mut self, count: usize) -> Verdict<Vec<u8>> {
        match self.ask(&Order::Read { count })? {
            Answer::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it free its memory.
    pub fn free(&mut self) -> Verdict {
        self.ask(&Order::Free).map(drop)
    }

    /// Ends it at once, whatever it has.
    pub fn kill(mut self) {
        self.0.stop();
    }

    fn ask(&mut self, order: &Order) -> Verdict<Answer> {
        self.0.tell(order);
        self.hear()
    }

    fn hear(&mut self) -> Verdict<Answer> {
        let why = match self.0.hear(PATIENCE) {
            Heard::Answer(Answer::NotShared(why)) => return Err(NotPassed::Skipped(why)),
            Heard::Answer(Answer::Failed(why)) => why,
            Heard::Answer(answer) => return Ok(answer),
            Heard::Garbage(text) => format!("answered garbage: {text:?}"),
            Heard::Late => format!("did not answer within {} s", PATIENCE.as_secs()),
            Heard::Ended(end) => end.to_string(),
        };
        let last = self.0.last_call().map(|call| format!(", {call}")).unwrap_or_default();
        let printed = self.0.printed();
        let printed = printed.lines().last().map(|line| format!("; it printed: {line}"));
        let printed = printed.unwrap_or_default();
        Err(NotPassed::Failed(format!("the second process: {why}{last}{printed}")))
    }
}

fn unexpected(answer: &Answer) -> NotPassed {
    NotPassed::Failed(format!("the second process: answered {answer:?}"))
}
