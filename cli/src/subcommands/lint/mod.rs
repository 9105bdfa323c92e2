//! `hsa-vmm lint`: finds mistakes in a recording.

mod source_lines;

use crate::arguments::Format;
use crate::file_kind::FileKind;
use crate::output::Output;
use crate::screen::note;
use crate::{BadUsage, Exit};
use clap::Args;
use hsa_vmm_conformance::hsa_trace::Recording;
use hsa_vmm_conformance::hsa_trace::lint::{Finding, lint};
use std::io::Write;
use std::path::PathBuf;

pub const ABOUT: &str = "\
Mistakes:
  use-after-unmap  addresses used after hsa_amd_vmem_unmap, or a handle after
                   its last release
  never-granted    a mapping to which no agent ever has access, or to which no
                   agent has access when the mapping is copied or filled
                   (exports while mapped count as access of the CPU)
  owner-not-last   another GPU gets access after the GPU that owns the memory
                   (ROCm 7.14 rejects this, or corrupts the mapping)
  range-cut        a range begins or ends inside a mapping or a reservation
  leak             a handle, mapping or reservation is never released
  vmem-in-ipc      virtual memory in hsa_amd_ipc_memory_create

Exit status: 0 no mistakes, 1 mistakes, 2 invalid usage or a file that is no
recording.";

#[derive(Args, Debug)]
pub struct Lint {
    /// The file that `hsa-vmm record` wrote
    ///
    /// If it was written with `--stacks`, the call stack of each mistake is shown.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The format of the result
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    #[command(flatten)]
    pub output: Output,
}

pub fn run(args: &Lint) -> anyhow::Result<Exit> {
    args.output.check_writable()?;
    let recording =
        Recording::open(&args.file).map_err(|cause| match FileKind::of(&args.file) {
            None | Some(FileKind::Recording) => BadUsage::cannot_read(&args.file, cause),
            Some(kind) => kind.not_read_by("lint", &args.file),
        })?;
    let mut findings = lint(&recording);
    source_lines::add_source_lines(&mut findings);
    args.output.write(|out| {
        match args.format {
            Format::Json => {
                out.keep_utf8();
                serde_json::to_writer_pretty(&mut *out, &findings)?;
                writeln!(out)?;
            }
            Format::Table => findings.iter().try_for_each(|finding| print_finding(out, finding))?,
        }
        Ok(())
    })?;
    if !recording.complete {
        note!(
            "the recording ends early, because the program crashed or was killed, or because the disk was full: \
             leaks are not shown"
        );
    }
    let calls = recording.calls.len();
    let count: u64 = findings.iter().map(|finding| finding.count).sum();
    let (calls_word, mistakes_word) = (
        if calls == 1 { "call" } else { "calls" },
        if count == 1 { "mistake" } else { "mistakes" },
    );
    note!("{count} {mistakes_word} in {calls} {calls_word}");
    Ok(if findings.is_empty() { Exit::Success } else { Exit::Failure })
}

fn print_finding(out: &mut impl Write, finding: &Finding) -> std::io::Result<()> {
    let Finding { mistake, line, call, message, count, pending, .. } = finding;
    write!(out, "{}: line {line} of the recording: {call}: {message}", mistake.name())?;
    if *count > 1 {
        write!(out, " ({count} times)")?;
    }
    if *pending {
        write!(out, "; the call did not return")?;
    }
    writeln!(out)?;
    for frame in &finding.stack {
        writeln!(out, "    {frame}")?;
    }
    Ok(())
}
