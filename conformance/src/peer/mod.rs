//! A second process with the same runtime, for cases that need two processes. On request, the second process exports
//! pool memory by IPC, frees this memory, lets a GPU access memory, or stops its runtime.
//!
//! ```text
//!   the process of the cases               the peer
//!   ┌──────────────────┐     requests      ┌────────────────┐
//!   │ Peer             ├──────────────────►│ PoolMemory of  │
//!   │ opens the handle │◄──────────────────┤ its own        │
//!   │                  │      handles      │ runtime        │
//!   └──────────────────┘                   └────────────────┘
//! ```

mod gpu_access;
mod raw_copy;
mod serve;
mod stop;

pub(crate) use gpu_access::{FILLED, GpuAccess, Removal};
pub use serve::serve;

use crate::contents::copy_engine;
use crate::raw_calls::log_begin;
use crate::worker::{End, Output, Received, Worker};
use crate::{NotPassed, TestResult};
use hsa_vmm::Agent;
use hsa_vmm::ipc::IpcHandle;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

/// The interval at which this process logs the call that the peer is in.
const LOG_INTERVAL: Duration = Duration::from_millis(500);

/// The words in the detail of a failed case before the line that the second process printed last.
pub const LAST_OUTPUT: &str = "; its last output: ";
/// The words in the detail of a failed case that expected a GPU fault. The faults before are expected, too.
pub const NO_FAULT: &str =
    "no fault: the GPU's page table (DRM_IOCTL_AMDGPU_GEM_VA) or TLB still permits the access";
/// The default time limit of the peer's start and of each reply, shorter than the default time limit of a case.
pub const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A request to the peer.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Allocate memory on the first GPU, write a text to the beginning of the memory, and export the memory.
    Export { size: usize, text: String },
    /// Read the beginning of the memory.
    Read { count: usize },
    /// Free the memory.
    Free,
    /// Copy with each GPU, and stop the runtime.
    Stop,
    /// Let a GPU access memory of a new `Vmm` that controls page tables.
    Access(GpuAccess),
}

/// A reply of the peer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    Started,
    Exported(Vec<u8>),
    Bytes(Vec<u8>),
    Freed,
    Stopped,
    Accessed(AccessResult),
    /// The runtime or the driver cannot share memory.
    NotShared(String),
    Failed(String),
}

/// Returns a reply which says that a GPU of this process has copied wrong data.
fn wrong_copy(gpu: &Agent, difference: &str) -> Reply {
    Reply::Failed(format!("{} ({}) copied wrong data: {difference}", gpu.id(), copy_engine()))
}

/// The result of a GPU's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AccessResult {
    /// The access did not fault.
    Completed,
    /// The access to the `size` bytes from `begin` on faulted at the address `at`.
    Faulted { begin: u64, size: usize, at: u64 },
}

/// The second process. Dropping a `Peer` kills the process.
#[derive(Debug)]
pub(crate) struct Peer {
    worker: Worker,
    time_limit: Duration,
}

