//! The writing end of the records, in the process of a level.

use super::record::{Argument, Begin, End, Logs, Number, Record};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

thread_local! {
    /// Which of a level's threads this is, from 1; 0 is the first.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// The last call of this thread.
    static LAST: Cell<Option<Number>> = const { Cell::new(None) };
}

/// Where records go.
#[derive(Debug)]
pub struct Recorder {
    pipe: Mutex<File>,
    process: u8,
    calls: AtomicU64,
    driver_log: Option<PathBuf>,
}

/// Something that a level could not go on after; it has been recorded.
#[derive(Clone, Copy, Debug)]
pub struct Stopped;

impl Recorder {
    /// Takes standard output for the records: what a runtime prints there goes where its errors
    /// go.
    pub fn take_output(process: u8) -> io::Result<Self> {
        let pipe = io::stdout().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Self {
            pipe: Mutex::new(pipe.into()),
            process,
            calls: AtomicU64::new(0),
            driver_log: std::env::var_os("HSA_KFD_LOG").map(PathBuf::from),
        })
    }

    /// The end of the pipe, for another process of the same level.
    pub fn pipe(&self) -> io::Result<File> {
        self.pipe.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).try_clone()
    }

    /// Says of this thread which it is.
    pub fn name_thread(number: u32) {
        THREAD.set(number);
    }

    /// Records something. If nobody reads it, there is nothing to live for.
    pub fn tell(&self, record: &Record) {
        let mut line = serde_json::to_vec(record).unwrap_or_default();
        line.push(b'\n');
        // At once, so that the lines of two processes do not mix.
        let mut pipe = self.pipe.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if pipe.write_all(&line).is_err() {
            std::process::exit(1);
        }
    }

    /// Performs a call between two records.
    pub fn around<T>(
        &self,
        call: &str,
        arguments: &[(&str, String)],
        c: Option<String>,
        perform: impl FnOnce() -> (T, Option<u32>, Vec<Argument>),
    ) -> (Number, T) {
        let number = Number(self.process, self.calls.fetch_add(1, Ordering::Relaxed));
        LAST.set(Some(number));
        self.tell(&Record::Begin(Begin {
            number,
            thread: THREAD.get(),
            task: task(),
            call: call.to_owned(),
            arguments: arguments
                .iter()
                .map(|(name, value)| Argument { name: (*name).to_owned(), value: value.clone() })
                .collect(),
            c,
            logs: self.logs(),
        }));
        let began = Instant::now();
        let (value, status, answered) = perform();
        let microseconds = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let logs = self.logs();
        self.tell(&Record::End(End { number, status, answered, microseconds, logs }));
        (number, value)
    }

    /// The level fails because of something that no call's status says.
    pub fn wrong(&self, what: impl Into<String>) -> Stopped {
        self.tell(&Record::Wrong(LAST.get(), what.into()));
        Stopped
    }

    /// The level does not apply.
    pub fn skip(&self, why: impl Into<String>) -> Stopped {
        self.tell(&Record::Skip(why.into()));
        Stopped
    }

    /// Something to know.
    pub fn fact(&self, what: impl Into<String>) {
        self.tell(&Record::Fact(what.into()));
    }

    fn logs(&self) -> Logs {
        let length =
            |metadata: io::Result<std::fs::Metadata>| metadata.map_or(0, |file| file.len());
        let driver = self.driver_log.as_ref().map_or(0, |path| length(std::fs::metadata(path)));
        let runtime = io::stderr().as_fd().try_clone_to_owned();
        let runtime = runtime.map_or(0, |file| length(File::from(file).metadata()));
        Logs { driver, runtime }
    }
}

/// Process and thread, as the emulated driver's log names them.
fn task() -> String {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    format!("{}:{thread}", std::process::id())
}
