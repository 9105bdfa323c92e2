//! The differential test: runs operations on the library and on the model.

mod address_space;
mod agreement;
mod calls;
mod compare;
mod describe;
mod difference;
mod faults;
mod page_tables;
mod perform;
mod process_resources;
mod resolve;
mod simulation;
mod window;

use super::{
    AgentSelector, Alignment, Amount, Descriptor, Edge, Extent, HandleSelector, Hint, Region,
    Shift, Span, Spot,
};
use super::{ObjectCounts, Operation};
use crate::descriptors;
use crate::model::{Machine, Memory, Model};
use difference::expect_equal;
pub use difference::{Difference, with_retries};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Handle, Runtime, Vmm};
use process_resources::ProcessResources;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use window::Window;

/// Runs the same operations on the library and on the model, and compares library and model.
///
/// A complete comparison covers the verdict, lists, access, the contents of memory through every mapping, the process's
/// address space and GPUs' page tables. On the simulation, the comparison also covers the runtime's usage. The
/// comparison includes the number of open file descriptors, so other threads must not open or close descriptors.
///
/// With [`Comparisons::EachOperation`], the test makes a complete comparison after each operation. With
/// [`Comparisons::Every`], the test makes a complete comparison after several operations and at the end. After the
/// other operations, the test compares only verdicts and counts.
#[derive(Debug)]
pub struct DifferentialTest {
    runtime: Runtime,
    vmm: Vmm,
    options: VmmOptions,
    model: Model,
    /// The memory through which the test exchanges bytes with GPUs.
    window: Option<Window>,
    /// The address and size of each freed reservation.
    freed: Vec<(usize, usize)>,
    /// All handles that the library has returned.
    returned_handles: Vec<Handle>,
    exported: Vec<(OwnedFd, Memory)>,
    /// The resources before the library was opened.
    resources_at_start: ProcessResources,
    /// The resources after the library was opened. Control of page tables keeps a descriptor open.
    resources_when_open: ProcessResources,
    comparisons: Comparisons,
    /// The number of operations so far.
    steps: usize,
    /// The number of planned faults that were noticed so far; `None` without a fault plan.
    faults_seen: Option<Cell<usize>>,
}

/// How often the complete state is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparisons {
    /// After each operation: shows the operation that caused a difference.
    EachOperation,
    /// After every `n` operations and at the end: many times faster.
    Every(usize),
}

impl DifferentialTest {
    /// Opens the library on a runtime.
    ///
    /// # Errors
    /// [`Difference::RuleViolation`] if the library cannot be opened. Another [`Difference`] if the first calls do not
    /// agree with the model.
    pub fn open(runtime: &Runtime) -> Result<Self, Difference> {
        Self::open_with(runtime, VmmOptions::new(), Comparisons::EachOperation)
    }

    /// Opens the library on a runtime, with options and a frequency of comparisons.
    ///
    /// # Errors
    /// [`Difference::RuleViolation`] if the library cannot be opened. Another [`Difference`] if the first calls do not
    /// agree with the model.
    pub fn open_with(
        runtime: &Runtime,
        options: VmmOptions,
        comparisons: Comparisons,
    ) -> Result<Self, Difference> {
        let resources_at_start = ProcessResources::now();
        let vmm = open(runtime, options)?;
        let mut test = Self {
            model: Model::new(Machine::of(&vmm)),
            vmm,
            options,
            runtime: runtime.clone(),
            window: None,
            freed: Vec::new(),
            returned_handles: Vec::new(),
            exported: Vec::new(),
            resources_at_start,
            resources_when_open: ProcessResources::now(),
            comparisons,
            steps: 0,
            faults_seen: None,
        };
        test.open_window()?;
        Ok(test)
    }

