//! Sends the records of a level's process to the parent.

use super::hsa::{SDMA, SHADER};
use super::record::{Argument, Begin, CallId, Logs, Record, Return, StuckCopy};
use hsa_vmm_conformance::worker::Messages;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

thread_local! {
    /// The number of this thread, from 1. The main thread has the number 0.
    static THREAD_NUMBER: Cell<u32> = const { Cell::new(0) };
    static LAST_CALL: Cell<Option<CallId>> = const { Cell::new(None) };
}

/// Sends records to the parent.
#[derive(Debug)]
pub struct Recorder {
    messages: Messages,
    process: u8,
    /// The number of calls so far.
    calls: AtomicU64,
    driver_log: Option<PathBuf>,
}

/// The error of a level that cannot continue. The reason has been recorded.
#[derive(Clone, Copy, Debug)]
pub struct AlreadyReported;

impl Recorder {
    /// Creates the recorder of a process. `process` is the number of the process: 0 for the level's first process.
    pub fn new(messages: Messages, process: u8) -> Self {
        let driver_log = std::env::var_os("HSA_KFD_LOG").map(PathBuf::from);
        Self { messages, process, calls: AtomicU64::new(0), driver_log }
    }

    pub fn set_thread_number(number: u32) {
        THREAD_NUMBER.set(number);
    }

    /// Sends a record. Exits the process if the parent has exited.
    pub fn send(&self, record: &Record) {
        if self.messages.send(record).is_err() {
            std::process::exit(1);
        }
    }

    /// Makes a call, and sends a record before and after the call. `perform` makes the call, and returns the call's
    /// value, status and outputs.
    pub fn record<T>(
        &self,
        call: &str,
        arguments: &[(&str, String)],
        c_statement: Option<String>,
        perform: impl FnOnce() -> (T, Option<u32>, Vec<Argument>),
    ) -> (CallId, T) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let id = CallId { process: self.process, number };
        LAST_CALL.set(Some(id));
        self.send(&Record::Begin(Begin {
            id,
            thread: THREAD_NUMBER.get(),
            task: task(),
            call: call.to_owned(),
            arguments: arguments
                .iter()
                .map(|(name, value)| Argument { name: (*name).to_owned(), value: value.clone() })
                .collect(),
            c_statement,
            logs: self.logs(),
        }));
        let began = Instant::now();
        let (value, status, outputs) = perform();
        let microseconds = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let logs = self.logs();
        self.send(&Record::Returned(Return { id, status, outputs, microseconds, logs }));
        (id, value)
    }

    /// Records that the level fails because of a wrong result, although all calls succeeded.
    pub fn fail(&self, message: impl Into<String>) -> AlreadyReported {
        self.send(&Record::Wrong(LAST_CALL.get(), message.into()));
        AlreadyReported
    }

    /// Records that the level fails because of the last call of a function, even if the call succeeded. Prefers a
    /// call of this thread.
    pub fn fail_in(&self, call: &str, message: impl Into<String>) -> AlreadyReported {
        let (call, first) = (call.to_owned(), None);
        self.send(&Record::Attributed { task: task(), call, first, what: message.into() });
        AlreadyReported
    }

    /// Does the same as [`Self::fail_in`], but considers only calls whose first argument is the C expression
    /// `first`. For example, the last copy to an address is the cause, not the later copy from the address.
    pub fn fail_in_call_on(
        &self,
        call: &str,
        first: &str,
        message: impl Into<String>,
    ) -> AlreadyReported {
        let (call, first) = (call.to_owned(), Some(first.to_owned()));
        self.send(&Record::Attributed { task: task(), call, first, what: message.into() });
        AlreadyReported
    }

    /// Records that this thread repeats a check that failed, so that [`Self::fail_in`] and [`Self::fail_in_call_on`]
    /// select a call from before the repetition.
    pub fn repeat_check(&self) {
        self.send(&Record::Repeats { task: task() });
    }

    /// Records what the CPU finds while the last call of this thread waits for a copy that does not end.
    pub fn record_stuck_copy(&self, copy: StuckCopy) {
        if let Some(id) = LAST_CALL.get() {
            self.send(&Record::StuckCopy(id, copy));
        }
    }

    /// Records that the level does not apply.
    pub fn skip(&self, why: impl Into<String>) -> AlreadyReported {
        self.send(&Record::Skip(why.into()));
        AlreadyReported
    }

    /// Records a fact for the report.
    pub fn record_fact(&self, message: impl Into<String>) {
        self.send(&Record::Fact(message.into()));
    }

    /// Returns the end of a message that names this process, ` of process 2`. Returns an empty text for the level's
    /// first process.
    pub fn process_suffix(&self) -> String {
        match self.process {
            0 => String::new(),
            number => format!(" of process {}", number + 1),
        }
    }

    /// Returns the engine that copies for this process: the engine of the queues that the process has created,
    /// according to the emulated driver's log.
    pub fn copy_engine(&self) -> Option<&'static str> {
        let log = std::fs::read(self.driver_log.as_ref()?).ok()?;
        copy_engine(&String::from_utf8_lossy(&log), std::process::id())
    }

    /// Returns the current lengths of the logs.
    fn logs(&self) -> Logs {
        let length =
            |metadata: io::Result<std::fs::Metadata>| metadata.map_or(0, |file| file.len());
        let driver = self.driver_log.as_ref().map_or(0, |path| length(std::fs::metadata(path)));
        let runtime = io::stderr().as_fd().try_clone_to_owned();
        let runtime = runtime.map_or(0, |file| length(File::from(file).metadata()));
        Logs { driver, runtime }
    }
}

fn copy_engine(log: &str, process: u32) -> Option<&'static str> {
    let prefix = format!("{process}:");
    let queues =
        log.lines().filter(|line| line.starts_with(&prefix) && line.contains(" kfd CREATE_QUEUE "));
    // A process that copies by SDMA can also have queues for kernels.
    let queue_engine = |line: &str| if line.contains(" kind=SDMA") { SDMA } else { SHADER };
    queues.map(queue_engine).max_by_key(|engine| *engine == SDMA)
}

/// Returns the process ID and thread ID in the format of the emulated driver's log.
fn task() -> String {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    format!("{}:{thread}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_engine_depends_on_the_queues_of_the_process() {
        let log = "7:7 0.1 kfd CREATE_QUEUE ring_base=0x1 kind=AQL queue_id=0 -> queue_id=1 (1.0 us)\n\
                   71:71 0.1 kfd CREATE_QUEUE ring_base=0x1 kind=SDMA_BY_ENGINE queue_id=0 -> queue_id=1 (1.0 us)\n\
                   71:71 0.2 kfd CREATE_QUEUE ring_base=0x1 kind=AQL queue_id=0 -> queue_id=2 (1.0 us)\n";
        assert_eq!(copy_engine(log, 7), Some(SHADER));
        assert_eq!(copy_engine(log, 71), Some(SDMA));
        assert_eq!(copy_engine(log, 1), None);
    }
}
