//! Makes the same calls on AMD's runtime and on the simulation, and compares both after each call.

use crate::calls::*;
use crate::exclusions;
use crate::objects::Objects;
use crate::observe::{self, MappedRange};
use crate::tested_runtime::{AREA_SIZE, Outcome, TestedRuntime};
use core::fmt;
use hsa_rocr::Release;
use hsa_rocr::test::uses_machine_driver;
use hsa_sim::{Simulation, Usage};
use hsa_sys::{HSA_STATUS_SUCCESS, Library, Search, Table};
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The starts of the areas of both runtimes. The areas are far below all addresses that the kernel chooses, so that no
/// other code uses them.
const AMD_AREAS: u64 = 0x0800_0000_0000;
const SIMULATED_AREAS: u64 = 0x2000_0000_0000;

/// The time within which AMD's kernel driver must free memory that nothing uses.
const FREE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of differing values in a message.
const MAX_VALUES: usize = 12;
/// The size in bytes above which an allocation may fail while memory lingers ([`Comparison::lingered`]).
const LARGE_SIZE: u64 = 64 << 20;

/// AMD's runtime and the simulation, both started.
#[derive(Debug)]
pub struct Comparison {
    release: Release,
    library: Library,
    simulation: Simulation,
    amd: TestedRuntime,
    simulated: TestedRuntime,
    /// The available memory of the GPUs before the sequence, in AMD's runtime and in the
    /// simulation.
    memory_before: [Vec<u64>; 2],
    /// Whether memory in this sequence has stayed in use after it was unmapped and released
    /// ([`Usage::vram_lingering`]). The emulated driver does not count that memory, so the used
    /// memory is no longer compared.
    lingered: bool,
    /// The number of calls by function and result, and the number of excluded calls by reason.
    pub counts: BTreeMap<String, u64>,
}

/// A difference between the runtimes.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The last call before the difference, with its number. The calls of the cleanup also have
    /// numbers.
    pub after: Option<(usize, Call)>,
    /// Pairs of differing values: the first of AMD's runtime, the second of the simulation.
    pub values: Vec<(String, String)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.after {
            Some((number, call)) => writeln!(f, "after call {number}, {call:?}:")?,
            None => writeln!(f, "at the end:")?,
        }
        for (amd, simulated) in self.values.iter().take(MAX_VALUES) {
            writeln!(f, "  AMD {amd}\n  sim {simulated}")?;
        }
        Ok(())
    }
}

/// The observable state after a call.
#[derive(Debug)]
struct ObservedState {
    /// The access of all agents at each recorded address.
    access: Vec<(u64, Vec<Outcome>)>,
    properties: Vec<(Name, Outcome)>,
    ranges: Vec<MappedRange>,
    words: Vec<(u64, Option<u64>)>,
    memory_used: Vec<i64>,
}

pub fn simulation(release: Release) -> Simulation {
    let generation = match release {
        Release::R6_1_2 => "era=a,extension=4",
        Release::R6_4_3 => "era=a,extension=7",
        Release::R7_2_4 => "era=b,extension=15",
        other => panic!("unknown generation of {other}"),
    };
    let config = format!("mi300x,gpus=2,vram=1g,{generation}").parse().expect("a configuration");
    Simulation::start(config).expect("a free slot")
}

impl Comparison {
    pub fn start(release: Release, runtime: &Path) -> Self {
        // SAFETY: the library is AMD's runtime.
        let library = unsafe { Library::load(&Search::only(runtime)) }.expect("AMD's runtime");
        let simulation = simulation(release);
        let amd = TestedRuntime::start(library.table(), AMD_AREAS);
        let simulated = TestedRuntime::start(simulation.table(), SIMULATED_AREAS);
        assert_eq!(
            amd.pool_attributes(),
            simulated.pool_attributes(),
            "pools of AMD's runtime and of the simulation"
        );
        let memory_before = [amd.available_memory(), simulated.available_memory()];
        let counts = BTreeMap::new();
        Self {
            release,
            library,
            simulation,
            amd,
            simulated,
            memory_before,
            lingered: false,
            counts,
        }
    }

