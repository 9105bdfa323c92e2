//! `hsa-vmm emulate`: runs a program on the emulated kernel driver.

use super::rocr;
use crate::arguments::Arguments;
use crate::screen::note;
use crate::subcommands::kfd_version;
use crate::{Exit, output};
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};
use hsa_rocr::{
    Emulation, FetchedRelease, NoObject, NotFetched, NotPreloadable, Release, UntrustedFolder,
    check_preloadable, find_program, folder,
};
use hsa_vmm_conformance::worker::{End, Output, Received, Worker};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const ABOUT: &str = "\
Examples:
  hsa-vmm emulate --gpus 2 --rocr 7.2.4 -- hsa-vmm conform
  hsa-vmm emulate --rocr 7 -- ctest --output-on-failure
  hsa-vmm emulate --rocr 6.4 --log driver.log -- bash -c './setup && ./program'

With --rocr, the program and the programs that it starts use the loader and the
C library of that release. A program that is linked statically, or with another
C library than glibc, is rejected. If PROGRAM starts such a program, that
program runs without the emulated driver.

The emulated driver is a preloaded library. A program that was built with the
option -fsanitize=address needs
ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0. A program that sets
LD_PRELOAD must append to its value:
  hsa-vmm emulate -- sh -c 'LD_PRELOAD=$LD_PRELOAD:./x.so ./program'
A library that replaces mmap hides mappings from the emulated driver. UCX, which
MPICH and Open MPI use, does not with UCX_MEM_EVENTS=no, which this command sets
unless the variable is set.

Exit status: the program's; 125 if the emulation failed, 126 if the program is
not executable, 127 if it was not found.";

