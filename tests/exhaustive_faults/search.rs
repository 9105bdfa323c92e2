//! Enumerates every sequence of operations, and every way in which the last operation can fail. A run executes a
//! sequence with one of these failures.
//!
//! Earlier operations of a sequence never fail. A failed operation changes nothing, so the sequence without it is the
//! same test.

use crate::executor::Executor;
use crate::machine::Machine;
use crate::model::{Model, Operation};
use crate::observation::{Observation, check_quarantine};
use crate::process;
use crate::statuses::{ERROR, statuses_of};
use crate::system_calls::with_failing_calls;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::{Quarantined, VmmOptions};
use hsa_vmm::{Address, Error, ErrorKind};
use std::collections::HashSet;
use std::fmt;

/// If fewer operations than this precede the tested operation, every run has a machine of its own. Otherwise, the
/// search reuses a machine if the tested operation has changed nothing.
const FRESH_MACHINE_DEPTH: usize = 3;

/// What the library does to GPUs' page tables besides the runtime's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageTables {
    Untouched,
    /// The library waits for changes to take effect.
    Barrier,
    /// The library replaces entries to enforce permissions and offsets, and waits.
    Controlled,
    /// The library also replaces entries for read-write access, to remove the permission to execute.
    ControlledWithoutExecute,
}

impl PageTables {
    pub fn options(self) -> VmmOptions {
        let options = VmmOptions::new();
        match self {
            Self::Untouched => options,
            Self::Barrier => options.with_barrier(true),
            Self::Controlled => options.with_page_tables(true),
            Self::ControlledWithoutExecute => options.with_no_execute(true),
        }
    }

    pub fn are_controlled(self) -> bool {
        matches!(self, Self::Controlled | Self::ControlledWithoutExecute)
    }

    /// Returns the number of granules of each memory. With control of page tables, handles have two parts.
    pub fn parts(self) -> usize {
        if self.are_controlled() { 2 } else { 1 }
    }
}

/// A test case: the search, the operations before the tested operation, and the tested operation.
struct Trial<'a> {
    search: &'a mut Search,
    sequence: &'a [Operation],
    operation: Operation,
}

/// A search over all sequences on one kind of machine. Counts the runs, and records violations.
pub struct Search {
    pub name: String,
    config: Config,
    page_tables: PageTables,
    /// The number of open descriptors before the first machine was created.
    descriptors: usize,
    pub sequences: u64,
    /// The number of runs with one failing call.
    pub one_failure_runs: u64,
    /// The number of runs with several failing calls.
    pub several_failure_runs: u64,
    /// The number of runs that failed because too few descriptors were free.
    pub no_descriptor_runs: u64,
    /// The number of runs with failing `mmap` or `mprotect`.
    pub system_call_runs: u64,
    /// The number of runs that ended in quarantine.
    pub quarantined: u64,
    pub violations: Vec<String>,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            sequences,
            one_failure_runs,
            several_failure_runs,
            no_descriptor_runs,
            system_call_runs,
            quarantined,
            ..
        } = self;
        write!(
            f,
            "{name}: {sequences} sequences; {one_failure_runs} runs with a failing call, {several_failure_runs} with several, \
             {no_descriptor_runs} without descriptors, {system_call_runs} with failing system calls; {quarantined} \
             of them ended in quarantine"
        )
    }
}

impl Search {
    /// Tries every sequence of up to `depth` operations. If several sequences reach the same state before the last
    /// operation, tries only one of them, unless `all_sequences` is set.
    pub fn run(
        name: &str,
        (config, page_tables): (Config, PageTables),
        depth: usize,
        all_sequences: bool,
    ) -> Self {
        let mut search = Self {
            name: name.to_owned(),
            config,
            page_tables,
            descriptors: process::descriptors(),
            sequences: 0,
            one_failure_runs: 0,
            several_failure_runs: 0,
            no_descriptor_runs: 0,
            system_call_runs: 0,
            quarantined: 0,
            violations: Vec::new(),
        };
        let mut states = HashSet::new();
        let start = Model { parts: page_tables.parts(), ..Model::default() };
        let mut sequences = vec![(Vec::new(), start)];
        for _ in 0..depth {
            let mut extended = Vec::new();
            for (sequence, model) in sequences {
                for operation in model.next_operations() {
                    search.try_last(&sequence, operation);
                    let after = model.after(operation);
                    if !Model::is_always_last(operation)
                        && (all_sequences || states.insert(format!("{after:?}")))
                    {
                        extended.push(([&sequence[..], &[operation]].concat(), after));
                    }
                }
            }
            sequences = extended;
        }
        search
    }

