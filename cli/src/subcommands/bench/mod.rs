//! `hsa-vmm bench`: measures the cost of calls.

mod plot;

use crate::arguments::CommonOptions;
use crate::choice::RuntimeChoice;
use crate::output::Output;
use crate::progress;
use crate::screen::note;
use crate::table::{Cell, TextTable, table};
use crate::{BadUsage, Exit};
use anyhow::bail;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use hsa_vmm::vmm::{Quirks, VmmOptions};
use hsa_vmm_bench::{Backend, BenchRuntime, Level, LibraryFile, Measurement, Operation, Options};
use hsa_vmm_conformance::describe::{RuntimeDescription, describe};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hsa-vmm bench --runtime nothing                   this library alone
  hsa-vmm bench --runtime nothing --live 1,1000000  with a million mappings
  hsa-vmm bench --runtime nothing --format svg -o cost.svg
  hsa-vmm emulate --rocr 6.4.3 -- hsa-vmm bench --hip …/libamdhip64.so.6

The levels are raw (the runtime's own calls), vmm (`Vmm`), owned (`Reservation`,
`Allocation` and `Mapping`) and c (the C interface).
`±` is half the width of the median's 95 % confidence interval. `over raw` is
the median minus the median of the runtime's own call.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(flatten)]
    pub common: CommonOptions,
    /// The number of mappings that exist while calls are measured; a list (1,1000) repeats the measurement for each
    /// number
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub live: Vec<u32>,
    /// The number of samples of each operation
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub samples: u32,
    /// Measure only these levels: raw, vmm, owned, c
    #[arg(long, value_name = "LEVELS", value_delimiter = ',')]
    pub level: Vec<LevelName>,
    /// Measure only these operations: map,cycle,…
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    pub operation: Vec<OperationName>,
    /// Disable the workarounds for defects of the runtime, or only those of QUIRKS (needs --runtime nothing; not at
    /// level c)
    #[arg(long, value_name = "QUIRKS", num_args = 0..=1, require_equals = true, value_delimiter = ',',
          default_missing_value = "all", hide_possible_values = true, value_parser = quirk_names(),
          conflicts_with_all = ["barrier", "page_tables", "no_execute"])]
    pub no_workarounds: Vec<String>,
    /// Wait at the end of each call until page tables have changed (not at level c)
    #[arg(long)]
    pub barrier: bool,
    /// Control the GPUs' page tables, to enforce permissions (not at level c)
    #[arg(long)]
    pub page_tables: bool,
    /// Control the GPUs' page tables, and let no GPU execute code in the memory (not at level c)
    #[arg(long)]
    pub no_execute: bool,
    /// Measure HIP itself, too: the path of libamdhip64
    #[arg(long, value_name = "PATH")]
    pub hip: Option<PathBuf>,
    /// The format of the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: BenchFormat,
    #[command(flatten)]
    pub output: Output,
}

/// The format of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// A chart of cost against live mappings
    Svg,
}

macro_rules! argument_value {
    ($name:ident, $of:ident, [$($variant:ident),*]) => {
        /// The value of an argument, with the name that the results use.
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pub $of);

        impl ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                &[$(Self($of::$variant)),*]
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                Some(self.0.name().into())
            }
        }
    };
}
argument_value!(LevelName, Level, [Raw, Vmm, Owned, C]);
argument_value!(
    OperationName,
    Operation,
    [
        Open, Reserve, Create, Map, SetAccess, GetAccess, Retain, Properties, Export, Import,
        Unmap, Release, Free, Cycle
    ]
);

