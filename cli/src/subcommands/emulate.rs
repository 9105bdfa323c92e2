//! `hsa-vmm emulate`: runs a program on the emulated kernel driver.

use super::rocr;
use crate::Exit;
use crate::arguments::Arguments;
use crate::screen::note;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};
use hsa_rocr::{Emulation, Installation, Release, folder};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// The emulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// MI300X: CDNA 3, all memory visible to the CPU
    Mi300x,
    /// MI210: CDNA 2
    Mi210,
    /// A consumer card of RDNA 3: a part of the memory is visible to the CPU
    Rdna3,
    /// An APU: CPU and GPU share memory
    Apu,
}

#[derive(Args, Debug)]
pub struct Emulate {
    /// The number of GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The emulated machine
    #[arg(long, value_enum)]
    pub machine: Option<Profile>,
    /// The memory of each GPU: `64GiB`, `256MiB`
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<String>,
    /// Write a line for each driver call to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write the GPUs' page tables to this file when a process exits
    #[arg(long, value_name = "FILE")]
    pub page_tables: Option<PathBuf>,
    /// Inject faults into driver calls: `GEM_VA#3=ENOMEM`, `GEM_VA=5ms`, `GEM_VA.MAP=lost`
    ///
    /// CALL=EFFECT applies to every such call, CALL#3=EFFECT to the third, #3-5 and #3- to several.
    /// Calls are named as in the log; MMAP, COPY and FILL (operations of a GPU's engines) are calls,
    /// too. A call can fail with an error (`ENOMEM`), take longer (`5ms`), be performed after it has
    /// returned (`late:5ms`), have no effect (`lost`), never return (`hang`), end the process
    /// (`crash`), grant too much or too little access (`wide`, `narrow`), map memory a page further
    /// on or other memory (`shifted`, `other`), not release memory (`leak`), flip a bit (`garbled`),
    /// or use a wrong size (`half`, `double`). An effect that a call does not support is an error; the
    /// message lists the calls that support it.
    #[arg(long, value_name = "PLAN")]
    pub fault: Vec<String>,
    /// Run the program with this release of AMD's runtime, fetched by `rocr fetch`
    #[arg(long, value_name = "VERSION")]
    pub rocr: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

pub fn run(args: &Emulate) -> anyhow::Result<Exit> {
    let (program, arguments) = crate::program::split(&args.program)?;
    let mut command = match args.rocr {
        Some(release) => rocr::command(&Installation::open(&folder(), release)?, program),
        None if hsa_rocr::is_program(program) => Command::new(program),
        // Programs of a fetched release are not in PATH.
        None => match rocr::newest().filter(|newest| newest.program(program).is_some()) {
            Some(newest) => {
                let (name, release) = (program.display(), newest.release());
                note!("using {name} and the runtime of release {release}");
                rocr::command(&newest, program)
            }
            None => Command::new(program),
        },
    };
    command.args(arguments);
    emulation(args).apply(&mut command)?;
    crate::program::set_outer_command(&mut command, &typed_arguments(args));
    check_configuration(args)?;
    crate::program::become_program(command, program)
}

/// Loads the emulated driver's configuration in another process, and exits with the driver's message if it is
/// invalid. Otherwise, a misspelt fault would be found late or never.
fn check_configuration(args: &Emulate) -> anyhow::Result<()> {
    let mut command = hsa_rocr::restart()?;
    command.args(["kfd-version", "--open"]);
    emulation(args).apply(&mut command)?;
    command.env_remove("HSA_KFD_LOG").env_remove("HSA_KFD_PAGE_TABLES");
    let output = command.output()?;
    if output.status.code() != Some(i32::from(crate::BAD_USAGE)) {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("hsa-kfd: ");
    let message = message.replace("HSA_KFD_FAULTS: ", "invalid fault plan: ");
    Arguments::command().error(ErrorKind::InvalidValue, message).exit()
}

/// Returns the subcommand and its options as a user types them, without output files.
fn typed_arguments(args: &Emulate) -> Vec<String> {
    let mut arguments = vec!["emulate".to_owned()];
    let mut add = |option: &str, value: Option<String>| {
        arguments.extend(value.into_iter().flat_map(|value| [format!("--{option}"), value]));
    };
    add("gpus", args.gpus.map(|number| number.to_string()));
    add("machine", args.machine.and_then(|it| Some(it.to_possible_value()?.get_name().to_owned())));
    add("vram", args.vram.clone());
    add("rocr", args.rocr.map(|release| release.to_string()));
    for plan in &args.fault {
        add("fault", Some(plan.clone()));
    }
    arguments
}

fn emulation(args: &Emulate) -> Emulation {
    let mut emulation = args.gpus.map(Emulation::gpus).unwrap_or_default();
    if let Some(machine) = args.machine {
        emulation = emulation.profile(match machine {
            Profile::Mi300x => "mi300x",
            Profile::Mi210 => "mi210",
            Profile::Rdna3 => "rdna3",
            Profile::Apu => "apu",
        });
    }
    if let Some(size) = &args.vram {
        emulation = emulation.vram(size);
    }
    if let Some(file) = &args.log {
        emulation = emulation.log(file);
    }
    if let Some(file) = &args.page_tables {
        emulation = emulation.page_tables(file);
    }
    args.fault.iter().fold(emulation, |emulation, plan| emulation.fault(plan))
}
