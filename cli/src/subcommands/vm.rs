//! `hsa-vmm vm`: runs a program on AMD's own kernel driver in a virtual machine.

use super::rocr;
use crate::progress::Steps;
use crate::screen::{Screen, note};
use crate::{BadUsage, Exit, output, standard_output};
use anyhow::Context;
use clap::{Args, Subcommand};
use hsa_rocr::{Emulation, FetchedRelease, Release, find_program};
use hsa_vm::{EngineFaults, FetchError, Kernel, Machine, NotFetched, PlanError, RunError};
use rustix::io::{Errno, retry_on_intr};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub const ABOUT: &str = "\
Examples:
  hsa-vmm vm fetch
  hsa-vmm vm fetch --tree ~/linux
  hsa-vmm vm --gpus 2 --rocr 7.2.4 -- hsa-vmm conform
  hsa-vmm vm --log calls.log --page-tables tables.txt -- hsa-vmm conform
  hsa-vmm vm --keep -- hsa-vmm conform --filter 'map.*'
  hsa-vmm vm --fault TLB_FLUSH=lost -- hsa-vmm bringup
  hsa-vmm vm --stub amdgpu_vm_bo_map -- hsa-vmm conform

Exit status: the program's; 128 plus the signal's number if a signal ended it;
125 if the virtual machine failed, 126 if the program is not executable,
127 if it was not found.";

/// The exit status of failures of the virtual machine itself.
pub const FAILED: u8 = 125;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Vm {
    #[command(subcommand)]
    pub action: Option<Action>,
    #[command(flatten)]
    pub run: VmRun,
}

/// The subcommands of `vm`.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Download a kernel with its headers and source, and compile the module of the software GPUs for it
    ///
    /// apt-get downloads the packages from the package sources of this machine, and checks their signatures.
    /// As root, also installs QEMU and a compiler if they are missing. The files are stored in the folder that
    /// HSA_VMM_VM names. Without HSA_VMM_VM, they are stored in `vm` beside the fetched releases of AMD's runtime (in
    /// cargo's build folder or the user's cache). If no release of AMD's runtime was downloaded yet, also
    /// downloads the newest release.
    Fetch(VmFetch),
}

