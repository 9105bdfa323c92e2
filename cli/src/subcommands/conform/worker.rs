//! The worker processes of `hsa-vmm conform`: a worker that runs the cases, and the peer of a case.

use super::Conform;
use crate::{Exit, is_no_runtime};
use hsa_vmm_conformance::contain::{NotOpened, serve};
use hsa_vmm_conformance::{Options, peer};
use std::io;
use std::process::Command;

/// Runs cases for the parent process.
pub fn run_worker(args: &Conform) -> anyhow::Result<Exit> {
    let open = || {
        args.common.runtime.open_with_description().map_err(|error| NotOpened {
            no_runtime: is_no_runtime(&error),
            error: crate::message(&error),
        })
    };
    serve(open, &options(args)?)?;
    Ok(Exit::Success)
}

/// Exports memory for a case of the parent process.
pub fn run_peer(args: &Conform) -> anyhow::Result<Exit> {
    let open = || match args.common.runtime.open_with_description() {
        Ok((runtime, _)) => Ok(runtime),
        Err(error) => Err(crate::message(&error)),
    };
    peer::serve(open)?;
    Ok(Exit::Success)
}

/// Returns the options that apply to each case.
pub fn options(args: &Conform) -> io::Result<Options> {
    let peer = restart_with(args, "--peer")?;
    let words = [peer.get_program()].into_iter().chain(peer.get_args());
    let peer = words.map(Into::into).collect();
    let (profile, page_tables) = (args.profile, args.page_tables);
    Ok(Options { profile, page_tables, peer, ..Options::default() })
}

/// Returns the command of a worker.
pub fn command(args: &Conform) -> io::Result<Command> {
    restart_with(args, "--worker")
}

/// Returns a command that restarts `conform` with an option for its role.
fn restart_with(args: &Conform, role: &str) -> io::Result<Command> {
    let mut command = crate::program::worker_command()?;
    command.args(["conform", role]).args(args.to_arguments());
    Ok(command)
}
