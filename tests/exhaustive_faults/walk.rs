//! Every sequence of operations, and every way in which the last of them can fail.
//!
//! That an earlier one fails needs no run of its own: it has then changed nothing, and what
//! follows is another sequence.

use crate::model::{Model, Operation};
use crate::process;
use crate::statuses::{ERROR, statuses_of};
use crate::witness::{Witness, is_set_aside};
use crate::world::World;
use hsa_vmm::VmmError;
use hsa_vmm::simulation::{Config, FaultPlan};
use std::fmt;

/// Up to here everything is done on a machine of its own; beyond, an operation that has changed
/// nothing is tried again on the same one.
const FRESH: usize = 3;

/// Where an operation is tried: after these, on such a machine.
struct Trial<'a> {
    walk: &'a mut Walk,
    sequence: &'a [Operation],
    operation: Operation,
}

/// How much was tried on one kind of machine, and what was found.
pub struct Walk {
    pub name: String,
    config: Config,
    depth: usize,
    /// Open before the first machine was made.
    descriptors: usize,
    pub sequences: u64,
    /// Runs with one call failing, with two or more, and without descriptors.
    pub once: u64,
    pub more: u64,
    pub starved: u64,
    /// Of all these, those that ended in quarantine.
    pub set_aside: u64,
    pub violations: Vec<String>,
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, sequences, once, more, starved, set_aside, .. } = self;
        write!(
            f,
            "{name}: {sequences} sequences; {once} runs with a failing call, {more} with several, \
             {starved} without descriptors; {set_aside} of them ended in quarantine"
        )
    }
}

impl Walk {
    /// Tries every sequence of up to `depth` operations.
    pub fn new(name: &str, config: Config, depth: usize) -> Self {
        let descriptors = process::descriptors();
        let mut walk = Self {
            name: name.to_owned(),
            config,
            depth,
            descriptors,
            sequences: 0,
            once: 0,
            more: 0,
            starved: 0,
            set_aside: 0,
            violations: Vec::new(),
        };
        walk.after(&mut Vec::new(), &Model::default());
        walk
    }

    pub fn runs(&self) -> u64 {
        self.once + self.more + self.starved
    }

    fn after(&mut self, sequence: &mut Vec<Operation>, model: &Model) {
        for operation in model.next() {
            // The first few tell enough.
            if self.violations.len() >= 10 {
                return;
            }
            self.sequences += 1;
            let trial = Trial { walk: self, sequence, operation };
            if let Err(violation) = trial.run() {
                self.violations.push(format!("{}: {violation}", self.name));
            }
            if sequence.len() + 1 < self.depth && !Model::is_leaf(operation) {
                sequence.push(operation);
                self.after(sequence, &model.after(operation));
                sequence.pop();
            }
        }
    }
}

/// A machine, the state that the operations have left it in, and what it looks like.
struct Ready {
    world: World,
    model: Model,
    before: Witness,
}

/// What a run that was to fail has come to.
enum Outcome {
    /// No call failed, because the operation makes no more: it did what it should.
    Succeeded,
    /// It failed; the functions whose calls did.
    Failed(Vec<&'static str>),
}

impl Trial<'_> {
    fn run(mut self) -> Result<(), String> {
        let mut ready = Some(self.ready()?);
        for nth in 1.. {
            let failing = |status| FaultPlan::none().fail_any(nth, status);
            let Outcome::Failed(first) = self.attempt(&mut ready, failing(ERROR))? else { break };
            self.walk.once += 1;
            for &status in statuses_of(first[0]).iter().filter(|&&status| status != ERROR) {
                self.attempt(&mut ready, failing(status))?;
                self.walk.once += 1;
            }
            self.attempt(&mut ready, FaultPlan::none().fail_any_from(nth, ERROR))?;
            self.walk.more += 1;
            for later in nth + 1.. {
                let both = failing(ERROR).fail_any(later, ERROR);
                match self.attempt(&mut ready, both)? {
                    Outcome::Failed(calls) if calls.len() == 2 => self.walk.more += 1,
                    _ => break,
                }
            }
        }
        if self.needs_descriptors() {
            self.starve()?;
        }
        Ok(())
    }

    fn ready(&self) -> Result<Ready, String> {
        let (world, model) = World::after(&self.walk.config, self.sequence);
        let before = self.judged(Witness::of(&world), || self.named("before"))?;
        self.judged(before.agrees_with(&world, &model), || self.named("before"))?;
        Ok(Ready { world, model, before })
    }

    fn named(&self, what: &str) -> String {
        format!("{:?} then {:?}, {what}", self.sequence, self.operation)
    }

    fn judged<T>(
        &self,
        verdict: Result<T, String>,
        when: impl Fn() -> String,
    ) -> Result<T, String> {
        verdict.map_err(|violation| format!("{}: {violation}", when()))
    }

    /// One run, judged. Where something has changed, the machine is used up.
    fn attempt(&mut self, machine: &mut Option<Ready>, plan: FaultPlan) -> Result<Outcome, String> {
        let mut ready = match machine.take() {
            Some(ready) => ready,
            None => self.ready()?,
        };
        let (answer, calls) = ready.world.perform_with(self.operation, plan.clone());
        let when = || self.named(&format!("with {plan}: {calls:?} failed, answered {answer:?}"));
        let functions: Vec<_> = calls.iter().map(|&(function, _)| function).collect();
        let verdict = self.judge(&mut ready, answer, &functions);
        let spent = self.judged(verdict, when)?;
        if spent == Spent::InQuarantine {
            self.walk.set_aside += 1;
        }
        if spent == Spent::Not && self.sequence.len() >= FRESH {
            *machine = Some(ready);
        } else {
            let again = spent == Spent::Not;
            let ended = self.end(ready, again);
            self.judged(ended, || self.named(&format!("with {plan}: {calls:?} failed, the end")))?;
        }
        Ok(if functions.is_empty() { Outcome::Succeeded } else { Outcome::Failed(functions) })
    }

