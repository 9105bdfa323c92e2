//! `hsa-vmm conform` as a process that has the runtime: that of the cases, or the second of one.

use super::Conform;
use crate::arguments::Common;
use crate::{Ending, is_no_runtime};
use hsa_vmm_conformance::contain::{NotOpened, serve};
use hsa_vmm_conformance::{Options, partner};
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
    serve(open, &options(&verb.common)?)?;
    Ok(Ending::Well)
}

/// Exports memory for a case of the process that has started this one.
pub fn be_partner(verb: &Conform) -> anyhow::Result<Ending> {
    let open = || match verb.common.runtime.open_and_tell() {
        Ok((runtime, _)) => Ok(runtime),
        Err(error) => Err(format!("{error:#}")),
    };
    partner::serve(open)?;
    Ok(Ending::Well)
}

/// What is asked for that concerns a single case.
pub fn options(common: &Common) -> io::Result<Options> {
    let partner = again(common, "--partner")?;
    let words = [partner.get_program()].into_iter().chain(partner.get_args());
    let partner = words.map(Into::into).collect();
    Ok(Options { profile: common.profile, partner, ..Options::default() })
}

/// Starts this command as a worker.
pub fn command(common: &Common) -> io::Result<Command> {
    again(common, "--worker")
}

fn again(common: &Common, role: &str) -> io::Result<Command> {
    let mut command = hsa_rocr::again()?;
    command.args(["conform", role]).args(common.words());
    Ok(command)
}
