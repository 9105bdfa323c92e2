//! Four threads make random calls on AMD's runtime over the emulated driver, each with its own
//! reservations and handles. At the end nothing may be left.

use crate::calls::{Call, Handle};
use crate::observe;
use crate::side::{AREA, Side};
use crate::state::State;
use crate::{exclusions, generator, number};
use hsa_rocr::Release;
use hsa_rocr::test::Fixture;
use hsa_sys::{Library, Search, Table};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::{Duration, Instant, UNIX_EPOCH};

const THREADS: u64 = 4;
/// The start of the first thread's areas, and the distance to the next thread's.
const FIRST: u64 = 0x0800_0000_0000;
const APART: u64 = 0x0800_0000_0000;

/// The number of memory ranges that the runtime may keep for reuse.
const KEPT: usize = 16;

/// The resources of a process, according to the kernel.
#[derive(Debug)]
struct Holdings {
    /// All descriptors, including those that the emulated driver hides, without those of the store.
    descriptors: Vec<String>,
    /// The number of descriptors of machine memory, which the runtime keeps.
    store: usize,
    /// The number of shared ranges in its address space; buffers are shared memory.
    shared: usize,
    memory_left: Vec<u64>,
}

/// The duration is `HSA_KFD_STRESS_SECONDS`, or ten seconds.
pub fn survives(fixture: &Fixture) {
    let time = Duration::from_secs(number("HSA_KFD_STRESS_SECONDS").unwrap_or(10));
    let fresh = || UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = number("HSA_SIM_SEED").unwrap_or_else(fresh);
    println!("\n{}: {THREADS} threads for {time:?}, seed {seed}", fixture.release());
    // SAFETY: AMD's runtime.
    let library =
        unsafe { Library::load(&Search::only(fixture.runtime())) }.expect("AMD's runtime");
    let table = *library.table();
    let turns = RwLock::new(());
    let run = &|thread: u64, time: Duration| {
        let mut runner = Runner::new(&table, fixture.release(), &turns, FIRST + thread * APART);
        let begun = Instant::now();
        let mut sequence = 0;
        while begun.elapsed() < time {
            runner.run(&generator::sequence(seed ^ thread, sequence));
            sequence += 1;
        }
        (sequence, runner.end())
    };
    // One user stays until the end, so that the runtime does not stop in between.
    let mut side = Side::start(&table, FIRST - APART / 2);
    let all = |time| {
        std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|thread| scope.spawn(move || run(thread, time)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|t| t.join().expect("a thread")).collect::<Vec<_>>()
        })
    };
    // Create the objects that the runtime creates once and keeps, such as queues.
    all(time.min(Duration::from_secs(5)));
    let before = holdings(&side);
    let ran = all(time);
    let after = holdings(&side);
    let mut made = BTreeMap::new();
    for (kind, count) in ran.iter().flat_map(|(_, made)| made) {
        *made.entry(kind).or_insert(0) += count;
    }
    let sequences: u64 = ran.iter().map(|(sequences, _)| sequences).sum();
    println!("{sequences} sequences: {made:#?}\n{after:?}");
    assert_eq!(before.descriptors, after.descriptors, "descriptors, seed {seed}");
    assert_eq!(before.memory_left, after.memory_left, "memory of the GPUs, seed {seed}");
    // The runtime's store of signals can have grown by a few, but not with every sequence.
    assert!(after.store <= before.store + KEPT, "{before:?} {after:?}, seed {seed}");
    assert!(after.shared <= before.shared + KEPT, "{before:?} {after:?}, seed {seed}");
    let areas = FIRST..FIRST + THREADS * APART;
    assert_eq!(observe::ranges(areas.start, areas.end), [], "in the areas, seed {seed}");
    side.shut_down();
}

/// The state of one thread.
struct Runner<'a> {
    side: Side,
    release: Release,
    turns: &'a RwLock<()>,
    /// The start of its areas.
    start: u64,
    made: BTreeMap<String, u64>,
}