    fn judge(
        &self,
        ready: &mut Ready,
        answer: Result<(), VmmError>,
        failed: &[&'static str],
    ) -> Result<Spent, String> {
        let Ready { world, model, before } = ready;
        if world.machine.vmm.quarantine().len() > before.quarantined() {
            if matches!(answer, Err(VmmError::Quarantined { now: false, .. })) {
                return Err("the quarantine is not of this very operation".to_owned());
            }
            if answer.is_ok() && !failed.iter().any(|call| self.survives(call)) {
                return Err("it answered Ok although a call failed".to_owned());
            }
            is_set_aside(world, before, self.operation)?;
            return Ok(Spent::InQuarantine);
        }
        match answer {
            Ok(()) => {
                if let Some(call) = failed.iter().find(|call| !self.survives(call)) {
                    return Err(format!("it answered Ok although {call} failed"));
                }
                let after = model.after(self.operation);
                world.tag(&after);
                Witness::of(world)?.agrees_with(world, &after)?;
                Ok(Spent::Done)
            }
            Err(VmmError::Quarantined { .. }) => Err("nothing is in quarantine".to_owned()),
            Err(_) if failed.is_empty() => Err("it failed although no call did".to_owned()),
            Err(_) => {
                before.difference(&Witness::of(world)?)?;
                Ok(Spent::Not)
            }
        }
    }

    /// Calls whose failure does not keep an operation from doing what was asked for.
    fn survives(&self, function: &str) -> bool {
        match (function, self.operation) {
            // The owner of an import is then not known.
            ("hsa_amd_vmem_get_alloc_properties_from_handle", Operation::Import) => true,
            // What it costs is a signal, or memory of this process that stays pinned.
            ("hsa_signal_destroy", Operation::Fill(_) | Operation::Copy(_)) => true,
            ("hsa_amd_memory_unlock", Operation::Fill(_)) => true,
            // The mapping is gone; what is left of its memory is in the quarantine.
            ("hsa_amd_vmem_handle_release", Operation::Unmap(_)) => true,
            // Where the runtime cannot align, it is tried several times.
            ("hsa_amd_vmem_address_reserve", Operation::ReserveAligned) => true,
            _ => false,
        }
    }

    /// What is still there goes, and nothing is left in the runtime but what is in quarantine.
    fn end(&self, mut ready: Ready, again: bool) -> Result<(), String> {
        if again {
            let answer = ready.world.perform(self.operation);
            let verdict = answer.map_err(|error| format!("and then again: {error}"));
            verdict?;
            let after = ready.model.after(self.operation);
            ready.world.tag(&after);
            Witness::of(&ready.world)?.agrees_with(&ready.world, &after)?;
        }
        close(ready.world, self.walk.descriptors)
    }

    fn needs_descriptors(&self) -> bool {
        use Operation::{Create, Export, Import, Map, Revoke, SetAccess};
        matches!(
            self.operation,
            Create(_) | Map(..) | SetAccess(..) | Revoke(..) | Export(_) | Import
        )
    }

    /// The operation with no descriptor to be had, with one, with two, until it works.
    fn starve(&mut self) -> Result<(), String> {
        let mut machine = None;
        for spare in 0..16 {
            let mut ready = match machine.take() {
                Some(ready) => ready,
                None => self.ready()?,
            };
            let answer = process::with_descriptors(spare, || ready.world.perform(self.operation));
            self.walk.starved += u64::from(answer.is_err());
            let when = || self.named(&format!("with {spare} descriptors left: {answer:?}"));
            if answer.is_ok() {
                let after = ready.model.after(self.operation);
                ready.world.tag(&after);
                let seen = Witness::of(&ready.world);
                let verdict = seen.and_then(|seen| seen.agrees_with(&ready.world, &after));
                self.judged(verdict, when)?;
                return self.judged(close(ready.world, self.walk.descriptors), when);
            }
            if !matches!(answer, Err(VmmError::OutOfDescriptors { .. })) {
                return Err(when());
            }
            let verdict = Witness::of(&ready.world).and_then(|seen| ready.before.difference(&seen));
            self.judged(verdict, when)?;
            machine = Some(ready);
        }
        Err(self.named("fails with sixteen descriptors left"))
    }
}

/// What has become of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spent {
    /// It is as it was before.
    Not,
    Done,
    InQuarantine,
}

/// Ends the library's use of a machine; fails if the runtime is left with anything unknown.
fn close(world: World, descriptors: usize) -> Result<(), String> {
    let World { machine, file, .. } = world;
    drop(file);
    let listed = machine.vmm.quarantine();
    drop(machine.vmm);
    let usage = machine.simulation.usage();
    let memory = listed.iter().filter(|entry| entry.address == hsa_vmm::Address::NULL).count();
    let ranges = listed.len() - memory;
    let nothing_held = usage.vram_used.iter().all(|&used| used == 0) && usage.descriptors == 0;
    if usage.mappings > 0 || usage.handles > memory || usage.reservations > ranges {
        return Err(format!("leaked in the runtime: {usage:?}; in quarantine: {listed:?}"));
    }
    if listed.is_empty() && !nothing_held {
        return Err(format!("leaked in the runtime: {usage:?}"));
    }
    drop((machine.runtime, machine.simulation));
    let now = process::descriptors();
    if now != descriptors {
        return Err(format!("{now} descriptors are open instead of {descriptors}"));
    }
    Ok(())
}
