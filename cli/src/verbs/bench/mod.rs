//! `hsa-vmm bench`: what the calls cost.

mod plot;

use crate::Ending;
use crate::arguments::Common;
use crate::choice::Choice;
use crate::output::Output;
use crate::progress;
use crate::screen::note;
use crate::table::{Cell, Rows, table};
use anyhow::bail;
use clap::{Args, ValueEnum};
use hsa_vmm::vmm::Quirks;
use hsa_vmm_bench::{Backend, Ground, Level, LibraryFile, Operation, Options, Result};
use hsa_vmm_conformance::describe::{RuntimeDescription, describe};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  hsa-vmm bench --runtime nothing                   this library by itself
  hsa-vmm bench --runtime nothing --live 1,1000000  beside a million mappings
  hsa-vmm bench --runtime nothing --format svg -o cost.svg
  hsa-vmm emulate --rocr 6.4.3 -- hsa-vmm bench --hip …/libamdhip64.so.6

`over raw` is the median less that of the runtime's own call. --runtime nothing
answers success at once and does nothing, so that what is left is this library's
own.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    #[command(flatten)]
    pub common: Common,
    /// How many mappings of each level are there meanwhile; several, one after another: 1,1000
    #[arg(long, value_name = "N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub live: Vec<u32>,
    /// How many samples are taken of each operation
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub samples: u32,
    /// How many calls a sample is the mean of, 1 to 64; as the runtime asks for if not said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub calls: Option<u8>,
    /// Only these levels: raw, vmm, owned, c
    #[arg(long, value_name = "LEVELS", value_delimiter = ',')]
    pub level: Vec<LevelName>,
    /// Only these operations: map,cycle,…
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    pub operation: Vec<OperationName>,
    /// As for a runtime without the habits that this library works around (`nothing` only; not for C)
    #[arg(long)]
    pub no_workarounds: bool,
    /// HIP itself, too: the path of its libamdhip64
    #[arg(long, value_name = "PATH")]
    pub hip: Option<PathBuf>,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: BenchFormat,
    #[command(flatten)]
    pub output: Output,
}

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table
    #[default]
    Table,
    /// JSON
    Json,
    /// A picture of cost against live mappings
    Svg,
}

macro_rules! by_name {
    ($name:ident, $of:ident, [$($variant:ident),*]) => {
        /// One of them, by the name that it has in results.
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

pub fn run(verb: &Bench) -> anyhow::Result<Ending> {
    verb.output.check()?;
    let mut ground = verb.ground()?;
    let mut levels: Vec<Level> = verb.level.iter().map(|name| name.0).collect();
    if levels.is_empty() {
        levels = vec![Level::Raw, Level::Vmm, Level::Owned];
        // Through C nobody says what is to be worked around.
        levels.extend((!verb.no_workarounds).then_some(Level::C));
    }
    levels.extend(verb.hip.as_ref().map(|_| Level::Hip));
    let live = match (&verb.live[..], verb.format) {
        ([], BenchFormat::Svg) => vec![1, 10, 100, 1000, 10_000, 100_000, 1_000_000],
        ([], _) => vec![1],
        (said, _) => said.to_vec(),
    };
    let (opens, operations) = verb.operations();
    let live = if operations.is_empty() { Vec::new() } else { live };
    let bar = progress::bar(100 * (live.len() as u64 + u64::from(opens)), "bench");
    let mut results = Vec::new();
    if opens {
        let (backend, samples) = (ground.backend().clone(), verb.samples as usize);
        // Where one is open already, it costs nothing to open it again.
        drop(ground);
        let mut told = |part: f64| bar.set_position((part * 100.0) as u64);
        results.extend(hsa_vmm_bench::opening(&backend, samples, &levels, &mut told)?);
        ground = verb.with_quirks(Ground::open(backend)?)?;
    }
    for (number, &live) in live.iter().enumerate() {
        let number = number + usize::from(opens);
        let options = Options {
            live: live as usize,
            samples: verb.samples as usize,
            calls: verb.calls.map(usize::from),
            levels: levels.clone(),
            operations: operations.clone(),
            // SAFETY: the user has named the file to run its code.
            hip: verb.hip.as_ref().map(|path| unsafe { LibraryFile::new(path) }),
        };
        let mut told = |part: f64| bar.set_position(100 * number as u64 + (part * 100.0) as u64);
        results.extend(hsa_vmm_bench::run(&ground, &options, &mut told)?);
    }
    bar.finish_and_clear();
    let shown = match verb.format {
        BenchFormat::Table => {
            verb.output.write(|out| Ok(out.table(&rows(&results))?))?;
            return Ok(Ending::Well);
        }
        BenchFormat::Json => {
            let runtime: RuntimeDescription = describe(ground.runtime()).runtime;
            let quirks = ground.quirks();
            let worked_around = Quirks::KNOWN.iter().filter(|quirk| quirks.has(quirk));
            let worked_around: Vec<_> = worked_around.map(|quirk| quirk.name).collect();
            let all =
                json!({ "runtime": runtime, "works_around": worked_around, "results": results });
            serde_json::to_string_pretty(&all)? + "\n"
        }
        BenchFormat::Svg => plot::draw(&results)?,
    };
    verb.output.write(|out| Ok(out.write_all(shown.as_bytes())?))?;
    Ok(Ending::Well)
}

impl Bench {
    /// Whether opening is to be measured, and what else is.
    fn operations(&self) -> (bool, Vec<Operation>) {
        let mut wanted: Vec<Operation> = self.operation.iter().map(|name| name.0).collect();
        let (all, wanted_open) = (wanted.is_empty(), wanted.contains(&Operation::Open));
        wanted.retain(|&operation| operation != Operation::Open);
        match all {
            // A picture is of what depends on live mappings.
            true => (self.format != BenchFormat::Svg, Operation::ALL.to_vec()),
            false => (wanted_open, wanted),
        }
    }

    /// The same runtime, for which nothing is worked around if that was asked for.
    fn with_quirks(&self, ground: Ground) -> anyhow::Result<Ground> {
        if !self.no_workarounds {
            return Ok(ground);
        }
        if self.level.iter().any(|level| level.0 == Level::C) {
            bail!("--no-workarounds is not for level c: programs in C get what the runtime needs");
        }
        Ok(ground.without_workarounds()?)
    }

    /// The runtime that was asked for; `nothing` is the simulation's that does nothing.
    fn ground(&self) -> anyhow::Result<Ground> {
        if let Choice::Library(path) = &self.common.runtime.choice
            && path.as_os_str() == "nothing"
        {
            let gpus = self.common.runtime.gpus.unwrap_or(1);
            let ground = Ground::open(Backend::Simulated(format!("nothing,gpus={gpus}")))?;
            note!("runtime: simulation whose virtual memory does nothing");
            return self.with_quirks(ground);
        }
        if self.no_workarounds {
            bail!(
                "--no-workarounds needs --runtime nothing: a runtime with quirks would crash without \
                 their workarounds"
            );
        }
        let runtime = self.common.runtime.open()?;
        let backend = match runtime.info().path.clone() {
            // SAFETY: it is loaded and started already.
            Some(path) => Backend::Loaded(unsafe { LibraryFile::new(path) }),
            None if self.hip.is_some() => {
                bail!("HIP does not run on the simulation; `hsa-vmm emulate` gives it a driver");
            }
            None => Backend::Simulated(self.common.runtime.simulation().unwrap_or_default()),
        };
        Ok(Ground::on(runtime, backend)?)
    }
}

/// A table, a row an operation and a level.
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

/// A time that people can read: `83 ns`, `1.28 µs`.
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
    fn times_are_short() {
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