pub fn run(args: &Bench) -> anyhow::Result<Exit> {
    args.output.check_writable()?;
    if args.format == BenchFormat::Svg {
        args.check_chart()?;
    }
    let mut bench = args.open_runtime()?;
    let mut levels: Vec<Level> = args.level.iter().map(|name| name.0).collect();
    if levels.is_empty() {
        levels = vec![Level::Raw, Level::Vmm, Level::Owned];
        // The C interface does not have the options of `Vmm`.
        levels.extend((!args.has_vmm_options()).then_some(Level::C));
    }
    levels.extend(args.hip.as_ref().map(|_| Level::Hip));
    let live = match (&args.live[..], args.format) {
        ([], BenchFormat::Svg) => vec![1, 10, 100, 1000, 10_000, 100_000, 1_000_000],
        ([], _) => vec![1],
        (given, _) => given.to_vec(),
    };
    let (measures_open, operations) = args.selected_operations();
    let live = if operations.is_empty() { Vec::new() } else { live };
    let bar = progress::bar(100 * (live.len() as u64 + u64::from(measures_open)), "bench");
    let mut results = Vec::new();
    if measures_open {
        let (backend, samples) = (bench.backend().clone(), args.samples as usize);
        // Close this instance first. Otherwise, the measured time would be too short, because opening a runtime is
        // cheap while another instance is open.
        drop(bench);
        let mut on_progress = |fraction: f64| bar.set_position((fraction * 100.0) as u64);
        results.extend(hsa_vmm_bench::measure_opening(
            &backend,
            samples,
            &levels,
            &mut on_progress,
        )?);
        bench = args.with_vmm_options(BenchRuntime::open(backend)?)?;
    }
    for (number, &live) in live.iter().enumerate() {
        let number = number + usize::from(measures_open);
        let options = Options {
            live: live as usize,
            samples: args.samples as usize,
            levels: levels.clone(),
            operations: operations.clone(),
            // SAFETY: the user chose the file, whose code runs when it is loaded.
            hip: args.hip.as_ref().map(|path| unsafe { LibraryFile::new(path) }),
        };
        let mut on_progress =
            |fraction: f64| bar.set_position(100 * number as u64 + (fraction * 100.0) as u64);
        results.extend(hsa_vmm_bench::measure(&bench, &options, &mut on_progress)?);
    }
    bar.finish_and_clear();
    let text = match args.format {
        BenchFormat::Table => {
            args.output.write(|out| Ok(out.write_table(&results_table(&results))?))?;
            remarks(&results).iter().for_each(|remark| note!("{remark}"));
            return Ok(Exit::Success);
        }
        BenchFormat::Json => {
            let runtime: RuntimeDescription = describe(bench.runtime()).runtime;
            let quirks = bench.quirks();
            let worked_around = Quirks::KNOWN.iter().filter(|quirk| quirks.has(quirk));
            let worked_around: Vec<_> = worked_around.map(|quirk| quirk.name).collect();
            let report =
                json!({ "runtime": runtime, "works_around": worked_around, "results": results });
            serde_json::to_string_pretty(&report)? + "\n"
        }
        BenchFormat::Svg => plot::draw(&results)?,
    };
    args.output.write(|out| Ok(out.write_all(text.as_bytes())?))?;
    Ok(Exit::Success)
}

/// Accepts the names of quirks, and `all`.
fn quirk_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Quirks::KNOWN.iter().map(|quirk| quirk.name).chain(["all"]))
}

impl Bench {
    /// Returns whether to measure opening, and the other operations to measure.
    fn selected_operations(&self) -> (bool, Vec<Operation>) {
        let mut selected: Vec<Operation> = self.operation.iter().map(|name| name.0).collect();
        let (measures_all, measures_open) =
            (selected.is_empty(), selected.contains(&Operation::Open));
        selected.retain(|&operation| operation != Operation::Open);
        match measures_all {
            // The chart shows only operations that depend on live mappings.
            true => (self.format != BenchFormat::Svg, Operation::ROUND.to_vec()),
            false => (measures_open, selected),
        }
    }

    /// Checks that the chart can show some of the results.
    fn check_chart(&self) -> anyhow::Result<()> {
        let (_, operations) = self.selected_operations();
        if !operations.iter().any(|operation| plot::OPERATIONS.contains(operation)) {
            let names = plot::OPERATIONS.map(Operation::name).join(", ");
            bail!(BadUsage(format!("--format svg shows only these operations: {names}")));
        }
        if !self.level.is_empty() && !self.level.iter().any(|level| level.0 == Level::Vmm) {
            bail!(BadUsage("--format svg shows only level vmm".to_owned()));
        }
        Ok(())
    }

