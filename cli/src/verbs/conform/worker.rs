//! `hsa-vmm conform` as the process that has the runtime.

use super::Conform;
use crate::arguments::Common;
use crate::{Ending, is_no_runtime};
use hsa_vmm_conformance::Options;
use hsa_vmm_conformance::contain::{NotOpened, serve};
use std::io;
use std::process::Command;

/// Works for the process that has started this one.
pub fn work(verb: &Conform) -> anyhow::Result<Ending> {
    let open = || {
        verb.common.runtime.open_and_tell().map_err(|error| NotOpened {
            no_runtime: is_no_runtime(&error),
            error: format!("{error:#}"),
        })
    };
    let options = Options { profile: verb.common.profile, ..Options::default() };
    serve(open, &options)?;
    Ok(Ending::Well)
}

/// Starts this command as a worker.
pub fn command(common: &Common) -> io::Result<Command> {
    let mut command = hsa_rocr::again()?;
    command.args(["conform", "--worker"]).args(common.words());
    Ok(command)
}
