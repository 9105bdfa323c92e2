//! Four threads make random calls on AMD's runtime with the emulated driver. Each thread has its
//! own reservations and handles. The calls must not leak resources.

use crate::calls::{Call, Handle};
use crate::objects::Objects;
use crate::observe;
use crate::tested_runtime::{AREA_SIZE, TestedRuntime};
use crate::{environment_number, exclusions, generator};
use hsa_rocr::Release;
use hsa_rocr::test::Fixture;
use hsa_sys::{Library, Search, Table};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::{Duration, Instant, UNIX_EPOCH};

const THREAD_COUNT: u64 = 4;
/// The start of the areas of the first thread.
const FIRST_AREA: u64 = 0x0800_0000_0000;
/// The distance between the areas of consecutive threads.
const DISTANCE: u64 = 0x0800_0000_0000;

/// The number of memory ranges that the runtime may keep for reuse.
const MAX_KEPT: usize = 16;

/// The flag of host memory (`KFD_IOC_ALLOC_MEM_FLAGS_GTT`).
const GTT: u32 = 1 << 1;

/// The resources of a process, according to the kernel.
#[derive(Debug)]
struct ProcessResources {
    /// The targets of all descriptors except the descriptors of host memory. Includes
    /// descriptors that the emulated driver hides.
    descriptors: Vec<String>,
    /// The number of descriptors of host memory. The runtime keeps this memory and reuses it.
    host_memory: usize,
    /// The number of shared mappings in the address space. The emulated driver's buffers are shared
    /// memory.
    shared: usize,
    available_memory: Vec<u64>,
}

