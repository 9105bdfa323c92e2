//! Runs the measurement in rounds. Each round performs the operations at every level in turn, so that other load on the
//! machine affects all levels equally.

use crate::clock::Clock;
use crate::level::hip::CInterface;
use crate::level::owned::OwnedCalls;
use crate::level::raw::RawCalls;
use crate::level::vmm::VmmCalls;
use crate::level::{Caller, Layout};
use crate::runtime::{BenchRuntime, LibraryFile};
use crate::samples::{Median, Samples};
use crate::{Level, Operation};
use hsa_vmm::runtime::LoadError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

/// The options of a measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of live mappings at each level; at least 1.
    pub live: usize,
    /// The number of samples of each operation.
    pub samples: usize,
    /// The levels.
    pub levels: Vec<Level>,
    /// The operations; all if empty.
    pub operations: Vec<Operation>,
    /// HIP's library, for [`Level::Hip`].
    pub hip: Option<LibraryFile>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            live: 1,
            samples: 1000,
            levels: vec![Level::Raw, Level::Vmm, Level::Owned, Level::C],
            operations: Vec::new(),
            hip: None,
        }
    }
}

/// The cost of one operation at one level.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// The operation.
    pub operation: Operation,
    /// The level.
    pub level: Level,
    /// The number of mappings that exist during the whole run. The measured operations do not unmap them.
    pub live_mappings: usize,
    /// The number of GPUs with access.
    pub gpus: usize,
    /// The median, in nanoseconds per call.
    pub median_ns: f64,
    /// The lower end of the median's 95 % confidence interval.
    pub median_low_ns: f64,
    /// The upper end of the median's 95 % confidence interval.
    pub median_high_ns: f64,
    /// The 99th percentile, in nanoseconds per call.
    pub p99_ns: f64,
    /// The median minus the median of the raw level, if that level was measured.
    pub over_raw_ns: Option<f64>,
    /// The uncertainty of `over_raw_ns`: the square root of the sum of the squares of the half-widths of the two
    /// medians' intervals.
    pub over_raw_error_ns: Option<f64>,
    /// The number of samples.
    pub samples: usize,
    /// The number of calls per sample.
    #[serde(rename = "calls_a_sample")]
    pub calls_per_sample: usize,
}

