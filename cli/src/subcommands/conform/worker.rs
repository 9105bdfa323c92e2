//! The worker processes of `hsa-vmm conform`: a worker, which runs the cases, and a peer, which exports memory for a
//! case.

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
            error: crate::error_message(&error),
        })
    };
    serve(open, &options(args)?)?;
    Ok(Exit::Success)
}

/// Exports memory for a case of the parent process.
pub fn run_peer(args: &Conform) -> anyhow::Result<Exit> {
    let open = || match args.common.runtime.open_with_description() {
        Ok((runtime, _)) => Ok(runtime),
        Err(error) => Err(crate::error_message(&error)),
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
    // If the time limit of a case was extended for a slow machine, the peer's limit is two thirds of this limit.
    let peer_time_limit = peer::TIME_LIMIT.max(args.time_limit / 3 * 2);
    Ok(Options { profile, page_tables, peer, peer_time_limit, ..Options::default() })
}

pub fn command(args: &Conform) -> io::Result<Command> {
    restart_with(args, "--worker")
}

/// Returns a command that restarts `conform` with an option for its role.
fn restart_with(args: &Conform, role: &str) -> io::Result<Command> {
    let mut command = crate::program::worker_command()?;
    command.args(["conform", role]).args(args.to_arguments());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::options;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;
    use std::time::Duration;

    /// Returns the time limit of the peers that a worker of `hsa-vmm conform ARGUMENTS` starts.
    fn peer_time_limit(arguments: &[&str]) -> Duration {
        let parse = |arguments: &[std::ffi::OsString]| {
            let words = ["hsa-vmm", "conform"].map(Into::into).into_iter();
            match Arguments::parse_from(words.chain(arguments.iter().cloned())).command {
                Command::Conform(conform) => conform,
                command => panic!("{command:?}"),
            }
        };
        let arguments: Vec<_> = arguments.iter().map(Into::into).collect();
        let worker = parse(&parse(&arguments).to_arguments());
        options(&worker).unwrap().peer_time_limit
    }

    #[test]
    fn longer_time_limit_extends_limit_of_peers() {
        assert_eq!(peer_time_limit(&[]), Duration::from_secs(20));
        assert_eq!(peer_time_limit(&["--time-limit", "4s"]), Duration::from_secs(20));
        assert_eq!(peer_time_limit(&["--time-limit", "5min"]), Duration::from_secs(200));
        assert_eq!(peer_time_limit(&["--time-limit", "1ns"]), Duration::from_secs(20));
    }
}
