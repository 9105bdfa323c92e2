//! `hsa-vmm man`: generates the manual pages from the arguments.

use crate::Exit;
use crate::arguments::Arguments;
use crate::standard_output::StandardOutput;
use anyhow::Context;
use clap::{Args, CommandFactory};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct Man {
    /// Write all pages to this folder: hsa-vmm.1, hsa-vmm-info.1, …; without a folder, print the
    /// first page (`hsa-vmm man | man -l -`)
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// Writes the pages to a temporary folder and moves each to `folder`. Replaces symbolic links instead of
/// following them.
fn write_pages(command: clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let temporary = tempfile::Builder::new().prefix(".hsa-vmm-").tempdir_in(folder)?;
    clap_mangen::generate_to(command, &temporary)?;
    for page in fs::read_dir(&temporary)? {
        let page = page?;
        let name = page.file_name();
        let mut text = fs::read_to_string(page.path())?;
        text.push_str(&sections(&name.to_string_lossy()));
        fs::write(page.path(), text)?;
        fs::rename(page.path(), folder.join(name))?;
    }
    Ok(())
}

/// The exit statuses of `hsa-vmm`, and of subcommands without a list of their own.
const STATUSES: &[(&str, &str)] = &[
    ("0", "Success."),
    ("1", "Something failed."),
    ("2", "Invalid usage, nothing was selected, or the results cannot be written."),
    ("3", "There is no runtime, or the runtime does not start."),
];
/// The exit statuses of `vm fetch`.
const STATUSES_OF_VM_FETCH: &[(&str, &str)] = &[
    ("0", "Success."),
    ("2", "Invalid usage, or the results cannot be written."),
    ("125", "The kernel or AMD's runtime cannot be fetched."),
];

/// The exit statuses of `emulate`, `record` and `vm`.
const STATUSES_OF_PROGRAMS: &[(&str, &str)] = &[
    ("2", "Invalid usage."),
    ("125", "The emulation, the recording or the virtual machine failed."),
    ("126", "The program is not executable."),
    ("127", "The program was not found."),
    ("other", "The exit status of the program."),
];

/// The exit statuses of `rocr run`.
const STATUSES_OF_ROCR_RUN: &[(&str, &str)] = &[
    ("2", "Invalid usage."),
    ("3", "The release was not fetched."),
    ("126", "The program is not executable."),
    ("127", "The program was not found."),
    ("other", "The exit status of the program."),
];

/// The environment variables of the command.
const VARIABLES: &[(&str, &str)] = &[
    ("HSA_VMM_RUNTIME", "The runtime to load: a path, or `sim` for the simulation."),
    ("HSA_SIM", "The simulation: `gpus=4,era=a,granule=2m,vram=1g`."),
    ("HSA_VMM_PROFILE", "The HIP version whose error codes are expected: `hip6` or `hip7`."),
    ("HSA_VMM_LOG", "The log level: `error`, `warn`, `info`, `debug` or `trace`."),
    ("ROCM_PATH", "The folder of ROCm."),
    ("HSA_VMM_ROCR", "Where fetched releases of AMD's runtime are stored."),
    ("HSA_VMM_MIRROR", "The Debian mirror to fetch from, if not the machine's own."),
    ("HSA_VMM_VM", "Where fetched kernels for `vm` are stored."),
    ("HSA_VMM_VM_MODULE", "The source of the kernel module of `vm`."),
    ("HSA_VMM_KFD", "The emulated driver, `libhsa_kfd.so`, if it is not beside the command."),
    ("HSA_KFD", "The emulated driver: `gpus=2,vram=64GiB,tlb=on`."),
    ("HSA_VMM_RECORDER", "The recorder, `libhsa_record.so`, if it is not beside the command."),
    (
        "HSA_ENABLE_IPC_MODE_LEGACY",
        "How AMD's runtime shares memory by IPC: `1` by the driver's own method, `0` by dma-bufs.",
    ),
    ("HSA_VMM_UNDER", "Set by `emulate`, `vm` and `rocr run`: how the program was started."),
];

/// Returns the sections `EXIT STATUS` and `ENVIRONMENT` of a page.
fn sections(page: &str) -> String {
    let statuses = match page {
        "hsa-vmm-emulate.1" | "hsa-vmm-record.1" | "hsa-vmm-vm.1" => STATUSES_OF_PROGRAMS,
        "hsa-vmm-vm-fetch.1" => STATUSES_OF_VM_FETCH,
        "hsa-vmm-rocr-run.1" => STATUSES_OF_ROCR_RUN,
        _ => STATUSES,
    };
    let mut text = String::new();
    for (title, entries) in [("EXIT STATUS", statuses), ("ENVIRONMENT", VARIABLES)] {
        text += &format!(".SH \"{title}\"\n");
        for (name, meaning) in entries {
            text += &format!(".TP\n\\fB{name}\\fR\n{meaning}\n");
        }
    }
    text
}

pub fn run(args: &Man) -> anyhow::Result<Exit> {
    let command = Arguments::command().disable_help_subcommand(true);
    match &args.folder {
        Some(folder) => write_pages(command, folder)
            .with_context(|| format!("cannot write the pages to {}", folder.display()))?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            page.extend(sections("hsa-vmm.1").into_bytes());
            StandardOutput.write_all(&page)?;
        }
    }
    Ok(Exit::Success)
}