/// The error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The runtime cannot be loaded for the raw calls.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library failed, for example to start the runtime or to open its virtual memory.
    #[error(transparent)]
    Library(#[from] hsa_vmm::Error),
    /// The runtime lacks a required feature, or cannot be configured or opened.
    #[error("cannot measure: {0}")]
    Configuration(String),
    /// HIP cannot be used.
    #[error("HIP's library {path} cannot be used: {reason}", path = path.display())]
    Hip {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A call failed unexpectedly.
    #[error("{operation} at level `{level}` failed with {live} live mapping{}: {reason}", if *live == 1 { "" } else { "s" })]
    Call {
        /// The operation.
        operation: &'static str,
        /// The level.
        level: Level,
        /// The number of live mappings.
        live: usize,
        /// The cause.
        reason: String,
    },
}

/// A level, its live mappings and its samples during a run.
struct Runner {
    level: Level,
    caller: Box<dyn TimedCaller>,
    layout: Layout,
    samples: BTreeMap<Operation, Samples>,
}

/// Times the calls of a [`Caller`]. The compiler inlines the calls into the timed loop.
trait TimedCaller {
    fn perform(
        &mut self,
        clock: Clock,
        operation: Operation,
        addresses: &[usize],
    ) -> Result<f64, Box<dyn Error>>;
    fn release_extras(&mut self) -> Result<(), Box<dyn Error>>;
}

impl<C: Caller> TimedCaller for C {
    fn perform(
        &mut self,
        clock: Clock,
        operation: Operation,
        addresses: &[usize],
    ) -> Result<f64, Box<dyn Error>> {
        macro_rules! each {
            (|$index:ident, $at:ident| $call:expr) => {
                clock.time(|| -> Result<(), Box<dyn Error>> {
                    for ($index, &$at) in addresses.iter().enumerate() {
                        $call?;
                    }
                    Ok(())
                })
            };
        }
        let (outcome, nanoseconds) = match operation {
            Operation::Open => return Err("`measure_opening` measures this operation".into()),
            Operation::Reserve => each!(|index, _at| self.reserve(index)),
            Operation::Create => each!(|index, _at| self.create(index)),
            Operation::Map => each!(|index, at| self.map(index, at)),
            Operation::SetAccess => each!(|index, at| self.set_access(index, at)),
            Operation::GetAccess => each!(|_index, at| self.get_access(at)),
            Operation::Retain => each!(|index, at| self.retain(index, at)),
            Operation::Properties => each!(|index, _at| self.properties(index)),
            Operation::Export => each!(|index, _at| self.export(index)),
            Operation::Import => each!(|index, _at| self.import(index)),
            Operation::Unmap => each!(|index, at| self.unmap(index, at)),
            Operation::Release => each!(|index, _at| self.release(index)),
            Operation::Free => each!(|index, _at| self.free(index)),
            Operation::Cycle => each!(|_index, _at| self.cycle()),
        };
        outcome?;
        Ok(nanoseconds / addresses.len() as f64)
    }

    fn release_extras(&mut self) -> Result<(), Box<dyn Error>> {
        Caller::release_extras(self)
    }
}

impl Runner {
    fn new(
        target: &BenchRuntime,
        level: Level,
        calls: usize,
        options: &Options,
    ) -> Result<Self, BenchError> {
        let live = options.live.max(1);
        let failed = |reason: Box<dyn Error>| BenchError::Call {
            operation: "mapping",
            level,
            live,
            reason: reason.to_string(),
        };
        let no_gpu = || BenchError::Configuration("the runtime has no GPU".into());
        let properties = target.properties().ok_or_else(no_gpu)?;
        macro_rules! runner {
            ($caller:expr) => {{
                let mut caller = $caller;
                let layout = caller.map_live(live).map_err(failed)?;
                (Box::new(caller) as Box<dyn TimedCaller>, layout)
            }};
        }
        let (caller, layout) = match level {
            Level::Raw => runner!(RawCalls::new(target, calls)?),
            Level::Vmm => runner!(VmmCalls::new(target, properties, calls)),
            Level::Owned => runner!(OwnedCalls::new(target, properties, calls)),
            Level::C => runner!(CInterface::linked(target, calls)?),
            Level::Hip => {
                let file = options
                    .hip
                    .as_ref()
                    .ok_or_else(|| BenchError::Configuration("no HIP library was given".into()))?;
                runner!(CInterface::load(file, target, calls)?)
            }
        };
        Ok(Self { level, caller, layout, samples: BTreeMap::new() })
    }

    /// Performs the selected operations once for each address. Also performs the operations that every round needs.
    /// Sets `holes` to the addresses at which this round maps memory, and `mapped` to the mapped addresses that this
    /// round looks up.
    fn round(
        &mut self,
        clock: Clock,
        options: &Options,
        holes: &mut [usize],
        mapped: &mut [usize],
    ) -> Result<(), BenchError> {
        let (level, live) = (self.level, options.live);
        let failed = |operation: &'static str| {
            move |reason: Box<dyn Error>| BenchError::Call {
                operation,
                level,
                live,
                reason: reason.to_string(),
            }
        };
        self.layout.draw_holes(holes);
        self.layout.draw_mapped(holes, mapped);
        for operation in Operation::ROUND {
            let is_selected =
                options.operations.is_empty() || options.operations.contains(&operation);
            let is_look_up = matches!(operation, Operation::GetAccess | Operation::Retain);
            // Only these operations can be skipped. A round always performs the other operations, because they create
            // and remove the objects that the round uses.
            let is_optional = is_look_up
                || matches!(
                    operation,
                    Operation::Properties
                        | Operation::Export
                        | Operation::Import
                        | Operation::Cycle
                );
            let is_dependency =
                operation == Operation::Export && options.operations.contains(&Operation::Import);
            if is_optional && !is_selected && !is_dependency {
                continue;
            }
            let addresses = if is_look_up { &*mapped } else { &*holes };
            let performed = self.caller.perform(clock, operation, addresses);
            let nanoseconds = performed.map_err(failed(operation.name()))?;
            if is_selected {
                self.samples.entry(operation).or_default().add(nanoseconds);
            }
            if operation == Operation::Import {
                self.caller.release_extras().map_err(failed("release"))?;
            }
        }
        self.caller.release_extras().map_err(failed("release"))
    }
}