    /// Stops and restarts both runtimes.
    pub fn restart(&mut self) {
        let simulation = simulation(self.release);
        let (amd_area, simulated_area) = (self.amd.area, self.simulated.area);
        let start = |runtime: &mut TestedRuntime, table: &Table, area| {
            assert_eq!(runtime.shut_down(), HSA_STATUS_SUCCESS, "hsa_shut_down");
            *runtime = TestedRuntime::start(table, area);
        };
        start(&mut self.amd, self.library.table(), amd_area);
        start(&mut self.simulated, simulation.table(), simulated_area);
        self.simulation = simulation;
    }

    /// Makes the calls of a sequence, and cleans up. Before each call, calls `before` with the
    /// call's number. Returns the first difference.
    pub fn run(&mut self, calls: &[Call], mut before: impl FnMut(usize)) -> Option<Difference> {
        self.amd.next_sequence();
        self.simulated.next_sequence();
        if self.lingered && uses_machine_driver() {
            // The end of the last sequence did not wait until all memory was freed.
            thread::sleep(FREE_TIMEOUT / 4);
        }
        self.memory_before = [self.amd.available_memory(), self.simulated.available_memory()];
        self.lingered = false;
        let mut objects = Objects::default();
        let mut difference = None;
        for (number, call) in calls.iter().enumerate() {
            before(number);
            difference = difference.or_else(|| self.step(number, call, &mut objects));
        }
        // Clean up as far as possible, even after a difference.
        for (number, call) in (calls.len()..).zip(objects.cleanup_calls()) {
            before(number);
            let later = self.step(number, &call, &mut objects);
            difference = difference.or(later);
        }
        self.amd.close_descriptors();
        self.simulated.close_descriptors();
        difference.or_else(|| self.difference_after_cleanup())
    }

    fn step(&mut self, number: usize, call: &Call, objects: &mut Objects) -> Option<Difference> {
        if !self.can_be_made(call, objects) {
            return None;
        }
        let amd = self.amd.perform(call);
        let simulated = self.simulated.perform(call);
        let kind = if amd.status == HSA_STATUS_SUCCESS { "succeeded" } else { "failed" };
        *self.counts.entry(format!("{} {kind}", call.kind())).or_default() += 1;
        let after = Some((number, call.clone()));
        if amd != simulated {
            return Some(Difference {
                after,
                values: vec![(format_outcome(&amd), format_outcome(&simulated))],
            });
        }
        let current_name = |name| self.amd.current_name(name).unwrap_or(name);
        objects.record(call, &amd, current_name);
        self.lingered |= self.simulation.usage().vram_lingering.iter().any(|bytes| *bytes > 0);
        let values = self.differing_values(objects);
        (!values.is_empty()).then_some(Difference { after, values })
    }

    /// Returns the values that differ. AMD's kernel driver may free memory some time after
    /// unmapping it. With that driver, observes both states again until they agree, for at most
    /// [`FREE_TIMEOUT`].
    fn differing_values(&self, objects: &Objects) -> Vec<(String, String)> {
        let started = Instant::now();
        loop {
            let [amd, simulated] = [0, 1].map(|runtime| self.observe(runtime, objects));
            let values = differences(&amd, &simulated);
            if values.is_empty() || !uses_machine_driver() || started.elapsed() > FREE_TIMEOUT {
                return values;
            }
            thread::sleep(FREE_TIMEOUT / 100);
        }
    }

    /// Returns whether a call can be made: its names refer to the same objects in both runtimes,
    /// and the call is not excluded. If the call is excluded, counts it.
    fn can_be_made(&mut self, call: &Call, objects: &Objects) -> bool {
        if !self.amd.has_all_names(call) {
            return false;
        }
        let stale = call.handle().is_some_and(|handle| match handle {
            Handle::Of(name) => self.amd.current_name(name) != self.simulated.current_name(name),
            Handle::Zero | Handle::Garbage => false,
        });
        let is_large = matches!(call, Call::Create { size, .. } if *size > LARGE_SIZE);
        let reason = if stale {
            Some("a stale handle that refers to new memory in one runtime only")
        } else if self.lingered && is_large {
            Some("a large allocation while only the simulation counts lingering memory")
        } else {
            exclusions::reason(self.release, &self.amd, objects, call)
        };
        if let Some(reason) = reason {
            *self.counts.entry(format!("excluded: {reason}")).or_default() += 1;
        }
        reason.is_none()
    }

