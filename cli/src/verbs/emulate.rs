//! `hsa-vmm emulate`: a program on the emulated kernel driver.

use super::rocr;
use crate::Ending;
use crate::arguments::{Emulate, Profile};
use clap::ValueEnum;
use hsa_rocr::{Emulation, Installation, folder};
use std::process::Command;

pub fn run(verb: &Emulate) -> anyhow::Result<Ending> {
    let (program, arguments) = super::split(&verb.program)?;
    let mut command = match verb.rocr {
        Some(release) => rocr::command(&Installation::open(&folder(), release)?, program),
        None if hsa_rocr::is_program(program) => Command::new(program),
        // Those that came with a release are not on the path.
        None => match rocr::newest().filter(|newest| newest.program(program).is_some()) {
            Some(newest) => {
                let (name, release) = (program.display(), newest.release());
                anstream::eprintln!("{name}: that of release {release}, with its runtime");
                rocr::command(&newest, program)
            }
            None => Command::new(program),
        },
    };
    command.args(arguments);
    emulation(verb).apply(&mut command)?;
    command.env(super::UNDER, words(verb));
    super::become_program(command, program)
}

/// What was asked for, as it would be typed, but for files to write to.
fn words(verb: &Emulate) -> String {
    let mut words = vec!["emulate".to_owned()];
    let mut add = |option: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [format!("--{option}"), value]));
    };
    add("gpus", verb.gpus.map(|number| number.to_string()));
    add("machine", verb.machine.and_then(|it| Some(it.to_possible_value()?.get_name().to_owned())));
    add("vram", verb.vram.clone());
    add("rocr", verb.rocr.map(|release| release.to_string()));
    for plan in &verb.fault {
        add("fault", Some(format!("'{plan}'")));
    }
    words.join(" ")
}

fn emulation(verb: &Emulate) -> Emulation {
    let mut emulation = verb.gpus.map(Emulation::gpus).unwrap_or_default();
    if let Some(machine) = verb.machine {
        emulation = emulation.profile(match machine {
            Profile::Mi300x => "mi300x",
            Profile::Mi210 => "mi210",
            Profile::Rdna3 => "rdna3",
            Profile::Apu => "apu",
        });
    }
    if let Some(size) = &verb.vram {
        emulation = emulation.vram(size);
    }
    if let Some(file) = &verb.log {
        emulation = emulation.log(file);
    }
    if let Some(file) = &verb.page_tables {
        emulation = emulation.page_tables(file);
    }
    verb.fault.iter().fold(emulation, |emulation, plan| emulation.fault(plan))
}
