//! Reports that the runtime did not start.

use super::arguments::{Conform, ReportFormat};
use super::ktap::KtapStream;
use crate::{program, provenance};
use anyhow::Context;
use hsa_vmm_conformance::NotStarted;
use std::io::Write;
use std::path::Path;

/// Reports in the formats KTAP, JUnit and HTML that the runtime did not start. Instead of the table, prints the planned
/// faults to standard output. The other formats cannot report this, and an earlier file stays as it is.
/// `failed_requests` are the requests to the emulated driver that failed during the start. `selected` is the number of
/// selected cases.
pub fn write_not_started(
    args: &Conform,
    stream: Option<KtapStream>,
    error: &anyhow::Error,
    failed_requests: Vec<String>,
    selected: usize,
) -> anyhow::Result<()> {
    let report = not_started(args, error, failed_requests, selected);
    let has_faults = !report.provenance.planned_faults.is_empty();
    match (args.format, stream) {
        (_, Some(stream)) => stream.bail_out(&report).context("cannot write the results"),
        (ReportFormat::Junit, _) => write_text(args, &report.junit()),
        (ReportFormat::Html, _) => write_text(args, &report.html()?),
        (ReportFormat::Table, _) if !args.output.has_path() && has_faults => args
            .output
            .write(|out| Ok(provenance::print_banner(out, &report.provenance.planned_faults)?)),
        _ => Ok(()),
    }
}

fn not_started(
    args: &Conform,
    error: &anyhow::Error,
    failed_requests: Vec<String>,
    selected: usize,
) -> NotStarted {
    let config = args.common.runtime.config_text();
    let mut provenance = provenance::describe_run(None, config.as_deref(), String::new());
    provenance::shorten_paths(&mut provenance);
    args.privacy.clean_provenance(&mut provenance);
    let output = failed_requests.iter().map(|line| args.privacy.clean_text(line)).collect();
    let reason = args.privacy.clean_text(&crate::error_message(error));
    // Does not open the device: this may be what crashed or hung.
    let is_simulation = !Path::new("/dev/kfd").exists();
    let bringup = args.common.runtime.bringup_command(is_simulation);
    let bringup = args.privacy.clean_text(&program::without_program_folder(&bringup));
    // As in standard error, suggest `bringup` only if there is no runtime or it does not start.
    let bringup = crate::is_no_runtime(error).then_some(bringup);
    NotStarted { reason, output, bringup, selected, provenance }
}

fn write_text(args: &Conform, text: &str) -> anyhow::Result<()> {
    args.output.write(|out| {
        out.keep_utf8();
        Ok(writeln!(out, "{text}")?)
    })
}
