//! The library and the model side by side.

mod address_space;
mod agreement;
mod calls;
mod compare;
mod difference;
mod faults;
mod perform;
mod process_resources;
mod resolve;
mod simulation;
mod window;

use super::{
    AgentName, Alignment, Amount, Descriptor, Edge, Extent, HandleName, Hint, Region, Shift, Span,
    Spot,
};
use super::{ObjectCounts, Operation};
use crate::descriptors;
use crate::model::{Model, Shared, World};
use difference::same;
pub use difference::{Difference, with_retries};
use hsa_vmm::{Handle, Runtime, Vmm};
use process_resources::ProcessResources;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use window::Window;

/// The library and the model side by side, the same operations put to both.
///
/// After each operation all that can be seen of the library is held against the model: verdict,
/// lists, permissions, what is in the memory through every mapping, what this process's address
/// space shows of the reservations, and on the simulation what the runtime has in use. Open file
/// descriptors are counted, so nobody else may open or close any meanwhile.
///
/// That is [`Comparisons::EachOperation`]. [`Comparisons::Every`] looks at all of it now and then and at the end, at
/// the verdicts and at how much there is after each operation.
#[derive(Debug)]
pub struct DifferentialTest {
    runtime: Runtime,
    vmm: Vmm,
    model: Model,
    window: Option<Window>,
    freed: Vec<(usize, usize)>,
    given_out: Vec<Handle>,
    exported: Vec<(OwnedFd, Shared)>,
    before: ProcessResources,
    comparisons: Comparisons,
    steps: usize,
    /// How many calls the planned faults have made fail, if there is a plan.
    failed: Option<Cell<usize>>,
}

/// How often all that can be seen is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparisons {
    /// After each operation: the first difference is where it came about.
    EachOperation,
    /// After every so many operations, and at the end: many times as fast.
    Every(usize),
}

impl DifferentialTest {
    /// Opens the library on a runtime.
    ///
    /// # Errors
    /// [`Difference::Broken`] if it cannot be opened or used at all.
    pub fn open(runtime: &Runtime) -> Result<Self, Difference> {
        Self::open_with(runtime, Comparisons::EachOperation)
    }

    /// The same, with as much comparisons as is asked for.
    ///
    /// # Errors
    /// [`Difference::Broken`] if it cannot be opened or used at all.
    pub fn open_with(runtime: &Runtime, comparisons: Comparisons) -> Result<Self, Difference> {
        let before = ProcessResources::now();
        let mut test = Self {
            vmm: open(runtime)?,
            model: Model::new(World::of(runtime)),
            runtime: runtime.clone(),
            window: None,
            freed: Vec::new(),
            given_out: Vec::new(),
            exported: Vec::new(),
            before,
            comparisons,
            steps: 0,
            failed: None,
        };
        test.open_window()?;
        Ok(test)
    }

    /// The model, as it is now.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The library, as it is now.
    #[must_use]
    pub fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    /// How much there is for operations to work on.
    #[must_use]
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            reservations: self.open_reservations().len(),
            handles: self.model.handles().len() - usize::from(self.window.is_some()),
            mappings: self.open_mappings().len(),
            exported: self.exported.len(),
        }
    }

    /// Performs an operation on both, and holds them against each other. Says whether it was done;
    /// if not, both have refused it.
    ///
    /// # Errors
    /// The first difference. After one nothing else can be said.
    pub fn apply(&mut self, operation: &Operation) -> Result<bool, Difference> {
        self.steps += 1;
        if !self.looks_at_all() {
            let done = self.perform(operation)?;
            self.compare_counts()?;
            return Ok(done);
        }
        let descriptors = self.descriptors();
        let done = self.perform(operation)?;
        if !done && !self.has_quarantine() {
            let now = self.descriptors();
            let what = "open file descriptors after what was refused";
            process_resources::is_unchanged(&self.runtime, what, &descriptors, &now)?;
        }
        self.compare()?;
        self.compare_by_gpus(Some(self.steps))?;
        Ok(done)
    }

    /// How many descriptors this process has open; where calls of the runtime fail, but for those
    /// that the runtime keeps after what was undone.
    fn descriptors(&self) -> Option<usize> {
        let own = self.runtime.simulation().filter(|_| self.has_planned_faults());
        let own = own.map_or(0, |simulation| simulation.usage().descriptors);
        Some(descriptors::count()?.saturating_sub(own))
    }

    /// Whether it is this operation's turn to be followed by a look at everything.
    fn looks_at_all(&self) -> bool {
        match self.comparisons {
            Comparisons::EachOperation => true,
            Comparisons::Every(steps) => self.steps.is_multiple_of(steps.max(1)),
        }
    }

    /// Unmaps, releases and frees all that is left, and looks whether anything stays behind.
    ///
    /// # Errors
    /// The first difference.
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
        same("what is left", &(0, 0, 0), &self.counts())?;
        let Self { vmm, runtime, before, .. } = self;
        drop(vmm);
        simulation::is_empty(&runtime)?;
        before.is_unchanged(&runtime)
    }

    /// Drops the library with all that it holds, and opens it again.
    fn shut_down(&mut self) -> Result<(), Difference> {
        // Of what fails while all is dropped nobody is told.
        self.end_faults();
        self.compare_by_gpus(None)?;
        self.freed.extend(self.reserved());
        self.window = None;
        self.model = Model::new(World::of(&self.runtime));
        // A clone keeps nothing alive that is not used any more.
        self.vmm = open(&self.runtime)?;
        simulation::has_nothing_in_use(&self.runtime)?;
        if self.exported.is_empty() {
            simulation::is_empty(&self.runtime)?;
            self.before.is_unchanged(&self.runtime)?;
        }
        self.open_window()
    }

    /// Mappings, with their sizes.
    fn mapped(&self) -> Vec<(usize, usize)> {
        self.model.mappings().iter().map(|it| (it.start, it.size)).collect()
    }

    /// Handles, each as often as it is referenced.
    fn referenced(&self) -> Vec<Handle> {
        let handles = self.model.handles().iter();
        handles.flat_map(|it| std::iter::repeat_n(it.handle, it.references)).collect()
    }

    /// Reservations, with their sizes.
    fn reserved(&self) -> Vec<(usize, usize)> {
        self.model.reservations().iter().map(|it| (it.base, it.size)).collect()
    }
}

fn open(runtime: &Runtime) -> Result<Vmm, Difference> {
    Vmm::open(runtime).map_err(|error| Difference::Broken(error.to_string()))
}
