//! The runtime that all levels use.

use crate::run::BenchError;
use hsa_sys::{Library, Search, Table};
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{Quirk, Quirks, VmmOptions};
use hsa_vmm::{AgentId, AllocationProperties, HandleType, Runtime, Vmm};
use std::path::{Path, PathBuf};

/// The size of each measured reservation, allocation and mapping.
pub(crate) const SIZE: usize = 2 << 20;

/// A library file that is sound to load.
#[derive(Clone, Debug)]
pub struct LibraryFile(PathBuf);

impl LibraryFile {
    /// Permits the other functions of this crate to load a file.
    ///
    /// # Safety
    /// The file is a runtime or HIP's library. It must meet the requirements of [`Runtime::load_from`].
    pub unsafe fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The origin of the runtime.
#[derive(Clone, Debug)]
pub enum Backend {
    /// The simulation with a configuration text such as `gpus=2`. With `nothing`, the calls of virtual memory
    /// management immediately return success.
    Simulated(String),
    /// A library file.
    Loaded(LibraryFile),
}

impl Backend {
    /// Returns the number of calls per sample. The number is larger for faster calls, so that the clock's cost is
    /// negligible.
    pub(crate) fn calls_per_sample(&self) -> usize {
        match self {
            Self::Simulated(text) if text.contains("nothing") => 64,
            Self::Simulated(_) => 8,
            Self::Loaded(_) => 1,
        }
    }
}

/// A started runtime, and the table of its functions.
#[derive(Debug)]
pub struct BenchRuntime {
    pub(crate) backend: Backend,
    pub(crate) runtime: Runtime,
    pub(crate) vmm: Vmm,
    pub(crate) table: Table,
    /// Keeps the table's functions loaded. `None` for a simulation, whose functions `runtime` keeps.
    _library: Option<Box<Library>>,
}

impl BenchRuntime {
    /// Starts a runtime.
    ///
    /// # Errors
    /// [`BenchError::Configuration`] for an invalid configuration text; the errors of [`Runtime::load_from`] and
    /// [`on`](Self::on).
    pub fn open(backend: Backend) -> Result<Self, BenchError> {
        let runtime = match &backend {
            Backend::Simulated(text) => {
                let config: Result<Config, _> = text.parse();
                Runtime::simulated(
                    config.map_err(|error| BenchError::Configuration(error.to_string()))?,
                )?
            }
            // SAFETY: the creator of the `LibraryFile` promises that the file is sound to load.
            Backend::Loaded(file) => unsafe { Runtime::load_from(file.path())? },
        };
        Self::on(runtime, backend)
    }

    /// Creates the value for a started runtime. `backend` is the origin of the runtime.
    ///
    /// # Errors
    /// [`BenchError::Configuration`] if the runtime's file is unknown; [`BenchError::Load`]; the errors of
    /// [`Vmm::open`].
    pub fn on(runtime: Runtime, backend: Backend) -> Result<Self, BenchError> {
        let (table, library) = match (runtime.simulation(), &runtime.info().path) {
            (Some(simulation), _) => (*simulation.table(), None),
            (None, Some(path)) => {
                // SAFETY: the runtime was started from this file, so the file is sound to load.
                let library = unsafe { Library::load(&Search::only(path)) };
                let library = library?;
                (*library.table(), Some(Box::new(library)))
            }
            (None, None) => {
                return Err(BenchError::Configuration("the runtime's file is unknown".into()));
            }
        };
        let vmm = Vmm::open(&runtime)?;
        Ok(Self { backend, runtime, vmm, table, _library: library })
    }

    /// Disables the workarounds of the quirks with these names. The name `all` disables all workarounds. Only the
    /// simulation `nothing` supports this.
    ///
    /// # Errors
    /// [`BenchError::Configuration`] for any other runtime, because its quirks could crash the process; the errors of
    /// [`Vmm::open`].
    pub fn without_workarounds(mut self, names: &[String]) -> Result<Self, BenchError> {
        let has_no_op_vmem = self.runtime.simulation().is_some_and(|it| it.config().has_no_op_vmem);
        if !has_no_op_vmem {
            let text = "only the simulation `nothing` works without workarounds";
            return Err(BenchError::Configuration(text.into()));
        }
        let mut quirks = self.quirks();
        let is_named = |quirk: &&Quirk| names.iter().any(|it| it == "all" || it == quirk.name);
        Quirks::KNOWN.iter().filter(is_named).for_each(|quirk| quirks.set(quirk, false));
        // SAFETY: the functions of this simulation do nothing, so they need no workarounds.
        let options = unsafe { VmmOptions::new().with_exact_quirks(quirks) };
        self.vmm = Vmm::open_with(&self.runtime, options)?;
        Ok(self)
    }

    /// Opens the `Vmm` of the Rust levels with these options.
    ///
    /// # Errors
    /// The errors of [`Vmm::open_with`]; [`BenchError::Configuration`] if page tables were requested and cannot be
    /// controlled.
    pub fn with_options(mut self, options: VmmOptions) -> Result<Self, BenchError> {
        self.vmm = Vmm::open_with(&self.runtime, options)?;
        let gpus = self.runtime.gpus();
        let failure = gpus.filter_map(|gpu| self.vmm.page_table_failure(gpu.id())).next();
        match failure {
            Some(why) => Err(BenchError::Configuration(format!("page tables: {why}"))),
            None => Ok(self),
        }
    }

    /// Returns the quirks that the Rust levels work around.
    #[must_use]
    pub fn quirks(&self) -> Quirks {
        self.vmm.quirks()
    }

    /// Returns the origin of the runtime.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the numbers and identifiers of the GPUs that get access to mappings: those that can access the first
    /// GPU's memory.
    pub(crate) fn granted_gpus(&self) -> Vec<(usize, AgentId)> {
        let Some(owner) = self.runtime.gpus().next() else { return Vec::new() };
        let gpus = self.runtime.gpus().map(|gpu| (gpu.can_access(owner.id()), gpu.id()));
        gpus.enumerate().filter(|(_, it)| it.0).map(|(number, it)| (number, it.1)).collect()
    }

    /// Returns the properties of exportable memory of the first GPU.
    pub(crate) fn properties(&self) -> Option<AllocationProperties> {
        let gpu = self.runtime.gpus().next()?.id();
        Some(AllocationProperties::on(gpu).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirks_can_be_disabled() {
        let target = || BenchRuntime::open(Backend::Simulated("nothing".into())).unwrap();
        assert!(target().quirks().grant_without_descriptor_aborts);
        let without = |name: &str| target().without_workarounds(&[name.to_owned()]).unwrap();
        let one = without("grant_without_descriptor_aborts").quirks();
        assert!(!one.grant_without_descriptor_aborts && one.some_calls_take_no_lock);
        let without = without("all");
        assert_eq!(without.quirks(), Quirks::default());
        let mi300x = BenchRuntime::open(Backend::Simulated("mi300x".into())).unwrap();
        assert!(mi300x.without_workarounds(&[]).is_err());
    }
}
