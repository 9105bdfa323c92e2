//! A worker as its master sees it.

use super::{Answer, Task};
use crate::arguments::Common;
use anyhow::Context;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// A process that performs sequences. It ends when this is dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    tasks: ChildStdin,
    errors: Option<JoinHandle<()>>,
    last_words: Arc<Mutex<VecDeque<String>>>,
}

/// What is heard of a worker.
#[derive(Debug)]
pub enum Event {
    /// It says something.
    Answer(Answer),
    /// It says nothing more.
    Ended,
}

/// How many lines of what a process says to standard error are kept.
const LINES: usize = 8;

impl Worker {
    /// Starts one. What it says goes to `ear`, with its number.
    pub fn start(
        common: &Common,
        number: usize,
        ear: Sender<(usize, Event)>,
    ) -> anyhow::Result<Self> {
        let mut command = hsa_rocr::again()?;
        command.arg("worker").args(common.words()).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start a process to work in")?;
        let (Some(tasks), Some(answers), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("a process to work in has no pipes");
        };
        thread::spawn(move || listen(answers, number, &ear));
        let last_words = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&last_words);
        let errors = Some(thread::spawn(move || keep_last(errors, &kept)));
        Ok(Self { child, tasks, errors, last_words })
    }

    /// Asks for something to be done. Whether it is heard is seen from what comes back.
    pub fn ask(&mut self, task: &Task) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        match self.tasks.write_all(&line) {
            // It has ended, which its answers will show.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }

    /// How a worker ended that says nothing more, and what it said last.
    pub fn end(&mut self) -> (Option<i32>, String) {
        // A process that has closed its output ends soon, or is made to.
        let status = wait_a_little(&mut self.child);
        if let Some(errors) = self.errors.take() {
            // Whoever else has its standard error open may keep it open.
            if status.is_some() {
                drop(errors.join());
            }
        }
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let how = status.map_or("did not end".to_owned(), |status| status.to_string());
        let said =
            if words.is_empty() { String::new() } else { format!(": {}", words.join(" | ")) };
        (status.and_then(|status| status.code()), format!("{how}{said}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It is gone already, or is now.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn wait_a_little(child: &mut Child) -> Option<std::process::ExitStatus> {
    for _ in 0..200 {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(child.kill());
    child.wait().ok()
}

fn listen(answers: ChildStdout, number: usize, ear: &Sender<(usize, Event)>) {
    for line in BufReader::new(answers).lines().map_while(Result::ok) {
        // What else is printed is the runtime's own.
        let Ok(answer) = serde_json::from_str(&line) else { continue };
        if ear.send((number, Event::Answer(answer))).is_err() {
            return;
        }
    }
    // Nobody listens any more if this fails.
    drop(ear.send((number, Event::Ended)));
}

fn keep_last(errors: impl Read, kept: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == LINES {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}
