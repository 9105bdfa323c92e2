//! `hsa-vmm bench`: measures the cost of calls.

mod plot;

use crate::Exit;
use crate::arguments::Common;
use crate::choice::Choice;
use crate::output::Output;
use crate::progress;
use crate::screen::note;
use crate::table::{Cell, Rows, table};
use anyhow::bail;
use clap::{Args, ValueEnum};
use hsa_vmm::vmm::Quirks;
use hsa_vmm_bench::{Backend, BenchRuntime, Level, LibraryFile, Operation, Options, Result};
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

`over raw` is the median minus the median of the runtime's own call. For
`--runtime nothing`, calls of the runtime return success at once, so that only
this library's cost is measured.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(flatten)]
    pub common: Common,
    /// The number of live mappings at each level; several numbers run one after another: 1,1000
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub live: Vec<u32>,
    /// The number of samples of each operation
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub samples: u32,
    /// The number of calls averaged in a sample, 1 to 64; by default it depends on the runtime
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub calls: Option<u8>,
    /// Measure only these levels: raw, vmm, owned, c
    #[arg(long, value_name = "LEVELS", value_delimiter = ',')]
    pub level: Vec<LevelName>,
    /// Measure only these operations: map,cycle,…
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    pub operation: Vec<OperationName>,
    /// Disable the workarounds for defects of the runtime (`nothing` only; not for C)
    #[arg(long)]
    pub no_workarounds: bool,
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