    fn observe(&self, index: usize, objects: &Objects) -> ObservedState {
        let runtime = if index == 0 { &self.amd } else { &self.simulated };
        let area = runtime.area;
        let access = |&point: &u64| {
            let agents = runtime.agents.iter();
            (point, agents.map(|agent| runtime.get_access(area + point, *agent)).collect())
        };
        let same_name =
            |name: &&Name| self.amd.current_name(**name) == self.simulated.current_name(**name);
        let properties = |name: &Name| (*name, runtime.properties(Handle::Of(*name)));
        let ranges = self.without_known_difference(observe::ranges(area, area + AREA_SIZE));
        let available = runtime.available_memory();
        let used = self.memory_before[index].iter().zip(available);
        let used = used.map(|(before, now)| *before as i64 - now as i64);
        // With AMD's kernel driver, an open or imported dma-buf keeps its memory in use after the exported handle was
        // released. The emulated driver and the simulation do not learn when the last descriptor of a dma-buf is
        // closed. They count the memory until the exported handle is released.
        let is_kept = self.lingered || (uses_machine_driver() && runtime.has_shared_memory());
        let memory_used = if is_kept { vec![] } else { used.collect() };
        ObservedState {
            access: objects.points.iter().map(access).collect(),
            properties: runtime.handle_names().filter(same_name).map(properties).collect(),
            words: observe::words(area, &ranges),
            ranges,
            memory_used,
        }
    }

    /// Removes a harmless difference. From 7.2 on, AMD's runtime creates a shared mapping for
    /// memory without access. The simulation keeps the reservation's private mapping.
    fn without_known_difference(&self, mut ranges: Vec<MappedRange>) -> Vec<MappedRange> {
        if self.release < Release::R7_2_4 {
            return ranges;
        }
        let ignore_sharing = |range: &mut MappedRange| {
            if range.access.starts_with("---") {
                range.access = "---".into();
            }
        };
        ranges.iter_mut().for_each(ignore_sharing);
        ranges.dedup_by(|next, range| {
            let joined = next.access == range.access && next.start == range.end;
            if joined {
                range.end = next.end;
            }
            joined
        });
        ranges
    }

    /// Returns a difference after cleanup, if any. The simulation must use no resources, and the
    /// states of both runtimes must be equal.
    fn difference_after_cleanup(&mut self) -> Option<Difference> {
        let mut values = Vec::new();
        let mut usage = self.simulation.usage();
        // Leaked memory is compared below.
        usage.vram_used.fill(0);
        let mut empty = Usage::default();
        empty.vram_used = vec![0; self.simulated.gpus.len()];
        empty.vram_lingering = empty.vram_used.clone();
        if usage != empty {
            values.push((format!("{empty:?}"), format!("{usage:?}")));
        }
        let objects = Objects::default();
        values.extend(self.differing_values(&objects));
        for runtime in [&self.amd, &self.simulated] {
            if !observe::ranges(runtime.area, runtime.area + AREA_SIZE).is_empty() {
                observe::clear(runtime.area, runtime.area + AREA_SIZE);
            }
        }
        (!values.is_empty()).then_some(Difference { after: None, values })
    }
}

fn format_outcome(outcome: &Outcome) -> String {
    format!("{:#x} {:?}", outcome.status, outcome.values)
}

/// Returns the lines that differ.
fn differences(amd: &ObservedState, simulated: &ObservedState) -> Vec<(String, String)> {
    fn lines<T: fmt::Debug>(kind: &str, values: &[T]) -> Vec<String> {
        values.iter().map(|value| format!("{kind} {value:x?}")).collect()
    }
    let lines = |state: &ObservedState| {
        [
            lines("access", &state.access),
            lines("properties", &state.properties),
            lines("mapped", &state.ranges),
            lines("contents", &state.words),
            lines("video memory used", &state.memory_used),
        ]
    };
    let mut differing = Vec::new();
    for (amd, simulated) in lines(amd).into_iter().zip(lines(simulated)) {
        if amd.len() == simulated.len() {
            differing
                .extend(amd.into_iter().zip(simulated).filter(|(amd, simulated)| amd != simulated));
        } else {
            differing.push((amd.join("; "), simulated.join("; ")));
        }
    }
    differing
}