    /// Returns the model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the library.
    #[must_use]
    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    /// Returns the number of objects that operations can name.
    #[must_use]
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            reservations: self.reservations_except_window().len(),
            handles: self.model.handles().len() - usize::from(self.window.is_some()),
            mappings: self.mappings_except_window().len(),
            exported: self.exported.len(),
        }
    }

    /// Performs an operation on library and model, and compares library and model. Returns `false` if library and model
    /// rejected the operation, or if a planned fault made the operation fail.
    ///
    /// # Errors
    /// Returns the first difference. The test cannot continue after a difference.
    pub fn apply(&mut self, operation: &Operation) -> Result<bool, Difference> {
        self.steps += 1;
        if !self.must_compare_everything() {
            let succeeded = self.perform(operation)?;
            self.compare_counts()?;
            return Ok(succeeded);
        }
        let descriptors = self.descriptors();
        let succeeded = self.perform(operation)?;
        if !succeeded && !self.has_quarantine() {
            let count = || self.descriptors();
            let now = process_resources::settled(&self.runtime, &descriptors, count);
            let what = "open file descriptors after a rejected operation";
            process_resources::check_unchanged(&self.runtime, what, &descriptors, &now)?;
        }
        self.compare()?;
        self.compare_by_gpus(Some(self.steps))?;
        Ok(succeeded)
    }

    /// Counts the open descriptors of this process. With planned faults, a rejected operation can leave descriptors of
    /// the simulation open. The same happens if a mapping at an offset fails after the library has exported the memory,
    /// or if the runtime rejects a grant because a GPU lacks peer access. In these cases, the count excludes the
    /// simulation's descriptors.
    fn descriptors(&self) -> Option<usize> {
        let machine = self.model.machine();
        let reaches_all =
            |gpu: usize| machine.gpus().all(|owner| machine.agents[gpu].can_access[owner]);
        let may_keep = self.has_planned_faults()
            || self.vmm.can_map_offsets()
            || !machine.gpus().all(reaches_all);
        let kept = self.runtime.simulation().filter(|_| may_keep);
        let kept = kept.map_or(0, |simulation| simulation.usage().descriptors);
        Some(descriptors::count()?.saturating_sub(kept))
    }

    /// Returns whether to compare everything after this operation.
    fn must_compare_everything(&self) -> bool {
        match self.comparisons {
            Comparisons::EachOperation => true,
            Comparisons::Every(steps) => self.steps.is_multiple_of(steps.max(1)),
        }
    }

    /// Unmaps, releases and frees all objects, and checks that no object or resource remains.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn finish(mut self) -> Result<(), Difference> {
        self.compare()?;
        if self.has_quarantine() {
            return Ok(());
        }
        self.end_faults();
        self.compare_by_gpus(None)?;
        self.exported.clear();
        for (address, size) in self.mapped() {
            self.unmap(address, size)?;
        }
        for handle in self.referenced() {
            self.release(handle)?;
        }
        self.compare()?;
        for (address, size) in self.reserved() {
            self.free(address, size)?;
        }
        self.window = None;
        self.compare()?;
        expect_equal("reservations, handles and mappings at the end", &(0, 0, 0), &self.counts())?;
        let Self { vmm, runtime, resources_at_start, .. } = self;
        drop(vmm);
        simulation::check_empty(&runtime)?;
        resources_at_start.check_unchanged(&runtime)
    }

    /// Drops the library with all of its objects, and opens it again.
    fn reopen(&mut self) -> Result<(), Difference> {
        // Dropping the library cannot report a failure, so end the planned faults first.
        self.end_faults();
        self.compare_by_gpus(None)?;
        self.freed.extend(self.reserved());
        self.window = None;
        // The assignment drops the old library.
        self.vmm = open(&self.runtime, self.options)?;
        self.model = Model::new(Machine::of(&self.vmm));
        simulation::check_nothing_in_use(&self.runtime)?;
        if self.exported.is_empty() {
            simulation::check_empty(&self.runtime)?;
            self.resources_when_open.check_unchanged(&self.runtime)?;
        }
        self.open_window()
    }

    /// Returns the addresses and sizes of the mappings.
    fn mapped(&self) -> Vec<(usize, usize)> {
        self.model.mappings().iter().map(|it| (it.start, it.size)).collect()
    }

    /// Returns the handles, each once per reference.
    fn referenced(&self) -> Vec<Handle> {
        let handles = self.model.handles().iter();
        handles.flat_map(|it| std::iter::repeat_n(it.handle, it.references)).collect()
    }

    /// Returns the addresses and sizes of the reservations.
    fn reserved(&self) -> Vec<(usize, usize)> {
        self.model.reservations().iter().map(|it| (it.base, it.size)).collect()
    }
}

fn open(runtime: &Runtime, options: VmmOptions) -> Result<Vmm, Difference> {
    Vmm::open_with(runtime, options).map_err(|error| Difference::RuleViolation(error.to_string()))
}