impl<'a> Runner<'a> {
    fn new(table: &Table, release: Release, turns: &'a RwLock<()>, start: u64) -> Self {
        let made = BTreeMap::new();
        Self { side: Side::start(table, start), release, turns, start, made }
    }

    fn run(&mut self, calls: &[Call]) {
        if self.side.area + 2 * AREA > self.start + APART / 2 {
            self.side.area = self.start;
        }
        self.side.next_sequence();
        let mut state = State::default();
        for call in calls {
            self.step(call, &mut state);
        }
        for call in state.clean_up() {
            self.step(&call, &mut state);
        }
        self.side.forget_descriptors();
        // NO_REGISTER leaks a part of its range.
        if !observe::ranges(self.side.area, self.side.area + AREA).is_empty() {
            observe::clear(self.side.area, self.side.area + AREA);
        }
    }

    fn step(&mut self, call: &Call, state: &mut State) {
        // Their addresses could be in holes of other threads.
        let huge = matches!(call, Call::Reserve { size, .. } if *size > 1 << 40);
        // From 7.2 on this leaks the memory, a known defect.
        let lost = self.release >= Release::R7_2_4
            && matches!(call, Call::Map { at, .. }
                if state.in_area(*at).is_some_and(|at| !at.is_multiple_of(4096)));
        // The value may now refer to another thread's memory.
        let stale = matches!(call.handle(), Some(Handle::Of(name)) if !state.is_alive(name));
        if huge || lost || stale || !self.side.understands(call) {
            return;
        }
        let turn = self.turns.read().expect("no panic");
        if exclusions::reason(self.release, &self.side, state, call).is_some() {
            return;
        }
        // These take no lock in the runtime, so no other call may run at the same time.
        let unlocked = matches!(
            call,
            Call::Export { .. }
                | Call::Import { .. }
                | Call::Retain { .. }
                | Call::Properties { .. }
        );
        let outcome = if unlocked {
            drop(turn);
            let _turn = self.turns.write().expect("no panic");
            self.side.perform(call)
        } else {
            let outcome = self.side.perform(call);
            drop(turn);
            outcome
        };
        let kind =
            if outcome.status == hsa_sys::HSA_STATUS_SUCCESS { "succeeded" } else { "failed" };
        *self.made.entry(format!("{} {kind}", call.function())).or_default() += 1;
        state.note(call, &outcome, |name| name);
    }

    fn end(mut self) -> BTreeMap<String, u64> {
        self.side.shut_down();
        self.made
    }
}

fn holdings(side: &Side) -> Holdings {
    let shared = observe::ranges(0, 1 << 47);
    let shared = shared.iter().filter(|range| range.access.ends_with('s')).count();
    let (store, descriptors): (Vec<_>, _) =
        descriptors().into_iter().partition(|target: &String| is_of_the_machine(target));
    Holdings { descriptors, store: store.len(), shared, memory_left: side.memory_left() }
}

/// Returns whether a descriptor is of machine memory (`KFD_IOC_ALLOC_MEM_FLAGS_GTT`), which the
/// runtime creates for its signals and queues: `/memfd:hsa-kfd:GPU:FLAGS:TOKEN`.
fn is_of_the_machine(target: &str) -> bool {
    let flags = target.strip_prefix("/memfd:hsa-kfd:").and_then(|rest| rest.split(':').nth(1));
    flags.and_then(|flags| u32::from_str_radix(flags, 16).ok()).is_some_and(|flags| flags & 2 != 0)
}

/// Returns the targets of the process's descriptors, in order. Another program lists them, because
/// the emulated driver hides its own from this process; the pipes to that program are ignored.
fn descriptors() -> Vec<String> {
    let folder = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    let mut command = std::process::Command::new("ls");
    let output = command.env_remove("LD_PRELOAD").arg("-l").arg(folder).output().expect("ls");
    let text = String::from_utf8(output.stdout).expect("text");
    let targets = text.lines().filter_map(|line| Some(line.split_once(" -> ")?.1.to_owned()));
    let mut own: Vec<_> =
        targets.filter(|to| !to.starts_with("pipe:") && to != "/dev/null").collect();
    own.sort();
    own
}
