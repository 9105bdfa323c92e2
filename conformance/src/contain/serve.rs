//! The worker's side: runs the requested cases.

use super::protocol::{Reply, Request};
use crate::describe::{describe_for, probes};
use crate::run_case::run_case;
use crate::worker::{NotAWorker, connect_to_parent};
use crate::{Options, cases};
use hsa_vmm::Runtime;
use std::io;

/// Why the runtime was not opened.
#[derive(Clone, Debug)]
pub struct NotOpened {
    /// The error message.
    pub error: String,
    /// True if no runtime was found or started, false if an argument is invalid.
    pub no_runtime: bool,
}

/// Opens the runtime and runs cases for the parent process, until the parent exits or asks the worker to stop.
///
/// `open` returns the runtime and a description for display. The worker ignores options that select or order cases: the
/// parent requests each case by its name.
///
/// # Errors
/// [`NotAWorker`] if this process was not started as a worker, or if the connection to the parent fails.
pub fn serve(
    open: impl FnOnce() -> Result<(Runtime, String), NotOpened>,
    options: &Options,
) -> Result<(), NotAWorker> {
    let (mut requests, replies) = connect_to_parent()?;
    let runtime = match open() {
        Ok((runtime, note)) => {
            let description = describe_for(&runtime, options);
            replies.send(&Reply::Started { note, runtime: Box::new(description) })?;
            runtime
        }
        Err(NotOpened { error, no_runtime }) => {
            return Ok(replies.send(&Reply::NotStarted { error, no_runtime })?);
        }
    };
    let cases = cases();
    while let Some(Request::Run(name)) = requests.receive()? {
        let Some(case) = cases.iter().find(|case| case.name == name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no case has that name").into());
        };
        replies.send(&Reply::Ended(run_case(&runtime, options, case)))?;
    }
    let probes = probes(&runtime);
    if !probes.is_empty() {
        replies.send(&Reply::Probed(probes))?;
    }
    drop(runtime);
    Ok(replies.send(&Reply::Stopped)?)
}