    pub fn runs(&self) -> u64 {
        self.one_failure_runs
            + self.several_failure_runs
            + self.no_descriptor_runs
            + self.system_call_runs
    }

    fn try_last(&mut self, sequence: &[Operation], operation: Operation) {
        // Records only the first violations.
        if self.violations.len() >= 3 {
            return;
        }
        self.sequences += 1;
        let trial = Trial { search: self, sequence, operation };
        if let Err(violation) = trial.run() {
            self.violations.push(format!("{}: {violation}", self.name));
        }
    }
}

/// Stands for a failed system call in a list of failed functions.
const SYSTEM_CALL: &str = "a system call";

/// A machine on which the operations before the tested operation were executed.
struct PreparedMachine {
    executor: Executor,
    /// The expected state.
    model: Model,
    /// The observed state.
    before: Observation,
}

/// The result of a run with failures.
enum Outcome {
    /// No call failed, because the operation makes fewer calls than the plan expects. The operation succeeded.
    Succeeded,
    /// Calls of these functions failed.
    Failed(Vec<&'static str>),
}

impl Trial<'_> {
    fn run(mut self) -> Result<(), String> {
        let mut prepared = Some(self.prepare()?);
        for nth in 1.. {
            let failing = |status| FaultPlan::none().fail_any(nth, status);
            let Outcome::Failed(first) = self.attempt(&mut prepared, failing(ERROR))? else {
                break;
            };
            self.search.one_failure_runs += 1;
            for &status in statuses_of(first[0]).iter().filter(|&&status| status != ERROR) {
                self.attempt(&mut prepared, failing(status))?;
                self.search.one_failure_runs += 1;
            }
            self.attempt(&mut prepared, FaultPlan::none().fail_any_from(nth, ERROR))?;
            self.search.several_failure_runs += 1;
            for later in nth + 1.. {
                let both = failing(ERROR).fail_any(later, ERROR);
                match self.attempt(&mut prepared, both)? {
                    Outcome::Failed(calls) if calls.len() == 2 => {
                        self.search.several_failure_runs += 1
                    }
                    _ => break,
                }
            }
        }
        if self.needs_descriptors() {
            self.run_without_descriptors()?;
        }
        self.fail_system_calls()
    }

    fn prepare(&self) -> Result<PreparedMachine, String> {
        let Search { config, page_tables, .. } = &*self.search;
        let (executor, model) = Executor::run_sequence(config, *page_tables, self.sequence);
        let before = self.with_context(Observation::of(&executor), || self.describe("before"))?;
        self.with_context(before.check_against(&executor, &model), || self.describe("before"))?;
        Ok(PreparedMachine { executor, model, before })
    }

    fn describe(&self, run: &str) -> String {
        format!("{:?} then {:?}, {run}", self.sequence, self.operation)
    }

    fn with_context<T>(
        &self,
        verdict: Result<T, String>,
        context: impl Fn() -> String,
    ) -> Result<T, String> {
        verdict.map_err(|violation| format!("{}: {violation}", context()))
    }

    /// Performs and checks one run. Leaves `None` in `machine` if the machine cannot be reused.
    fn attempt(
        &mut self,
        machine: &mut Option<PreparedMachine>,
        plan: FaultPlan,
    ) -> Result<Outcome, String> {
        let mut prepared = match machine.take() {
            Some(prepared) => prepared,
            None => self.prepare()?,
        };
        let (result, calls) = prepared.executor.execute_with_faults(self.operation, plan.clone());
        let run = format!("with {plan}: {calls:?} failed");
        let functions: Vec<_> = calls.iter().map(|&(function, _)| function).collect();
        *machine = self.conclude(prepared, result, &functions, &run)?;
        Ok(if functions.is_empty() { Outcome::Succeeded } else { Outcome::Failed(functions) })
    }