/// The emulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EmulatedMachine {
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
#[command(after_help = ABOUT)]
pub struct Emulate {
    /// The number of GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The emulated machine
    #[arg(long, value_enum)]
    pub machine: Option<EmulatedMachine>,
    /// The memory of each GPU: `64G`, `256M`
    #[arg(long, value_name = "SIZE", value_parser = parse_vram)]
    pub vram: Option<String>,
    /// Append a line for each driver call to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Append the GPUs' page tables to this file when a process exits, and when a GPU faults
    #[arg(long, value_name = "FILE")]
    pub page_tables: Option<PathBuf>,
    /// Inject faults into driver calls: `GEM_VA#3=ENOMEM`, `GEM_VA=5ms`, `GEM_VA.MAP=lost`
    ///
    /// CALL=EFFECT applies to every such call, CALL#3=EFFECT to the third, #3-5 and #3- to several.
    /// Calls are named as in the log. MMAP counts as a call, and so do COPY and FILL, the operations of
    /// a GPU's engines. A call can fail with an error (`ENOMEM`), take longer (`5ms`), be performed after it has
    /// returned (`late:5ms`), have no effect (`lost`), never return (`hang`), end the process
    /// (`crash`), grant too much or too little access (`wide`, `narrow`), map the memory from its
    /// second page on (`shifted`), map other memory (`other`), not release memory (`leak`), flip a
    /// bit (`garbled`), or use a wrong size (`half`, `double`). An effect that a call does not support is an error; the
    /// message lists the calls that support it. All effects: hsa/faults/README.md.
    #[arg(long, value_name = "PLAN")]
    pub fault: Vec<String>,
    /// Run the program with this release of AMD's runtime, fetched by `rocr fetch`
    #[arg(long, value_name = "VERSION", value_parser = rocr::parse_release)]
    pub rocr: Option<Release>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// The exit status of failures of the emulation itself.
pub const FAILED: u8 = 125;

/// A failure of the emulation, not of the program.
#[derive(Debug, thiserror::Error)]
pub enum EmulationError {
    #[error(transparent)]
    NotFetched(#[from] NotFetched),
    #[error(transparent)]
    NoObject(#[from] NoObject),
    #[error(transparent)]
    Untrusted(#[from] UntrustedFolder),
    #[error(transparent)]
    NotPreloadable(#[from] NotPreloadable),
    #[error("cannot start this program again: {0}")]
    NotRestarted(io::Error),
    /// The emulated driver does not start; the message is the driver's.
    #[error("{0}")]
    NoDriver(String),
    #[error("cannot write {path}: {cause}", path = path.display())]
    Output { path: PathBuf, cause: io::Error },
}

pub fn run(args: &Emulate) -> anyhow::Result<Exit> {
    output::check_different(&[
        ("--log", args.log.as_deref()),
        ("--page-tables", args.page_tables.as_deref()),
    ])?;
    let (program, arguments) = crate::program::split_command_line(&args.program)?;
    let fetched = fetched_release(args, program)?;
    // Programs of a fetched release are not in PATH.
    let program_of_release = fetched.as_ref().and_then(|fetched| fetched.program(program));
    if let Some(file) = program_of_release.clone().or_else(|| find_program(program)) {
        check_preloadable(&file).map_err(EmulationError::from)?;
    }
    let mut command = Command::new(program_of_release.as_deref().map_or(program, Path::as_os_str));
    command.args(arguments);
    let mut emulation = emulation(args)?;
    if let Some(fetched) = &fetched {
        emulation = emulation.with_runtime_release(fetched);
        // If the program is `hsa-vmm`, it loads that release.
        command.env("HSA_VMM_RUNTIME", fetched.runtime());
    }
    emulation.apply(&mut command).map_err(EmulationError::from)?;
    crate::program::set_outer_command(&mut command, &arguments_to_repeat(args));
    check_configuration(args)?;
    args.log.iter().chain(&args.page_tables).try_for_each(|path| check_appendable(path))?;
    crate::program::become_program(command, program)
}

/// Returns the chosen release. Without `--rocr`, returns the newest downloaded release if it contains the program, and
/// the program is not in `PATH`.
fn fetched_release(args: &Emulate, program: &OsStr) -> anyhow::Result<Option<FetchedRelease>> {
    if let Some(release) = args.rocr {
        return Ok(Some(
            FetchedRelease::open(&folder().map_err(EmulationError::from)?, release)
                .map_err(EmulationError::from)?,
        ));
    }
    if find_program(program).is_some() {
        return Ok(None);
    }
    let newest = rocr::newest_downloaded().filter(|newest| newest.program(program).is_some());
    if let Some(newest) = &newest {
        note!("using {} and the runtime of release {}", program.display(), newest.release());
    }
    Ok(newest)
}

/// Checks that the emulated driver can append to a file. Without this check, only the driver would report the error,
/// inside of the program.
fn check_appendable(path: &Path) -> Result<(), EmulationError> {
    // Closing a FIFO would end its reader.
    if output::is_special(path) {
        return Ok(());
    }
    let opened = File::options().create(true).append(true).open(path);
    opened.map(drop).map_err(|cause| EmulationError::Output { path: path.to_owned(), cause })
}

/// Starts the emulated driver in another process. If its configuration is invalid, exits with the driver's message.
/// Without this check, a misspelt fault would be reported late or never.
fn check_configuration(args: &Emulate) -> anyhow::Result<()> {
    let mut command = hsa_rocr::restart_command().map_err(EmulationError::NotRestarted)?;
    command.args(["kfd-version", "--open"]);
    emulation(args)?.apply(&mut command).map_err(EmulationError::from)?;
    command.env_remove("HSA_KFD_LOG").env_remove("HSA_KFD_PAGE_TABLES");
    let started = Worker::start(command, Output::Capture);
    let mut worker = started.map_err(EmulationError::NotRestarted)?;
    // With the fault `OPEN=hang`, the process does not end.
    let Received::Exited(End::Exited(status)) = worker.receive::<()>(kfd_version::QUERY_LIMIT)
    else {
        return Ok(());
    };
    if status != i32::from(crate::BAD_USAGE) {
        return Ok(());
    }
    let message = worker.captured_output();
    let message = message.trim().trim_start_matches("hsa-kfd: ");
    // Messages about the configuration begin with the name of a variable.
    if !message.starts_with("HSA_KFD") {
        return Err(EmulationError::NoDriver(message.to_owned()).into());
    }
    let message = name_option(args, message).replace("HSA_KFD_FAULTS: ", "invalid fault plan: ");
    // Show the usage of this subcommand, not the usage of `hsa-vmm`.
    let mut command = Arguments::command();
    command.build();
    let command = command.find_subcommand_mut("emulate").context("no subcommand `emulate`")?;
    command.error(ErrorKind::InvalidValue, message).exit()
}

/// If the driver's message rejects the value of `--vram`, names this option instead of the variable `HSA_KFD`.
fn name_option(args: &Emulate, message: &str) -> String {
    let problem_of_vram = |size: &str| {
        let setting = format!("HSA_KFD: {:?}: ", format!("vram={}", size.trim_end()));
        message.strip_prefix(&setting).map(str::to_owned)
    };
    match args.vram.as_deref().and_then(|size| Some((size, problem_of_vram(size)?))) {
        Some((size, problem)) => format!("invalid value '{size}' for '--vram <SIZE>': {problem}"),
        None => message.to_owned(),
    }
}

/// Returns the value of `--vram`, which the driver parses. Rejects a comma, which would begin another setting.
fn parse_vram(text: &str) -> Result<String, &'static str> {
    if text.contains(',') { Err("expected a size such as 64GiB") } else { Ok(text.to_owned()) }
}

/// Returns the subcommand and its options as a user types them, without output files.
fn arguments_to_repeat(args: &Emulate) -> Vec<String> {
    let mut arguments = vec!["emulate".to_owned()];
    let mut add = |option: &str, value: Option<String>| {
        arguments.extend(value.into_iter().flat_map(|value| [format!("--{option}"), value]));
    };
    add("gpus", args.gpus.map(|number| number.to_string()));
    add(
        "machine",
        args.machine.and_then(|machine| Some(machine.to_possible_value()?.get_name().to_owned())),
    );
    add("vram", args.vram.clone());
    add("rocr", args.rocr.map(|release| release.to_string()));
    for plan in &args.fault {
        add("fault", Some(plan.clone()));
    }
    arguments
}

fn emulation(args: &Emulate) -> Result<Emulation, EmulationError> {
    let mut emulation = args.gpus.map(Emulation::with_gpus).unwrap_or_default();
    if let Some(machine) = args.machine {
        emulation = emulation.with_profile(match machine {
            EmulatedMachine::Mi300x => "mi300x",
            EmulatedMachine::Mi210 => "mi210",
            EmulatedMachine::Rdna3 => "rdna3",
            EmulatedMachine::Apu => "apu",
        });
    }
    if let Some(size) = &args.vram {
        emulation = emulation.with_vram(size);
    }
    // The program can change its current folder.
    let absolute = |path: &PathBuf| {
        let absolute = std::path::absolute(path);
        absolute.map_err(|cause| EmulationError::Output { path: path.clone(), cause })
    };
    if let Some(file) = &args.log {
        emulation = emulation.with_log(absolute(file)?);
    }
    if let Some(file) = &args.page_tables {
        emulation = emulation.with_page_tables(absolute(file)?);
    }
    Ok(args.fault.iter().fold(emulation, |emulation, plan| emulation.with_faults(plan)))
}