/// Checks that the calls leak no resources. `HSA_KFD_STRESS_SECONDS` sets the duration in seconds: by default three, or
/// ten with `HSA_VMM_LONG=1`. `HSA_SIM_SEED` sets the seed, a number. By default, each run has a new seed.
pub fn check_for_leaks(fixture: &Fixture) {
    let default = if hsa_rocr::test::is_long() { 10 } else { 3 };
    let time = Duration::from_secs(environment_number("HSA_KFD_STRESS_SECONDS").unwrap_or(default));
    let fresh = || UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = environment_number("HSA_SIM_SEED").unwrap_or_else(fresh);
    println!("\n{}: {THREAD_COUNT} threads for {time:?}, seed {seed}", fixture.release());
    // SAFETY: the library is AMD's runtime.
    let library =
        unsafe { Library::load(&Search::only(fixture.runtime())) }.expect("AMD's runtime");
    let table = *library.table();
    let unlocked_calls = RwLock::new(());
    let run = &|thread: u64, time: Duration| {
        let mut runner =
            Runner::new(&table, fixture.release(), &unlocked_calls, FIRST_AREA + thread * DISTANCE);
        let start_time = Instant::now();
        let mut sequence = 0;
        while start_time.elapsed() < time {
            runner.run(&generator::sequence(seed ^ thread, sequence));
            sequence += 1;
        }
        (sequence, runner.end())
    };
    // Keeps the runtime initialised until the end.
    let mut runtime = TestedRuntime::start(&table, FIRST_AREA - DISTANCE / 2);
    let run_threads = |time| {
        std::thread::scope(|scope| {
            let threads = (0..THREAD_COUNT).map(|thread| scope.spawn(move || run(thread, time)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
        })
    };
    // Create the objects that the runtime creates once and keeps, such as queues.
    run_threads(time.min(Duration::from_secs(5)));
    let before = process_resources(&runtime);
    let results = run_threads(time);
    let after = process_resources(&runtime);
    let mut counts = BTreeMap::new();
    for (kind, count) in results.iter().flat_map(|(_, counts)| counts) {
        *counts.entry(kind).or_insert(0) += count;
    }
    let sequences: u64 = results.iter().map(|(sequences, _)| sequences).sum();
    println!("{sequences} sequences: {counts:#?}\n{after:?}");
    assert_eq!(before.descriptors, after.descriptors, "descriptors, seed {seed}");
    assert_eq!(before.available_memory, after.available_memory, "memory of the GPUs, seed {seed}");
    // The runtime's signals can take a few more ranges, but not more with every sequence.
    assert!(
        after.host_memory <= before.host_memory + MAX_KEPT,
        "{before:?} {after:?}, seed {seed}"
    );
    assert!(after.shared <= before.shared + MAX_KEPT, "{before:?} {after:?}, seed {seed}");
    let areas = FIRST_AREA..FIRST_AREA + THREAD_COUNT * DISTANCE;
    assert_eq!(observe::ranges(areas.start, areas.end), [], "in the areas, seed {seed}");
    runtime.shut_down();
}

/// The state of one thread.
struct Runner<'a> {
    runtime: TestedRuntime,
    release: Release,
    /// Locked for writing during a call that is not safe beside other calls, because the runtime
    /// takes no lock. Locked for reading during all other calls.
    unlocked_calls: &'a RwLock<()>,
    /// The start of the thread's areas.
    start: u64,
    /// The number of calls, by function and result.
    counts: BTreeMap<String, u64>,
}

impl<'a> Runner<'a> {
    fn new(table: &Table, release: Release, unlocked_calls: &'a RwLock<()>, start: u64) -> Self {
        let counts = BTreeMap::new();
        Self { runtime: TestedRuntime::start(table, start), release, unlocked_calls, start, counts }
    }

    fn run(&mut self, calls: &[Call]) {
        if self.runtime.area + 2 * AREA_SIZE > self.start + DISTANCE / 2 {
            self.runtime.area = self.start;
        }
        self.runtime.next_sequence();
        let mut objects = Objects::default();
        for call in calls {
            self.step(call, &mut objects);
        }
        for call in objects.cleanup_calls() {
            self.step(&call, &mut objects);
        }
        self.runtime.close_descriptors();
        // NO_REGISTER reservations leak a part of their range.
        if !observe::ranges(self.runtime.area, self.runtime.area + AREA_SIZE).is_empty() {
            observe::clear(self.runtime.area, self.runtime.area + AREA_SIZE);
        }
    }

    fn step(&mut self, call: &Call, objects: &mut Objects) {
        // A huge reservation could overlap the address-space holes of other threads.
        let huge = matches!(call, Call::Reserve { size, .. } if *size > 1 << 40);
        // From 7.2 on, mapping at an unaligned address leaks the memory, a known defect.
        let leaks = self.release >= Release::R7_2_4
            && matches!(call, Call::Map { at, .. }
                if objects.area_offset(*at).is_some_and(|at| !at.is_multiple_of(4096)));
        // The value of a released handle may now refer to another thread's memory.
        let stale = matches!(call.handle(), Some(Handle::Of(name)) if !objects.is_alive(name));
        if huge || leaks || stale || !self.runtime.has_all_names(call) {
            return;
        }
        let guard = self.unlocked_calls.read().expect("no panic");
        if exclusions::reason(self.release, &self.runtime, objects, call).is_some() {
            return;
        }
        // The runtime takes no lock during these calls, so no other call may run at the same time.
        let unlocked = matches!(
            call,
            Call::Export { .. }
                | Call::Import { .. }
                | Call::Retain { .. }
                | Call::Properties { .. }
        );
        let outcome = if unlocked {
            drop(guard);
            let _guard = self.unlocked_calls.write().expect("no panic");
            self.runtime.perform(call)
        } else {
            let outcome = self.runtime.perform(call);
            drop(guard);
            outcome
        };
        let kind =
            if outcome.status == hsa_sys::HSA_STATUS_SUCCESS { "succeeded" } else { "failed" };
        *self.counts.entry(format!("{} {kind}", call.kind())).or_default() += 1;
        objects.record(call, &outcome, |name| name);
    }

    fn end(mut self) -> BTreeMap<String, u64> {
        self.runtime.shut_down();
        self.counts
    }
}

fn process_resources(runtime: &TestedRuntime) -> ProcessResources {
    let shared = observe::ranges(0, 1 << 47);
    let shared = shared.iter().filter(|range| range.access.ends_with('s')).count();
    let (host_memory, descriptors): (Vec<_>, _) =
        descriptors().into_iter().partition(|target: &String| is_host_memory(target));
    ProcessResources {
        descriptors,
        host_memory: host_memory.len(),
        shared,
        available_memory: runtime.available_memory(),
    }
}

/// Returns whether a descriptor refers to host memory, which the runtime allocates for its signals and queues:
/// `/memfd:hsa-kfd:GPU:FLAGS:TOKEN`.
fn is_host_memory(target: &str) -> bool {
    let flags = target.strip_prefix("/memfd:hsa-kfd:").and_then(|rest| rest.split(':').nth(1));
    flags
        .and_then(|flags| u32::from_str_radix(flags, 16).ok())
        .is_some_and(|flags| flags & GTT != 0)
}

/// Returns the sorted targets of the process's descriptors. `ls` lists them, because the emulated
/// driver hides its own descriptors from this process. Ignores the pipes to `ls`.
fn descriptors() -> Vec<String> {
    let folder = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    let mut command = std::process::Command::new("ls");
    let output = command.env_remove("LD_PRELOAD").arg("-l").arg(folder).output().expect("ls");
    let text = String::from_utf8(output.stdout).expect("text");
    let targets = text.lines().filter_map(|line| Some(line.split_once(" -> ")?.1.to_owned()));
    let mut targets: Vec<_> =
        targets.filter(|to| !to.starts_with("pipe:") && to != "/dev/null").collect();
    targets.sort();
    targets
}
