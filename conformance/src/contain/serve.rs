//! The process that has the runtime.

use super::protocol::{Answer, Request};
use crate::attempt::attempt;
use crate::describe::describe_with;
use crate::worker::{NotAWorker, begin};
use crate::{Options, cases};
use hsa_vmm::Runtime;
use hsa_vmm::vmm::Quirks;
use std::io;

/// Why there is no runtime to work with.
#[derive(Clone, Debug)]
pub struct NotOpened {
    /// What to tell.
    pub error: String,
    /// Whether the runtime is to blame, and not what was asked for.
    pub no_runtime: bool,
}

/// Works for the process that has started this one: opens the runtime, says so, and puts to it what
/// it is told to, until that process asks for an end or is gone.
///
/// `open` gives the runtime and what a person should know of it. Of the options, only those about
/// a single case matter here.
///
/// # Errors
/// [`NotAWorker`] if no one has started this process as a worker, or went away.
pub fn serve(
    open: impl FnOnce() -> Result<(Runtime, String), NotOpened>,
    options: &Options,
) -> Result<(), NotAWorker> {
    let (mut requests, answers) = begin()?;
    let runtime = match open() {
        Ok((runtime, note)) => {
            let quirks = Quirks::of_extension(runtime.info().extension).union(options.quirks);
            let description = describe_with(&runtime, quirks);
            answers.send(&Answer::Started { note, runtime: Box::new(description) })?;
            runtime
        }
        Err(NotOpened { error, no_runtime }) => {
            return Ok(answers.send(&Answer::NotStarted { error, no_runtime })?);
        }
    };
    let cases = cases();
    while let Some(Request::Run(name)) = requests.receive()? {
        let Some(case) = cases.iter().find(|case| case.name == name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no case has that name").into());
        };
        answers.send(&Answer::Ended(attempt(&runtime, options, case)))?;
    }
    drop(runtime);
    Ok(answers.send(&Answer::Stopped)?)
}
