//! `hsa-vmm conform` as the process that has the runtime.

use crate::arguments::{Common, Conform};
use crate::{Ending, is_no_runtime};
use hsa_vmm_conformance::Options;
use hsa_vmm_conformance::contain::{NotOpened, serve};
use std::ffi::OsString;
use std::io;
use std::process::Command;

/// Works for the process that has started this one.
pub fn work(verb: &Conform, token: &str) -> anyhow::Result<Ending> {
    let open = || {
        verb.common.open_and_tell().map_err(|error| NotOpened {
            no_runtime: is_no_runtime(&error),
            error: format!("{error:#}"),
        })
    };
    let options = Options { profile: verb.common.profile, ..Options::default() };
    serve(token, open, &options)?;
    Ok(Ending::Well)
}

/// Starts this command as a worker.
pub fn command(common: &Common, token: &str) -> io::Result<Command> {
    let mut command = hsa_rocr::again()?;
    command.args(["conform", "--worker", token]).args(arguments(common));
    Ok(command)
}

/// The arguments that choose the same runtime.
fn arguments(common: &Common) -> Vec<OsString> {
    let Common { runtime, gpus, sim, profile, log } = common;
    let given = [
        ("--runtime", Some(runtime.as_argument())),
        ("--gpus", gpus.map(|gpus| gpus.to_string().into())),
        ("--sim", sim.clone().map(Into::into)),
        ("--profile", Some(profile.to_string().into())),
        ("--log-level", log.map(|level| level.to_string().into())),
    ];
    let there = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    // In one word, so that what begins with `-` is no option.
    there
        .map(|(name, value)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::arguments::{Arguments, Verb};
    use clap::Parser;

    #[test]
    fn a_worker_has_the_same_runtime() {
        for words in [
            &["--runtime", "-odd name", "--profile", "hip6", "--log-level", "debug"][..],
            &["--runtime", "sim", "--gpus", "3", "--sim", "era=a"],
            &["--runtime", "auto"],
        ] {
            let parse = |words: &mut dyn Iterator<Item = std::ffi::OsString>| {
                let head = ["hsa-vmm", "conform"].map(std::ffi::OsString::from);
                match Arguments::parse_from(head.into_iter().chain(words)).verb {
                    Verb::Conform(verb) => verb.common,
                    verb => panic!("{verb:?}"),
                }
            };
            let mut words = words.iter().map(|word| word.replace("-odd", "./-odd").into());
            let common = parse(&mut words);
            let again = parse(&mut super::arguments(&common).into_iter());
            assert_eq!(format!("{common:?}"), format!("{again:?}"));
        }
    }
}
