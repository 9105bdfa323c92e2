//! Checks the limit of open file descriptors.

use crate::BadUsage;
use crate::arguments::Command;
use rustix::process::{Resource, getrlimit};

/// The smallest limit with which the tests run. The usual limit is 1024.
const MINIMUM: u64 = 256;

/// Rejects a limit that is too low for a command that tests a runtime. Calls of the runtime would fail because this
/// process has no free descriptor, and the report would blame the driver.
pub fn check(command: &Command) -> anyhow::Result<()> {
    let tests_runtime = matches!(
        command,
        Command::Conform(_)
            | Command::Replay(_)
            | Command::Fuzz(_)
            | Command::Bench(_)
            | Command::Bringup(_)
            | Command::Stress(_)
    );
    match getrlimit(Resource::Nofile).current {
        Some(limit) if tests_runtime && limit < MINIMUM => Err(BadUsage(format!(
            "the limit of open file descriptors is {limit}, but the tests need {MINIMUM}: calls would fail because \
             of this limit, not because of the driver; raise it: `ulimit -n 1024`"
        ))
        .into()),
        _ => Ok(()),
    }
}