    fn has_vmm_options(&self) -> bool {
        !self.no_workarounds.is_empty() || self.barrier || self.page_tables || self.no_execute
    }

    /// Opens the `Vmm` with the options that were given.
    fn with_vmm_options(&self, bench: BenchRuntime) -> anyhow::Result<BenchRuntime> {
        if !self.has_vmm_options() {
            return Ok(bench);
        }
        if self.level.iter().any(|level| level.0 == Level::C) {
            let options = "--no-workarounds, --barrier, --page-tables and --no-execute";
            bail!(BadUsage(format!("{options} do not support level c")));
        }
        if !self.no_workarounds.is_empty() {
            return Ok(bench.without_workarounds(&self.no_workarounds)?);
        }
        let options = VmmOptions::new()
            .with_barrier(self.barrier)
            .with_page_tables(self.page_tables)
            .with_no_execute(self.no_execute);
        Ok(bench.with_options(options)?)
    }

    /// Opens the chosen runtime. `nothing` opens a simulation whose virtual memory calls do nothing.
    fn open_runtime(&self) -> anyhow::Result<BenchRuntime> {
        if let RuntimeChoice::Library(path) = &self.common.runtime.choice
            && path.as_os_str() == "nothing"
        {
            if self.common.runtime.sim.is_some() || self.hip.is_some() {
                let message = "--runtime nothing does not support --sim, HSA_SIM and --hip";
                bail!(BadUsage(message.to_owned()));
            }
            let gpus = self.common.runtime.gpus.unwrap_or(1);
            let bench = BenchRuntime::open(Backend::Simulated(format!("nothing,gpus={gpus}")))?;
            note!("runtime: simulation whose virtual memory calls do nothing");
            return self.with_vmm_options(bench);
        }
        if !self.no_workarounds.is_empty() {
            bail!(BadUsage(
                "--no-workarounds needs --runtime nothing: other runtimes would crash without \
                 workarounds"
                    .to_owned()
            ));
        }
        let runtime = self.common.runtime.open()?;
        let backend = match runtime.info().path.clone() {
            // SAFETY: the library is already loaded and started.
            Some(path) => Backend::Loaded(unsafe { LibraryFile::new(path) }),
            None if self.hip.is_some() => {
                bail!(BadUsage(
                    "HIP does not run on the simulation; use AMD's runtime: `hsa-vmm emulate -- hsa-vmm bench`"
                        .to_owned()
                ));
            }
            None => Backend::Simulated(self.common.runtime.config_text().unwrap_or_default()),
        };
        self.with_vmm_options(BenchRuntime::on(runtime, backend)?)
    }
}

/// Returns a table with a row for each operation and level.
fn results_table(results: &[Measurement]) -> TextTable {
    let mut rows = table(&[
        "operation",
        "level",
        "live",
        "GPUs",
        "median",
        "±",
        "p99",
        "over raw",
        "±",
        "% of raw",
    ]);
    for result in results {
        let raw = result.over_raw_ns.map(|over| result.median_ns - over);
        let percent = raw.filter(|raw| *raw > 0.0).map(|raw| 100.0 * result.median_ns / raw);
        let cells = [
            result.live_mappings.to_string(),
            result.gpus.to_string(),
            format_time(result.median_ns),
            format_time(half_width(result)),
            format_time(result.p99_ns),
            result.over_raw_ns.map(format_time).unwrap_or_default(),
            result.over_raw_error_ns.map(format_time).unwrap_or_default(),
            percent.map(|percent| format!("{percent:.0}")).unwrap_or_default(),
        ];
        let names = [result.operation.name(), result.level.name()].map(Cell::from);
        rows.add_row(names.into_iter().chain(cells.map(|text| Cell::from(text).align_right())));
    }
    rows
}

/// Returns half the width of the median's confidence interval.
fn half_width(result: &Measurement) -> f64 {
    (result.median_high_ns - result.median_low_ns) / 2.0
}

