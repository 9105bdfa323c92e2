//! Measures the time to open a runtime. Opening consists of the runtime's initialisation and of hsa-vmm's queries.

use crate::clock::Clock;
use crate::level::hip::CInterface;
use crate::run::{BenchError, Measurement, Order, compute_measurement};
use crate::runtime::{Backend, LibraryFile};
use crate::samples::Samples;
use crate::{Level, Operation};
use hsa_sys::{HSA_STATUS_SUCCESS, Library, Search};
use hsa_vmm::simulation::{Config, Simulation};
use hsa_vmm::{Runtime, Vmm};

/// The maximum number of samples. It is small, because an initialisation takes milliseconds.
const MAX_SAMPLES: usize = 200;

/// The levels at which opening is measured. [`Level::Owned`] is missing, because it opens a runtime as
/// [`Level::Vmm`] does. The opening of HIP itself is not measured.
const LEVELS: [Level; 3] = [Level::Raw, Level::Vmm, Level::C];

/// Opens and closes a runtime at one level.
trait Opener {
    fn open(&mut self) -> Result<(), BenchError>;
    fn close(&mut self) -> Result<(), BenchError>;
}

/// Measures the opening of a runtime at each supported level. [`Level::Raw`] loads the runtime's file and calls
/// `hsa_init`, [`Level::Vmm`] starts a [`Runtime`] and calls [`Vmm::open`], [`Level::C`] calls `hipInit`. Does not
/// measure closing. Discards the first opening, because it reads the file from disk.
///
/// No runtime may be open in this process: a second `hsa_init` only counts a reference.
///
/// # Errors
/// Returns the error of opening the runtime.
pub fn measure_opening(
    backend: &Backend,
    samples: usize,
    levels: &[Level],
    report: &mut dyn FnMut(f64),
) -> Result<Vec<Measurement>, BenchError> {
    let (clock, samples) = (Clock::new(), samples.clamp(1, MAX_SAMPLES));
    let mut openers: Vec<(Level, Box<dyn Opener>, Samples)> = Vec::new();
    for level in LEVELS.into_iter().filter(|level| levels.contains(level)) {
        let opener: Box<dyn Opener> = match level {
            Level::Raw => Box::new(RawOpener { backend, opened: None }),
            Level::C => Box::new(COpener { backend }),
            _ => Box::new(VmmOpener { backend, opened: None }),
        };
        openers.push((level, opener, Samples::default()));
    }
    let mut order = Order::of(openers.len());
    for round in 0..=samples {
        for &index in order.shuffle() {
            let (_, opener, collected) = &mut openers[index];
            let (result, nanoseconds) = clock.time(|| opener.open());
            result?;
            opener.close()?;
            if round > 0 {
                collected.add(nanoseconds);
            }
        }
        report(round as f64 / samples as f64);
    }
    let gpus = {
        let mut opener = VmmOpener { backend, opened: None };
        opener.open()?;
        opener.opened.as_ref().map_or(0, |vmm| vmm.runtime().gpus().count())
    };
    let mut raw = None;
    let results = openers.iter_mut().filter_map(|(level, _, samples)| {
        compute_measurement(Operation::Open, *level, (0, gpus), samples, 1, &mut raw)
    });
    Ok(results.collect())
}

fn parse_config(text: &str) -> Result<Config, BenchError> {
    text.parse().map_err(|error: hsa_vmm::simulation::ConfigError| {
        BenchError::Configuration(error.to_string())
    })
}

fn start_simulation(text: &str) -> Result<Simulation, BenchError> {
    let simulation = Simulation::start(parse_config(text)?);
    simulation.map_err(|error| BenchError::Configuration(error.to_string()))
}

fn load_library(file: &LibraryFile) -> Result<Library, BenchError> {
    // SAFETY: the creator of the `LibraryFile` promises that the file is sound to load.
    let library = unsafe { Library::load(&Search::only(file.path())) };
    Ok(library?)
}

/// The owner of the table of the runtime's functions.
enum RawRuntime {
    Simulated(Simulation),
    Loaded(Box<Library>),
}

impl RawRuntime {
    fn table(&self) -> &hsa_sys::Table {
        match self {
            Self::Simulated(simulation) => simulation.table(),
            Self::Loaded(library) => library.table(),
        }
    }
}

struct RawOpener<'a> {
    backend: &'a Backend,
    opened: Option<RawRuntime>,
}

fn check(call: &str, status: hsa_sys::hsa_status_t) -> Result<(), BenchError> {
    match status {
        HSA_STATUS_SUCCESS => Ok(()),
        other => Err(BenchError::Configuration(format!("{call} returned {other:#x}"))),
    }
}

impl Opener for RawOpener<'_> {
    fn open(&mut self) -> Result<(), BenchError> {
        let runtime = match self.backend {
            Backend::Simulated(text) => RawRuntime::Simulated(start_simulation(text)?),
            Backend::Loaded(file) => RawRuntime::Loaded(Box::new(load_library(file)?)),
        };
        // SAFETY: `hsa_init` takes no arguments, and `runtime` keeps its library loaded.
        check("hsa_init", unsafe { (runtime.table().core.hsa_init)() })?;
        self.opened = Some(runtime);
        Ok(())
    }

    fn close(&mut self) -> Result<(), BenchError> {
        let Some(runtime) = self.opened.take() else { return Ok(()) };
        // SAFETY: `open` has called `hsa_init`, and nothing uses the runtime afterwards.
        check("hsa_shut_down", unsafe { (runtime.table().core.hsa_shut_down)() })
    }
}

struct VmmOpener<'a> {
    backend: &'a Backend,
    opened: Option<Vmm>,
}

impl Opener for VmmOpener<'_> {
    fn open(&mut self) -> Result<(), BenchError> {
        let runtime = match self.backend {
            Backend::Simulated(text) => Runtime::simulated(parse_config(text)?)?,
            // SAFETY: the creator of the `LibraryFile` promises that the file is sound to load.
            Backend::Loaded(file) => unsafe { Runtime::load_from(file.path())? },
        };
        self.opened = Some(Vmm::open(&runtime)?);
        Ok(())
    }

    fn close(&mut self) -> Result<(), BenchError> {
        self.opened = None;
        Ok(())
    }
}

struct COpener<'a> {
    backend: &'a Backend,
}

impl Opener for COpener<'_> {
    fn open(&mut self) -> Result<(), BenchError> {
        CInterface::open_linked(self.backend)
    }

    fn close(&mut self) -> Result<(), BenchError> {
        CInterface::close_linked();
        Ok(())
    }
}
