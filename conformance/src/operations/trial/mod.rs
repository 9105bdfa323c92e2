//! The library and the model side by side.

mod address_space;
mod agreement;
mod calls;
mod compare;
mod difference;
mod perform;
mod resolve;
mod simulation;
mod window;

use super::{
    Alignment, Amount, Descriptor, Edge, Extent, Hint, Name, Place, Shift, Span, Spot, Who,
};
use super::{Operation, Stock};
use crate::descriptors;
use crate::model::{Model, Shared, World};
pub use difference::Difference;
use difference::same;
use hsa_vmm::{Handle, Runtime, Vmm};
use std::os::fd::OwnedFd;
use window::Window;

/// The library and the model side by side, the same operations put to both.
///
/// After each operation all that can be seen of the library is held against the model: verdict,
/// lists, permissions, what is in the memory through every mapping, what this process's address
/// space shows of the reservations, and on the simulation what the runtime has in use. Open file
/// descriptors are counted, so nobody else may open or close any meanwhile.
#[derive(Debug)]
pub struct Trial {
    runtime: Runtime,
    vmm: Vmm,
    model: Model,
    window: Option<Window>,
    freed: Vec<(usize, usize)>,
    given_out: Vec<Handle>,
    exported: Vec<(OwnedFd, Shared)>,
    before: Outside,
    steps: usize,
}

/// What this process has that is not the library's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outside {
    descriptors: Option<usize>,
    shared_mappings: usize,
}

impl Outside {
    fn now() -> Self {
        Self {
            descriptors: descriptors::count(),
            shared_mappings: address_space::shared_mappings(),
        }
    }
}

impl Trial {
    /// Opens the library on a runtime.
    ///
    /// # Errors
    /// [`Difference::Broken`] if it cannot be opened or used at all.
    pub fn open(runtime: &Runtime) -> Result<Self, Difference> {
        // What the runtime makes once and keeps is not to be taken for a leak.
        drop(Self::begin(runtime, Outside { descriptors: None, shared_mappings: 0 })?);
        Self::begin(runtime, Outside::now())
    }

    fn begin(runtime: &Runtime, before: Outside) -> Result<Self, Difference> {
        let mut trial = Self {
            vmm: open(runtime)?,
            model: Model::new(World::of(runtime)),
            runtime: runtime.clone(),
            window: None,
            freed: Vec::new(),
            given_out: Vec::new(),
            exported: Vec::new(),
            before,
            steps: 0,
        };
        trial.open_window()?;
        Ok(trial)
    }

    /// The model, as it is now.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How much there is for operations to work on.
    #[must_use]
    pub fn stock(&self) -> Stock {
        Stock {
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
        let descriptors = descriptors::count();
        let done = self.perform(operation)?;
        if !done {
            same(
                "open file descriptors after what was refused",
                &descriptors,
                &descriptors::count(),
            )?;
        }
        self.compare()?;
        self.steps += 1;
        self.compare_by_gpus(Some(self.steps))?;
        Ok(done)
    }

    /// Unmaps, releases and frees all that is left, and looks whether anything stays behind.
    ///
    /// # Errors
    /// The first difference.
    pub fn finish(mut self) -> Result<(), Difference> {
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
        same("what the process has", &before, &Outside::now())
    }

    /// Drops the library with all that it holds, and opens it again.
    fn shut_down(&mut self) -> Result<(), Difference> {
        self.compare_by_gpus(None)?;
        self.freed.extend(self.reserved());
        self.window = None;
        self.model = Model::new(World::of(&self.runtime));
        // A clone keeps nothing alive that is not used any more.
        self.vmm = open(&self.runtime)?;
        simulation::has_nothing_in_use(&self.runtime)?;
        if self.exported.is_empty() {
            simulation::is_empty(&self.runtime)?;
            same("what the process has", &self.before, &Outside::now())?;
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