#[derive(Args, Debug)]
pub struct VmFetch {
    /// The kernel, such as `6.12.117+deb12-amd64`; by default the newest of Linux 6.12
    #[arg(long, value_name = "RELEASE")]
    pub kernel: Option<String>,
    /// Use the kernel that was compiled in this source tree of Linux 6.12 instead of Debian's
    ///
    /// Run `make bzImage modules` in the tree first; the modules need not be installed. After `make O=BUILD`, give
    /// the folder BUILD. Only busybox comes from the package sources. This command prints the kernel's
    /// release. To use the kernel later, pass this release to `vm --kernel`.
    #[arg(long, value_name = "FOLDER", conflicts_with = "kernel")]
    pub tree: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct VmRun {
    /// The number of GPUs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: u8,
    /// The memory of each GPU, a power of two: `512M`, `1G`
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_power_of_two)]
    pub vram: u64,
    /// The memory of the virtual machine: `4G`
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_mebibytes)]
    pub memory: u64,
    /// Run the program with this release of AMD's runtime, fetched by `rocr fetch`
    ///
    /// The programs that the program starts use the release, too, with its loader and its C library.
    /// By default, a program in PATH uses the runtime that is installed on this machine. The newest downloaded
    /// release is used by `hsa-vmm`, if HSA_VMM_RUNTIME is not set, and by that release's programs (such as
    /// `rocminfo`) that are not in PATH.
    #[arg(long, value_name = "VERSION", value_parser = rocr::parse_release)]
    pub rocr: Option<Release>,
    /// The kernel, as printed by `vm fetch`; by default the kernel fetched last
    #[arg(long, value_name = "RELEASE")]
    pub kernel: Option<String>,
    /// Set a parameter of a kernel module: `amdgpu.vm_update_mode=0`, `hsa_vmm.pte_delay=50`
    ///
    /// Parameters of the software GPUs: `hsa_vmm.xgmi=0` connects the GPUs by PCIe. `hsa_vmm.visible=256`
    /// limits the CPU's access to 256 MiB of each GPU. `hsa_vmm.tlb=0` disables the TLB.
    /// `hsa_vmm.engines=1` gives each GPU one SDMA engine instead of two.
    /// `hsa_vmm.pte_delay=50` delays page-table writes of the kernel's SDMA engine by 50 milliseconds,
    /// starting at boot.
    #[arg(long, value_name = "NAME=VALUE")]
    pub parameter: Vec<String>,
    /// Inject faults into the GPUs' engines: `COPY=garbled`, `TLB_FLUSH#3=lost`, `PTE_WRITE=late:5ms`
    ///
    /// OPERATION=EFFECT applies to every such operation while the program runs, OPERATION#3=EFFECT to the
    /// third, #3-5 and #3- to several. User queues perform COPY and FILL. The kernel's SDMA engine performs
    /// KERNEL_COPY, KERNEL_FILL and, with `--parameter amdgpu.vm_update_mode=0`, PTE_WRITE (a write of page-table
    /// entries). The other operations are TLB_FLUSH and INTERRUPT. An operation can take longer (`5ms`), be
    /// performed after it was reported as done (`late:5ms`), or have no effect (`lost`). Copies and fills
    /// can also flip a bit (`garbled`) or use half the size (`half`); COPY and FILL can stop their queue
    /// (`hang`). The option can be repeated.
    #[arg(long, value_name = "PLAN", value_parser = parse_faults)]
    pub fault: Vec<String>,
    /// Allow the program to write to this folder, which is created if it is missing
    #[arg(long, value_name = "FOLDER")]
    pub results: Option<PathBuf>,
    /// Write a line for each call of the kernel driver to this file, in the format of `emulate --log`
    ///
    /// Replaces the contents of an existing file. `emulate --log` appends instead.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write the GPUs' page tables to this file, at the normal exit of each process
    ///
    /// Replaces the contents of an existing file. `emulate --page-tables` appends instead.
    #[arg(long, value_name = "FILE")]
    pub page_tables: Option<PathBuf>,
    /// Write the kernel's log to this file
    #[arg(long, value_name = "FILE")]
    pub dmesg: Option<PathBuf>,
    /// Write to this file which functions of amdgpu.ko were called, and how often
    #[arg(long, value_name = "FILE")]
    pub coverage: Option<PathBuf>,
    /// Make a function of amdgpu.ko do nothing and return 0
    #[arg(long, value_name = "FUNCTION")]
    pub stub: Option<String>,
    /// Keep the virtual machine for the next `vm --keep` with the same options, until it has been idle for this time
    ///
    /// The next program starts in about a second. It does not see the previous program's processes and files.
    /// A machine whose kernel has warned or crashed is not used again. Only this user can use the machine. The time is
    /// ten minutes by default. To end an idle machine, run any program with `--keep=1s` and the same options.
    /// Cannot be combined with `--fault`, `--stub` and `--coverage`.
    #[arg(
        long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10min",
        value_parser = crate::arguments::parse_time, conflicts_with_all = ["stub", "fault", "coverage"]
    )]
    pub keep: Option<Duration>,
    /// Stop the virtual machine after this time
    #[arg(long, value_name = "TIME", default_value = "30min", value_parser = crate::arguments::parse_time)]
    pub time_limit: Duration,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// A failure of the virtual machine, not of the program.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    NotFetched(#[from] NotFetched),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    FetchRuntime(#[from] hsa_rocr::FetchError),
    #[error(transparent)]
    NoObject(#[from] hsa_rocr::NoObject),
    #[error(transparent)]
    NoRuntime(#[from] hsa_rocr::NotFetched),
    #[error(transparent)]
    UntrustedReleases(#[from] hsa_rocr::UntrustedFolder),
    #[error(transparent)]
    UntrustedKernels(#[from] hsa_vm::UntrustedFolder),
    #[error("invalid --results: {path}: {cause}", path = path.display())]
    Results { path: PathBuf, cause: io::Error },
    #[error("invalid --parameter `{0}`: expected MODULE.NAME=VALUE without spaces")]
    Parameter(String),
}

/// Checks a fault plan.
fn parse_faults(text: &str) -> Result<String, PlanError> {
    text.parse::<EngineFaults>().map(|_| text.to_owned())
}

/// Parses a size such as `512M`, `1G` or `1GiB`. Returns the number of MiB.
fn parse_mebibytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "M" | "MiB" => 1,
        "G" | "GiB" => 1024,
        _ => return Err(format!("invalid size `{text}`: expected a number with M or G")),
    };
    let number: u64 = number.parse().map_err(|_| format!("invalid size `{text}`"))?;
    let size =
        number.checked_mul(unit).ok_or_else(|| format!("invalid size `{text}`: too large"))?;
    if size < 64 { Err(format!("invalid size `{text}`: at least 64M")) } else { Ok(size) }
}

/// Parses a size that is a power of two. Returns the number of MiB.
fn parse_power_of_two(text: &str) -> Result<u64, String> {
    let size = parse_mebibytes(text)?;
    if size.is_power_of_two() {
        Ok(size)
    } else {
        Err(format!("invalid size `{text}`: not a power of two"))
    }
}

pub fn run(args: &Vm) -> anyhow::Result<Exit> {
    match &args.action {
        Some(Action::Fetch(args)) => fetch(args),
        None => run_in_machine(&args.run),
    }
}

/// Runs the program inside the virtual machine.
pub fn run_guest() -> anyhow::Result<Exit> {
    hsa_vm::guest::run().context("cannot run the program of the virtual machine")?;
    Ok(Exit::Success)
}

fn folder() -> anyhow::Result<PathBuf> {
    Ok(hsa_vm::folder(&hsa_rocr::folder().map_err(VmError::from)?).map_err(VmError::from)?)
}

fn fetch(args: &VmFetch) -> anyhow::Result<Exit> {
    let steps = Steps::new();
    let mut report = |step: &str| steps.begin(step);
    let kernel = match &args.tree {
        Some(tree) => hsa_vm::use_tree(&folder()?, tree, &mut report),
        None => hsa_vm::fetch(&folder()?, args.kernel.as_deref(), &mut report),
    };
    let kernel = kernel.map_err(VmError::from)?;
    if rocr::newest_downloaded().is_none() {
        let newest = &Release::ALL[Release::ALL.len() - 1..];
        let folder = hsa_rocr::folder().map_err(VmError::from)?;
        hsa_rocr::fetch(newest, &folder, &mut |step| steps.begin(step)).map_err(VmError::from)?;
    }
    drop(steps);
    let mut out = Screen::stdout();
    writeln!(out, "{} in {}", kernel.release(), kernel.folder().display())?;
    Ok(Exit::Success)
}

fn run_in_machine(args: &VmRun) -> anyhow::Result<Exit> {
    output::check_different(&[
        ("--log", args.log.as_deref()),
        ("--page-tables", args.page_tables.as_deref()),
        ("--dmesg", args.dmesg.as_deref()),
        ("--coverage", args.coverage.as_deref()),
    ])?;
    if standard_output::is_closed() {
        return Err(BadUsage("standard output is closed; redirect it".to_owned()).into());
    }
    let command = guest_command(args)?;
    let kernel = Kernel::open(&folder()?, args.kernel.as_deref()).map_err(VmError::from)?;
    let mut machine = Machine::new(kernel).with_gpus(args.gpus).with_vram_mib(args.vram);
    machine = machine.with_memory_mib(args.memory).with_time_limit(args.time_limit);
    for parameter in &args.parameter {
        let is_valid = parameter.split_once('=').is_some_and(|(name, _)| name.contains('.'));
        if !is_valid || parameter.contains(|letter: char| letter.is_whitespace() || letter == '"') {
            return Err(VmError::Parameter(parameter.clone()).into());
        }
        machine = machine.with_parameter(parameter);
    }
    if let Some(folder) = &args.results {
        let failed = |cause| VmError::Results { path: folder.clone(), cause };
        std::fs::create_dir_all(folder).map_err(failed)?;
        machine = machine.with_results(folder.canonicalize().map_err(failed)?);
    }
    if let Some(idle) = args.keep {
        machine = machine.with_idle_timeout(idle);
    }
    if let Some(file) = &args.dmesg {
        machine = machine.with_dmesg(file);
    }
    if let Some(file) = &args.log {
        machine = machine.with_log(file);
    }
    if let Some(file) = &args.page_tables {
        machine = machine.with_page_tables(file);
    }
    if let Some(file) = &args.coverage {
        machine = machine.with_coverage(file);
    }
    if !args.fault.is_empty() {
        if !planned_page_table_faults_happen(args) {
            note!(
                "PTE_WRITE does not happen, because the CPU writes page tables; add --parameter amdgpu.vm_update_mode=0"
            );
        }
        machine = machine.with_faults(args.fault.join(",").parse()?);
    }
    if let Some(function) = &args.stub {
        machine = machine.with_stub(function);
    }
    let mut all_written = true;
    let report = |error| {
        note!("{error}");
        all_written = false;
    };
    let result = machine.run(&command, ProgramOutput, io::stderr(), report);
    let status = result.map_err(VmError::from)?.status;
    all_written &= !output::has_failed();
    // Keep the status of a program that failed.
    Ok(Exit::Program(if status == 0 && !all_written { FAILED } else { status }))
}

/// Writes the output of the program to standard output, without a buffer. Reports the first failure, except that the
/// reader has closed the pipe, which ends the program.
struct ProgramOutput;

impl Write for ProgramOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), bytes));
        written.map_err(|cause| {
            let is_first = !output::has_failed();
            if cause == Errno::PIPE {
                return cause.into();
            }
            let error = output::record_failure("to standard output", &cause.into());
            if is_first {
                note!("error: {error}");
            }
            error
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `false` if faults of page-table writes are planned, but the CPU writes the page tables. The CPU does this by
/// default, because it can access all memory of the GPUs.
fn planned_page_table_faults_happen(args: &VmRun) -> bool {
    let is_planned = args.fault.iter().any(|plan| plan.contains("PTE_WRITE"));
    // Bit 1 of the mode makes the CPU write the page tables of amdkfd's processes.
    let by_sdma = |parameter: &String| match parameter.strip_prefix("amdgpu.vm_update_mode=") {
        Some(mode) => mode.parse().is_ok_and(|mode: u8| mode & 2 == 0),
        None => parameter.starts_with("hsa_vmm.visible="),
    };
    !is_planned || args.parameter.iter().any(by_sdma)
}

/// Returns the command that the virtual machine runs.
fn guest_command(args: &VmRun) -> anyhow::Result<Command> {
    let (program, arguments) = crate::program::split_command_line(&args.program)?;
    let release = match args.rocr {
        Some(release) => {
            let folder = hsa_rocr::folder().map_err(VmError::from)?;
            Some(FetchedRelease::open(&folder, release).map_err(VmError::from)?)
        }
        None if find_program(program).is_some() && !needs_runtime(program) => None,
        // Use the newest downloaded release in two cases. In the first case, the release contains the program, and PATH
        // does not. In the second case, the program is `hsa-vmm`, which would otherwise find no runtime and use the
        // simulation.
        None => rocr::newest_downloaded()
            .filter(|newest| newest.program(program).is_some() || needs_runtime(program))
            .inspect(|newest| {
                let (name, release) = (program.display(), newest.release());
                note!("using {name} and the runtime of release {release}");
            }),
    };
    let program_of_release = release.as_ref().and_then(|release| release.program(program));
    let mut command = Command::new(program_of_release.as_deref().map_or(program, Path::as_os_str));
    command.args(arguments);
    let mut preloaded = Emulation::default();
    if let Some(release) = &release {
        // Programs that the program starts use the release, too.
        preloaded = preloaded.with_runtime_release(release);
        command.env("HSA_VMM_RUNTIME", release.runtime());
    }
    if args.log.is_some() {
        preloaded = preloaded.with_log(Machine::GUEST_LOG);
    }
    if args.page_tables.is_some() {
        preloaded = preloaded.with_page_tables(Machine::GUEST_PAGE_TABLES);
    }
    if preloaded != Emulation::default() {
        preloaded.apply(&mut command).map_err(VmError::from)?;
        // The preloaded object emulates nothing: AMD's driver performs the calls.
        command.env("HSA_KFD", "real");
    }
    crate::program::set_outer_command(
        &mut command,
        &machine_arguments(args, release.map(|it| it.release())),
    );
    Ok(command)
}

/// Returns whether a program (a path, or a name in `PATH`) is `hsa-vmm` itself, and `HSA_VMM_RUNTIME` names no runtime.
fn needs_runtime(program: &OsStr) -> bool {
    let canonical = |path: PathBuf| path.canonicalize().ok();
    let this_program = env::current_exe().ok().and_then(canonical);
    this_program.is_some()
        && find_program(program).and_then(canonical) == this_program
        && env::var_os("HSA_VMM_RUNTIME").is_none_or(|path| path.is_empty())
}

/// Returns `vm` and the options that describe the machine, including defaults and the release that was chosen. Omits
/// output files, `--results`, `--keep` and `--time-limit`.
fn machine_arguments(args: &VmRun, release: Option<Release>) -> Vec<String> {
    let mut arguments = vec!["vm".to_owned()];
    let mut add = |option: &str, value: String| arguments.extend([format!("--{option}"), value]);
    add("gpus", args.gpus.to_string());
    add("vram", format!("{}M", args.vram));
    add("memory", format!("{}M", args.memory));
    if let Some(kernel) = &args.kernel {
        add("kernel", kernel.clone());
    }
    if let Some(release) = release {
        add("rocr", release.to_string());
    }
    for parameter in &args.parameter {
        add("parameter", parameter.clone());
    }
    for plan in &args.fault {
        add("fault", plan.clone());
    }
    if let Some(function) = &args.stub {
        add("stub", function.clone());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::{
        machine_arguments, parse_mebibytes, parse_power_of_two, planned_page_table_faults_happen,
    };
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn machine_arguments_match_the_command_line() {
        let words = "vm --gpus 3 --vram 256M --memory 3072M --kernel 6.12.9 --rocr 6.4.3 --parameter a.b=1 \
                     --fault COPY=garbled --stub f";
        let line = format!("hsa-vmm {words} --log file -- true");
        let Command::Vm(vm) = Arguments::parse_from(line.split_whitespace()).command else {
            panic!("not vm");
        };
        let expected: Vec<_> = words.split_whitespace().collect();
        assert_eq!(machine_arguments(&vm.run, vm.run.rocr), expected);
    }

    #[test]
    fn page_table_faults_need_the_sdma_engine() {
        for (options, expected) in [
            ("--fault COPY=garbled", true),
            ("--fault COPY=garbled,PTE_WRITE=lost", false),
            ("--fault PTE_WRITE=lost --parameter hsa_vmm.tlb=0", false),
            ("--fault PTE_WRITE=lost --parameter amdgpu.vm_update_mode=0", true),
            ("--fault PTE_WRITE=lost --parameter amdgpu.vm_update_mode=3", false),
            ("--fault PTE_WRITE=lost --parameter hsa_vmm.visible=256", true),
        ] {
            let line = format!("hsa-vmm vm {options} -- true");
            let Command::Vm(vm) = Arguments::parse_from(line.split_whitespace()).command else {
                panic!("not vm");
            };
            assert_eq!(planned_page_table_faults_happen(&vm.run), expected, "{options}");
        }
    }

    #[test]
    fn size_parsers_check_unit_and_range() {
        assert_eq!(parse_mebibytes("3G"), Ok(3072));
        assert_eq!(parse_power_of_two("512MiB"), Ok(512));
        assert!(parse_power_of_two("3G").unwrap_err().contains("power of two"));
        assert!(parse_mebibytes("1").is_err() && parse_mebibytes("99999999999999999999G").is_err());
    }
}