impl Peer {
    /// Starts the program of a command line, with `variable` added to the environment. The program must call [`serve`].
    /// `time_limit` applies to the start of the program and to each reply.
    pub fn start(
        command_line: &[OsString],
        variable: Option<(&str, &str)>,
        time_limit: Duration,
    ) -> TestResult<Self> {
        let Some((program, arguments)) = command_line.split_first() else {
            let why = "needs a second process, which cannot be started here";
            return Err(NotPassed::Skipped(why.to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(variable);
        let mut peer = Self { worker: Worker::start(command, Output::Capture)?, time_limit };
        peer.receive()?;
        Ok(peer)
    }

    /// Makes the peer export new memory that begins with a text.
    pub fn export(&mut self, size: usize, text: &str) -> TestResult<IpcHandle> {
        let reply = self.request(&Request::Export { size, text: text.to_owned() })?;
        let Reply::Exported(bytes) = &reply else { return Err(unexpected_reply(&reply)) };
        let bytes: &[u8; IpcHandle::SIZE] =
            bytes.as_slice().try_into().map_err(|_| unexpected_reply(&reply))?;
        Ok(IpcHandle::from_bytes(bytes))
    }

    /// Returns the beginning of the peer's memory.
    pub fn read(&mut self, count: usize) -> TestResult<Vec<u8>> {
        match self.request(&Request::Read { count })? {
            Reply::Bytes(bytes) => Ok(bytes),
            reply => Err(unexpected_reply(&reply)),
        }
    }

    /// Makes the peer free its memory.
    pub fn free(&mut self) -> TestResult {
        self.request(&Request::Free).map(drop)
    }

    /// Makes the peer copy with each GPU and stop its runtime. Waits until the peer has exited.
    pub fn stop(mut self) -> TestResult {
        let reply = self.request(&Request::Stop)?;
        if reply != Reply::Stopped {
            return Err(unexpected_reply(&reply));
        }
        let why = match self.wait() {
            Received::Exited(End::Exited(0)) => return Ok(()),
            Received::Exited(end) => end.to_string(),
            _ => "did not exit after it had stopped the runtime".to_owned(),
        };
        Err(NotPassed::Failed(format!("the second process: {why}")))
    }

    /// Lets a GPU of the peer access memory. After a fault, send no other request: the peer may
    /// have ended, and its later results are invalid.
    pub fn access_by_gpu(&mut self, access: &GpuAccess) -> TestResult<AccessResult> {
        match self.request(&Request::Access(access.clone()))? {
            Reply::Accessed(outcome) => Ok(outcome),
            reply => Err(unexpected_reply(&reply)),
        }
    }

    /// Kills the peer, so that it cannot release its resources.
    pub fn kill(mut self) {
        self.worker.kill();
    }

    fn request(&mut self, request: &Request) -> TestResult<Reply> {
        self.worker.send(request);
        self.receive()
    }

    /// Waits for a reply or for the peer's exit. Logs the peer's last call during the wait: if the peer hangs, the
    /// parent of this process reads the name of that call.
    fn wait(&mut self) -> Received<Reply> {
        let begun = Instant::now();
        loop {
            let remaining = self.time_limit.saturating_sub(begun.elapsed());
            let received = self.worker.receive(remaining.min(LOG_INTERVAL));
            if !matches!(received, Received::Timeout) || remaining <= LOG_INTERVAL {
                return received;
            }
            if let Some(call) = self.worker.last_call() {
                log_begin(&match call.strip_prefix("in ") {
                    Some(function) => format!("{function} of the second process"),
                    None => format!("the second process, {call}"),
                });
            }
        }
    }

    fn receive(&mut self) -> TestResult<Reply> {
        let why = match self.wait() {
            Received::Message(Reply::NotShared(why)) => return Err(NotPassed::Skipped(why)),
            Received::Message(Reply::Failed(why)) => {
                // The reason names the failed call. The peer's last call belongs to the clean-up after the failure.
                return Err(NotPassed::Failed(format!("the second process: {why}")));
            }
            Received::Message(reply) => return Ok(reply),
            Received::Invalid(text) => format!("sent an invalid answer: {text:?}"),
            Received::Timeout => {
                format!("did not answer within {} s", self.time_limit.as_secs_f64())
            }
            Received::Exited(end) => end.to_string(),
        };
        let last_call = self.worker.last_call().map(|call| format!(", {call}")).unwrap_or_default();
        let output = self.worker.captured_output();
        let output = output.lines().last().map(|line| format!("{LAST_OUTPUT}{line}"));
        let output = output.unwrap_or_default();
        Err(NotPassed::Failed(format!("the second process: {why}{last_call}{output}")))
    }
}

fn unexpected_reply(reply: &Reply) -> NotPassed {
    NotPassed::Failed(format!("the second process: returned {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::Peer;
    use crate::NotPassed;
    use std::time::Duration;

    #[test]
    fn silent_peer_exceeds_its_time_limit() {
        let command_line = ["sleep".into(), "600".into()];
        let limit = Duration::from_millis(50);
        let Err(NotPassed::Failed(why)) = Peer::start(&command_line, None, limit) else {
            panic!("the start did not fail");
        };
        assert!(why.starts_with("the second process: did not answer within 0.05 s"), "{why}");
    }
}