/// Returns remarks about noise and negative costs.
fn remarks(results: &[Measurement]) -> Vec<String> {
    /// The largest half width of an interval that does not count as noise, as a fraction of the median.
    const MAX_ERROR: f64 = 0.05;
    let name =
        |result: &Measurement| format!("{} at {}", result.operation.name(), result.level.name());
    let mut remarks = Vec::new();
    let noisy = results.iter().filter(|result| half_width(result) > MAX_ERROR * result.median_ns);
    let noisy: Vec<_> = noisy.map(name).collect();
    if let Some(first) = noisy.first() {
        remarks.push(format!(
            "noisy: the median of {} of {} rows ({first}, …) is uncertain by more than {:.0} %; use an \
             idle machine, a fixed clock frequency, or more --samples",
            noisy.len(),
            results.len(),
            MAX_ERROR * 100.0
        ));
    }
    let is_negative = |result: &&Measurement| result.over_raw_ns.is_some_and(|over| over < 0.0);
    let is_within_error = |result: &Measurement| {
        let (over, error) =
            (result.over_raw_ns.unwrap_or(0.0), result.over_raw_error_ns.unwrap_or(0.0));
        over + error >= 0.0
    };
    let (within, beyond): (Vec<_>, Vec<_>) =
        results.iter().filter(is_negative).partition(|result| is_within_error(result));
    if let Some(first) = within.first() {
        remarks.push(format!(
            "negative `over raw` ({}, …): the difference is smaller than its uncertainty",
            name(first)
        ));
    }
    if let Some(first) = beyond.first() {
        remarks.push(format!(
            "negative `over raw` ({}, …): the level makes fewer or cheaper calls of the runtime than the raw \
             level; for example, the library answers queries from its own records",
            name(first)
        ));
    }
    remarks
}

/// Formats a time: `83 ns`, `1.28 µs`.
fn format_time(nanoseconds: f64) -> String {
    match nanoseconds.abs() {
        absolute if absolute < 9.95 => format!("{nanoseconds:.1} ns"),
        absolute if absolute < 999.5 => format!("{nanoseconds:.0} ns"),
        absolute if absolute < 999_500.0 => format!("{:.2} µs", nanoseconds / 1e3),
        _ => format!("{:.2} ms", nanoseconds / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Measurement, Operation, remarks};

    #[test]
    fn remarks_explain_noise_and_negative_costs() {
        let result = |half_width: f64, over_raw: f64| Measurement {
            operation: Operation::GetAccess,
            level: Level::Vmm,
            live_mappings: 1,
            gpus: 1,
            median_ns: 100.0,
            median_low_ns: 100.0 - half_width,
            median_high_ns: 100.0 + half_width,
            p99_ns: 200.0,
            over_raw_ns: Some(over_raw),
            over_raw_error_ns: Some(half_width),
            samples: 10,
            calls_per_sample: 1,
        };
        let assert_remarks = |half_width, over_raw, expected: &[&str]| {
            let found = remarks(&[result(half_width, over_raw)]);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.contains(expected), "{found}");
                assert!(found.contains("get_access at vmm"), "{found}");
            }
        };
        assert_remarks(4.0, 20.0, &[]);
        assert_remarks(6.0, 20.0, &["noisy: the median of 1 of 1 rows"]);
        assert_remarks(4.0, -3.0, &["smaller than its uncertainty"]);
        assert_remarks(4.0, -5.0, &["from its own records"]);
        assert_remarks(6.0, -5.0, &["noisy", "smaller than its uncertainty"]);
    }

    #[test]
    fn format_time_rounds_and_chooses_unit() {
        for (nanoseconds, text) in [
            (0.04, "0.0 ns"),
            (-3.21, "-3.2 ns"),
            (83.2, "83 ns"),
            (999.4, "999 ns"),
            (1284.0, "1.28 µs"),
            (999_499.0, "999.50 µs"),
            (12_345_678.0, "12.35 ms"),
        ] {
            assert_eq!(super::format_time(nanoseconds), text);
        }
    }
}