/// Runs the measurement. Calls `report` with the completed fraction, from 0 to 1.
///
/// # Errors
/// [`BenchError`] names the call that failed. Objects of the failed round can remain in the runtime and in the `Vmm`.
pub fn measure(
    target: &BenchRuntime,
    options: &Options,
    report: &mut dyn FnMut(f64),
) -> Result<Vec<Measurement>, BenchError> {
    let clock = Clock::new();
    let calls = target.backend.calls_per_sample();
    let mut runners = Vec::with_capacity(options.levels.len());
    // The raw level must be first, because its costs are subtracted from the costs of the other levels.
    let mut levels = options.levels.clone();
    levels.sort_unstable();
    levels.dedup();
    for level in levels {
        runners.push(Runner::new(target, level, calls, options)?);
        report(0.0);
    }
    let (mut holes, mut mapped) = (vec![0; calls], vec![0; calls]);
    let mut order = Order::of(runners.len());
    // The first rounds are a warm-up, whose samples are discarded.
    let warm_up = (options.samples / 10).clamp(1, 100);
    for round in 0..warm_up + options.samples {
        if round == warm_up {
            runners.iter_mut().for_each(|runner| runner.samples.clear());
        }
        for &runner in order.shuffle() {
            runners[runner].round(clock, options, &mut holes, &mut mapped)?;
        }
        report((round + 1) as f64 / (warm_up + options.samples) as f64);
    }
    let gpus = target.granted_gpus().len();
    let mut results = Vec::new();
    for operation in Operation::ROUND {
        let mut raw = None;
        for runner in &mut runners {
            let Some(samples) = runner.samples.get_mut(&operation) else { continue };
            let counts = (options.live, gpus);
            results.extend(compute_measurement(
                operation,
                runner.level,
                counts,
                samples,
                calls,
                &mut raw,
            ));
        }
    }
    Ok(results)
}

/// Computes the statistics of samples. `raw` is the median of the raw level. The call for the raw level sets `raw`;
/// later calls subtract it.
pub(crate) fn compute_measurement(
    operation: Operation,
    level: Level,
    (live_mappings, gpus): (usize, usize),
    samples: &mut Samples,
    calls_per_sample: usize,
    raw: &mut Option<Median>,
) -> Option<Measurement> {
    let (median, p99) = (samples.median()?, samples.quantile(0.99)?);
    if level == Level::Raw {
        *raw = Some(median);
    }
    let raw = raw.filter(|_| level != Level::Raw);
    // The errors are independent, so their squares add up.
    let error = |raw: Median| (median.high - median.low).hypot(raw.high - raw.low) / 2.0;
    Some(Measurement {
        operation,
        level,
        live_mappings,
        gpus,
        median_ns: round_to_tenth(median.value),
        median_low_ns: round_to_tenth(median.low),
        median_high_ns: round_to_tenth(median.high),
        p99_ns: round_to_tenth(p99),
        over_raw_ns: raw.map(|raw| round_to_tenth(median.value - raw.value)),
        over_raw_error_ns: raw.map(|raw| round_to_tenth(error(raw))),
        samples: samples.len(),
        calls_per_sample,
    })
}

/// A random order of the levels, which differs between rounds, so that the CPU caches affect all levels equally.
pub(crate) struct Order {
    levels: Vec<usize>,
    seed: u32,
}

impl Order {
    pub fn of(count: usize) -> Self {
        Self { levels: (0..count).collect(), seed: 1 }
    }

    /// Shuffles the order, and returns it.
    pub fn shuffle(&mut self) -> &[usize] {
        for index in (1..self.levels.len()).rev() {
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            self.levels.swap(index, (self.seed >> 16) as usize % (index + 1));
        }
        &self.levels
    }
}

/// Rounds to a tenth of a nanosecond, which is finer than the measurement.
fn round_to_tenth(nanoseconds: f64) -> f64 {
    (nanoseconds * 10.0).round() / 10.0
}