    /// Checks a run. Returns the machine if it is unchanged and can be reused.
    fn conclude(
        &mut self,
        mut prepared: PreparedMachine,
        result: Result<(), Error>,
        failed: &[&'static str],
        run: &str,
    ) -> Result<Option<PreparedMachine>, String> {
        let outcome = format!("{result:?}");
        let verdict = self.check(&mut prepared, result, failed);
        let state =
            self.with_context(verdict, || self.describe(&format!("{run}, returned {outcome}")))?;
        if state == State::Quarantined {
            self.search.quarantined += 1;
        }
        if state == State::Unchanged && self.sequence.len() >= FRESH_MACHINE_DEPTH {
            return Ok(Some(prepared));
        }
        let finished = self.finish(prepared, state);
        self.with_context(finished, || {
            self.describe(&format!("{run}, then releasing everything"))
        })?;
        Ok(None)
    }

    /// Makes each `mmap` and `mprotect` in a reservation fail: first alone, and then together with all later calls.
    fn fail_system_calls(&mut self) -> Result<(), String> {
        let mut machine = None;
        for errno in [libc::ENOMEM, libc::EACCES] {
            for (first, all) in (1..).flat_map(|first| [(first, false), (first, true)]) {
                let mut prepared = match machine.take() {
                    Some(prepared) => prepared,
                    None => self.prepare()?,
                };
                let size = prepared.executor.reservation_size();
                let range = |base: &Address| base.get()..base.get() + size;
                let watched: Vec<_> = prepared.executor.reservations.iter().map(range).collect();
                let last = if all { u64::MAX } else { first };
                let (result, failed) = with_failing_calls(&watched, first..=last, errno, || {
                    prepared.executor.execute(self.operation)
                });
                let run = format!("with system calls {first} to {last} failing ({errno})");
                self.search.system_call_runs += u64::from(failed > 0);
                let failed: &[_] = if failed > 0 { &[SYSTEM_CALL] } else { &[] };
                machine = self.conclude(prepared, result, failed, &run)?;
                // After a failed `mmap` of a dma-buf, the library lets the runtime map memory for the CPU. The CPU then
                // cannot access mappings with an offset, so the search does not reuse the machine.
                machine = machine.filter(|_| !self.search.page_tables.are_controlled());
                if failed.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn check(
        &self,
        prepared: &mut PreparedMachine,
        result: Result<(), Error>,
        failed: &[&'static str],
    ) -> Result<State, String> {
        let PreparedMachine { executor, model, before } = prepared;
        if executor.machine.vmm.quarantined_ranges().len() > before.quarantined() {
            if matches!(
                result.as_ref().map_err(Error::kind),
                Err(ErrorKind::Quarantined { now: false, .. })
            ) {
                return Err("the quarantine is not from this operation".to_owned());
            }
            if result.is_ok() && !failed.iter().any(|call| self.tolerates_failure(call)) {
                return Err("the operation returned Ok although a call failed".to_owned());
            }
            check_quarantine(executor, before, self.operation, failed.contains(&SYSTEM_CALL))?;
            return Ok(State::Quarantined);
        }
        match result {
            Ok(()) => {
                if let Some(call) = failed.iter().find(|call| !self.tolerates_failure(call)) {
                    return Err(format!("the operation returned Ok although {call} failed"));
                }
                let after = model.after(self.operation);
                executor.write_tags(&after);
                Observation::of(executor)?.check_against(executor, &after)?;
                Ok(State::Changed)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Quarantined { .. }) => {
                Err("nothing is in quarantine".to_owned())
            }
            Err(_) if failed.is_empty() => {
                Err("the operation failed although no call failed".to_owned())
            }
            // Memory of this process stays locked. The library need not quarantine it.
            Err(_) if failed.contains(&"hsa_amd_memory_unlock") => {
                before.check_unchanged_except_locked(&Observation::of(executor)?)?;
                Ok(State::Changed)
            }
            Err(_) => {
                before.check_unchanged(&Observation::of(executor)?)?;
                Ok(State::Unchanged)
            }
        }
    }

    /// Returns whether the operation succeeds although this function fails.
    fn tolerates_failure(&self, function: &str) -> bool {
        match (function, self.operation) {
            // If the library cannot map memory for the CPU, the runtime maps it. If the library cannot replace a
            // mapping of this process, it removes the mapping's access.
            (SYSTEM_CALL, _) => true,
            // Without the properties, the owner of an import is unknown.
            ("hsa_amd_vmem_get_alloc_properties_from_handle", Operation::Import) => true,
            // If the runtime rejects the CPU's pool, the driver creates the memory.
            ("hsa_amd_vmem_handle_create", Operation::CreateOnHost) => true,
            // The failure leaks a signal, or leaves memory of this process locked.
            ("hsa_signal_destroy", Operation::Fill(_) | Operation::Copy(_)) => true,
            ("hsa_amd_memory_unlock", Operation::Fill(_)) => true,
            // The library waits for changes of page tables by locking a page. If the unlock fails, the page stays
            // locked.
            ("hsa_amd_memory_unlock", _) => self.search.page_tables != PageTables::Untouched,
            // The mapping was removed. The library quarantines only its memory.
            ("hsa_amd_vmem_handle_release", Operation::Unmap(_)) => true,
            // If the runtime cannot align reservations, the library retries this call several times.
            ("hsa_amd_vmem_address_reserve", Operation::ReserveAligned) => true,
            _ => false,
        }
    }

    /// Repeats the operation if it has changed nothing, and then frees everything. Fails if the runtime keeps resources
    /// that are not quarantined.
    fn finish(&self, prepared: PreparedMachine, state: State) -> Result<(), String> {
        let PreparedMachine { mut executor, model, .. } = prepared;
        let after = model.after(self.operation);
        if state == State::Unchanged {
            let result = executor.execute(self.operation);
            result.map_err(|error| format!("on repetition: {error}"))?;
            executor.write_tags(&after);
            Observation::of(&executor)?.check_against(&executor, &after)?;
        }
        if state != State::Quarantined {
            executor.release_all(&after)?;
        }
        close(executor, self.search.descriptors)
    }

    fn needs_descriptors(&self) -> bool {
        use Operation::{
            Create, CreateOnHost, Export, ExportRange, Import, Map, Revoke, SetAccess,
        };
        let creates = matches!(self.operation, Create(_) | CreateOnHost | Import);
        let exports = matches!(self.operation, Export(_) | ExportRange(_));
        creates || exports || matches!(self.operation, Map(..) | SetAccess(..) | Revoke(..))
    }

    /// Executes the operation with no free descriptor, then with one, and so on, until the operation succeeds.
    fn run_without_descriptors(&mut self) -> Result<(), String> {
        let mut machine = None;
        for free_descriptors in 0..16 {
            let mut prepared = match machine.take() {
                Some(prepared) => prepared,
                None => self.prepare()?,
            };
            let result = process::with_free_descriptors(free_descriptors, || {
                prepared.executor.execute(self.operation)
            });
            self.search.no_descriptor_runs += u64::from(result.is_err());
            let context =
                || self.describe(&format!("with {free_descriptors} free descriptors: {result:?}"));
            if result.is_ok() {
                let after = prepared.model.after(self.operation);
                prepared.executor.write_tags(&after);
                let observation = Observation::of(&prepared.executor);
                let verdict = observation
                    .and_then(|observation| observation.check_against(&prepared.executor, &after));
                self.with_context(verdict, context)?;
                return self
                    .with_context(close(prepared.executor, self.search.descriptors), context);
            }
            if !matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfDescriptors)) {
                return Err(context());
            }
            let verdict = Observation::of(&prepared.executor)
                .and_then(|observation| prepared.before.check_unchanged_except_spare(observation));
            self.with_context(verdict, context)?;
            machine = Some(prepared);
        }
        Err(self.describe("fails with fifteen free descriptors"))
    }
}

/// The state of a machine after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unchanged,
    Changed,
    Quarantined,
}

/// Drops the library. Fails if the runtime then still has resources that are not quarantined.
fn close(executor: Executor, descriptors: usize) -> Result<(), String> {
    let Executor { machine, descriptor, .. } = executor;
    drop(descriptor);
    let Machine { simulation, library } = machine;
    let listed = library.vmm.quarantined_ranges();
    drop(library.vmm);
    let usage = simulation.usage();
    let lost_memory = listed.iter().filter(|entry| entry.address == Address::NULL).count();
    let ranges = listed.len() - lost_memory;
    let nothing_held = usage.vram_used.iter().all(|&used| used == 0) && usage.descriptors == 0;
    if usage.mappings > 0 || usage.handles > lost_memory || usage.reservations > ranges {
        return Err(format!("leaked in the runtime: {usage:?}; in quarantine: {listed:?}"));
    }
    if listed.is_empty() && !nothing_held {
        return Err(format!("leaked in the runtime: {usage:?}"));
    }
    drop((library.runtime, simulation));
    unmap_quarantined(&listed);
    let open_descriptors = process::descriptors();
    if open_descriptors != descriptors {
        return Err(format!("{open_descriptors} descriptors are open instead of {descriptors}"));
    }
    Ok(())
}

/// Unmaps addresses that a dropped machine has left in quarantine. Otherwise, the quarantined addresses of ten thousand
/// runs would make it slow to read the process's mappings.
fn unmap_quarantined(listed: &[Quarantined]) {
    for entry in listed.iter().filter(|entry| entry.address != Address::NULL) {
        let (start, end) = (entry.address.get(), entry.address.get() + entry.size);
        for region in process::regions() {
            let (start, end) = (region.start.max(start), region.end.min(end));
            if start < end && region.permissions == "---p" && region.name.is_empty() {
                // SAFETY: no code uses the pages: they are inaccessible, and the machine that reserved them was
                // dropped.
                unsafe { libc::munmap(start as *mut libc::c_void, end - start) };
            }
        }
    }
}