macro_rules! by_name {
    ($name:ident, $of:ident, [$($variant:ident),*]) => {
        /// A value, parsed from the name that it has in results.
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
by_name!(LevelName, Level, [Raw, Vmm, Owned, C]);
by_name!(
    OperationName,
    Operation,
    [
        Open, Reserve, Create, Map, SetAccess, GetAccess, Retain, Properties, Export, Import,
        Unmap, Release, Free, Cycle
    ]
);

pub fn run(args: &Bench) -> anyhow::Result<Exit> {
    args.output.check()?;
    let mut setup = args.open_setup()?;
    let mut levels: Vec<Level> = args.level.iter().map(|name| name.0).collect();
    if levels.is_empty() {
        levels = vec![Level::Raw, Level::Vmm, Level::Owned];
        // The C interface has no option to disable workarounds.
        levels.extend((!args.no_workarounds).then_some(Level::C));
    }
    levels.extend(args.hip.as_ref().map(|_| Level::Hip));
    let live = match (&args.live[..], args.format) {
        ([], BenchFormat::Svg) => vec![1, 10, 100, 1000, 10_000, 100_000, 1_000_000],
        ([], _) => vec![1],
        (given, _) => given.to_vec(),
    };
    let (opens, operations) = args.operations();
    let live = if operations.is_empty() { Vec::new() } else { live };
    let bar = progress::bar(100 * (live.len() as u64 + u64::from(opens)), "bench");
    let mut results = Vec::new();
    if opens {
        let (backend, samples) = (setup.backend().clone(), args.samples as usize);
        // Opening is cheap while another instance is open, so close the open one first.
        drop(setup);
        let mut on_progress = |part: f64| bar.set_position((part * 100.0) as u64);
        results.extend(hsa_vmm_bench::opening(&backend, samples, &levels, &mut on_progress)?);
        setup = args.with_selected_workarounds(BenchRuntime::open(backend)?)?;
    }
    for (number, &live) in live.iter().enumerate() {
        let number = number + usize::from(opens);
        let options = Options {
            live: live as usize,
            samples: args.samples as usize,
            calls: args.calls.map(usize::from),
            levels: levels.clone(),
            operations: operations.clone(),
            // SAFETY: the user chose the file, whose code runs when it is loaded.
            hip: args.hip.as_ref().map(|path| unsafe { LibraryFile::new(path) }),
        };
        let mut on_progress =
            |part: f64| bar.set_position(100 * number as u64 + (part * 100.0) as u64);
        results.extend(hsa_vmm_bench::run(&setup, &options, &mut on_progress)?);
    }
    bar.finish_and_clear();
    let text = match args.format {
        BenchFormat::Table => {
            args.output.write(|out| Ok(out.table(&rows(&results))?))?;
            return Ok(Exit::Success);
        }
        BenchFormat::Json => {
            let runtime: RuntimeDescription = describe(setup.runtime()).runtime;
            let quirks = setup.quirks();
            let worked_around = Quirks::KNOWN.iter().filter(|quirk| quirks.has(quirk));
            let worked_around: Vec<_> = worked_around.map(|quirk| quirk.name).collect();
            let all =
                json!({ "runtime": runtime, "works_around": worked_around, "results": results });
            serde_json::to_string_pretty(&all)? + "\n"
        }
        BenchFormat::Svg => plot::draw(&results)?,
    };
    args.output.write(|out| Ok(out.write_all(text.as_bytes())?))?;
    Ok(Exit::Success)
}

impl Bench {
    /// Returns whether to measure opening, and the other operations to measure.
    fn operations(&self) -> (bool, Vec<Operation>) {
        let mut selected: Vec<Operation> = self.operation.iter().map(|name| name.0).collect();
        let (all, opens) = (selected.is_empty(), selected.contains(&Operation::Open));
        selected.retain(|&operation| operation != Operation::Open);
        match all {
            // The chart shows only operations that depend on live mappings.
            true => (self.format != BenchFormat::Svg, Operation::ALL.to_vec()),
            false => (opens, selected),
        }
    }

    /// Disables the workarounds if `--no-workarounds` was given.
    fn with_selected_workarounds(&self, setup: BenchRuntime) -> anyhow::Result<BenchRuntime> {
        if !self.no_workarounds {
            return Ok(setup);
        }
        if self.level.iter().any(|level| level.0 == Level::C) {
            bail!(
                "--no-workarounds does not support level c: C programs always use the workarounds"
            );
        }
        Ok(setup.without_workarounds()?)
    }

    /// Opens the chosen runtime; `nothing` is a simulation whose virtual memory calls do nothing.
    fn open_setup(&self) -> anyhow::Result<BenchRuntime> {
        if let Choice::Library(path) = &self.common.runtime.choice
            && path.as_os_str() == "nothing"
        {
            let gpus = self.common.runtime.gpus.unwrap_or(1);
            let setup = BenchRuntime::open(Backend::Simulated(format!("nothing,gpus={gpus}")))?;
            note!("runtime: simulation whose virtual memory calls do nothing");
            return self.with_selected_workarounds(setup);
        }
        if self.no_workarounds {
            bail!(
                "--no-workarounds needs --runtime nothing: other runtimes would crash without \
                 workarounds"
            );
        }
        let runtime = self.common.runtime.open()?;
        let backend = match runtime.info().path.clone() {
            // SAFETY: the library is already loaded and started.
            Some(path) => Backend::Loaded(unsafe { LibraryFile::new(path) }),
            None if self.hip.is_some() => {
                bail!("HIP does not run on the simulation; `hsa-vmm emulate` gives it a driver");
            }
            None => Backend::Simulated(self.common.runtime.simulation().unwrap_or_default()),
        };
        Ok(BenchRuntime::on(runtime, backend)?)
    }
}

/// Returns a table with a row for each operation and level.
fn rows(results: &[Result]) -> Rows {
    let mut rows =
        table(&["operation", "level", "live", "GPUs", "median", "p99", "over raw", "% of raw"]);
    for result in results {
        let raw = result.over_raw_ns.map(|over| result.median_ns - over);
        let part = raw.filter(|raw| *raw > 0.0).map(|raw| 100.0 * result.median_ns / raw);
        let cells = [
            result.live_mappings.to_string(),
            result.gpus.to_string(),
            time(result.median_ns),
            time(result.p99_ns),
            result.over_raw_ns.map(time).unwrap_or_default(),
            part.map(|part| format!("{part:.0}")).unwrap_or_default(),
        ];
        let names = [result.operation.name(), result.level.name()].map(Cell::from);
        rows.add_row(names.into_iter().chain(cells.map(|text| Cell::from(text).right())));
    }
    rows
}

/// Formats a time: `83 ns`, `1.28 µs`.
fn time(nanoseconds: f64) -> String {
    match nanoseconds.abs() {
        less if less < 9.95 => format!("{nanoseconds:.1} ns"),
        less if less < 999.5 => format!("{nanoseconds:.0} ns"),
        less if less < 999_500.0 => format!("{:.2} µs", nanoseconds / 1e3),
        _ => format!("{:.2} ms", nanoseconds / 1e6),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_is_rounded() {
        for (nanoseconds, text) in [
            (0.04, "0.0 ns"),
            (-3.21, "-3.2 ns"),
            (83.2, "83 ns"),
            (999.4, "999 ns"),
            (1284.0, "1.28 µs"),
            (999_499.0, "999.50 µs"),
            (12_345_678.0, "12.35 ms"),
        ] {
            assert_eq!(super::time(nanoseconds), text);
        }
    }
}
