//! `hsa-vmm emulate`: a program on the emulated kernel driver.

use super::rocr;
use crate::Ending;
use crate::screen::note;
use clap::{Args, ValueEnum};
use hsa_rocr::{Emulation, Installation, Release, folder};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Whose GPUs are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// MI300X: CDNA 3, all memory visible to the CPU
    Mi300x,
    /// MI210: CDNA 2
    Mi210,
    /// A consumer card of RDNA 3: the CPU sees a part of its memory
    Rdna3,
    /// A CPU and GPU in one, which share memory
    Apu,
}

#[derive(Args, Debug)]
pub struct Emulate {
    /// How many GPUs there are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// Which machine it is
    #[arg(long, value_enum)]
    pub machine: Option<Profile>,
    /// How much memory each has: `64GiB`, `256MiB`
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<String>,
    /// Write a line for each call of the driver to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write the GPUs' page tables to this file when a process ends
    #[arg(long, value_name = "FILE")]
    pub page_tables: Option<PathBuf>,
    /// Have calls go wrong: `GEM_VA#3=ENOMEM` fails, `GEM_VA=5ms` lasts, `GEM_VA.MAP=lost` lies
    ///
    /// CALL=EFFECT is for every such call, CALL#3=EFFECT for the third, #3-5 and #3- for several;
    /// calls are named as in the log, and besides them there are MMAP, COPY and FILL (what a GPU's
    /// engines do). A call fails with an error (`ENOMEM`), lasts (`5ms`), is performed after it has
    /// answered (`late:5ms`), is not performed at all (`lost`), never returns (`hang`), ends the
    /// process (`crash`); it allows too much or too little (`wide`, `narrow`), shows memory a page
    /// further on or other memory (`shifted`, `other`), keeps what is given back (`leak`), turns a
    /// bit round (`garbled`), or has sizes wrong (`half`, `double`). What a call cannot do is
    /// refused, with the calls that can.
    #[arg(long, value_name = "PLAN")]
    pub fault: Vec<String>,
    /// Give the program this release of AMD's runtime, which `rocr fetch` got
    #[arg(long, value_name = "VERSION")]
    pub rocr: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

pub fn run(verb: &Emulate) -> anyhow::Result<Ending> {
    let (program, arguments) = crate::program::split(&verb.program)?;
    let mut command = match verb.rocr {
        Some(release) => rocr::command(&Installation::open(&folder(), release)?, program),
        None if hsa_rocr::is_program(program) => Command::new(program),
        // Those that came with a release are not on the path.
        None => match rocr::newest().filter(|newest| newest.program(program).is_some()) {
            Some(newest) => {
                let (name, release) = (program.display(), newest.release());
                note!("{name}: that of release {release}, with its runtime");
                rocr::command(&newest, program)
            }
            None => Command::new(program),
        },
    };
    command.args(arguments);
    emulation(verb).apply(&mut command)?;
    command.env(crate::program::UNDER, words(verb));
    crate::program::become_program(command, program)
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
