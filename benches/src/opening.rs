//! Measures the opening of a runtime: its initialisation, and the queries of the library.

use crate::clock::Clock;
use crate::level::hip::Hip;
use crate::run::{BenchError, Order, Result, result};
use crate::runtime::{Backend, LibraryFile};
use crate::samples::Samples;
use crate::{Level, Operation};
use hsa_sys::{HSA_STATUS_SUCCESS, Library, Search};
use hsa_vmm::simulation::{Config, Simulation};
use hsa_vmm::{Runtime, Vmm};

/// The maximum number of samples: an initialisation takes milliseconds.
const MAX_SAMPLES: usize = 200;

/// The levels with a measurement of opening.
const LEVELS: [Level; 3] = [Level::Raw, Level::Vmm, Level::C];

/// Opens and closes a runtime at one level.
trait Opener {
    fn open(&mut self) -> std::result::Result<(), BenchError>;
    fn close(&mut self) -> std::result::Result<(), BenchError>;
}

/// Measures the opening of a runtime at each supported level: [`Level::Raw`] loads the library and
/// calls `hsa_init`, [`Level::Vmm`] is [`Runtime`] and [`Vmm::open`], [`Level::C`] is `hipInit`.
/// Excludes closing, and the first opening, which reads the library from disk.
///
/// No runtime may be open in this process: opening it again would take no time.
///
/// # Errors
/// Returns the error of opening the runtime.
pub fn opening(
    backend: &Backend,
    samples: usize,
    levels: &[Level],
    report: &mut dyn FnMut(f64),
) -> std::result::Result<Vec<Result>, BenchError> {
    let (clock, samples) = (Clock::new(), samples.clamp(1, MAX_SAMPLES));
    let mut openers: Vec<(Level, Box<dyn Opener>, Samples)> = Vec::new();
    for level in LEVELS.into_iter().filter(|level| levels.contains(level)) {
        let opener: Box<dyn Opener> = match level {
            Level::Raw => Box::new(Raw { backend, open: None }),
            Level::C => Box::new(C { backend }),
            _ => Box::new(Calls { backend, open: None }),
        };
        openers.push((level, opener, Samples::default()));
    }
    let mut order = Order::of(openers.len());
    for round in 0..=samples {
        for &index in order.shuffled() {
            let (_, opener, samples) = &mut openers[index];
            let (opened, nanoseconds) = clock.time(|| opener.open());
            opened?;
            opener.close()?;
            if round > 0 {
                samples.add(nanoseconds);
            }
        }
        report(round as f64 / samples as f64);
    }
    let gpus = {
        let mut opener = Calls { backend, open: None };
        opener.open()?;
        opener.open.as_ref().map_or(0, |vmm| vmm.runtime().gpus().count())
    };
    let mut raw = None;
    let results = openers.iter_mut().filter_map(|(level, _, samples)| {
        result(Operation::Open, *level, (0, gpus), samples, 1, &mut raw)
    });
    Ok(results.collect())
}

fn config(text: &str) -> std::result::Result<Config, BenchError> {
    text.parse().map_err(|error: hsa_vmm::simulation::ConfigError| {
        BenchError::Configuration(error.to_string())
    })
}

fn simulation(text: &str) -> std::result::Result<Simulation, BenchError> {
    let simulation = Simulation::start(config(text)?);
    simulation.map_err(|error| BenchError::Configuration(error.to_string()))
}

fn library(file: &LibraryFile) -> std::result::Result<Library, BenchError> {
    // SAFETY: the creator of the `LibraryFile` promises that the file is sound to load.
    let library = unsafe { Library::load(&Search::only(file.path())) };
    Ok(library?)
}

/// The owner of the table of the runtime's functions.
enum Source {
    Simulated(Simulation),
    Loaded(Box<Library>),
}

impl Source {
    fn table(&self) -> &hsa_sys::Table {
        match self {
            Self::Simulated(simulation) => simulation.table(),
            Self::Loaded(library) => library.table(),
        }
    }
}

/// The runtime's own functions.
struct Raw<'a> {
    backend: &'a Backend,
    open: Option<Source>,
}

fn check(call: &str, status: hsa_sys::hsa_status_t) -> std::result::Result<(), BenchError> {
    match status {
        HSA_STATUS_SUCCESS => Ok(()),
        other => Err(BenchError::Configuration(format!("{call} returned {other:#x}"))),
    }
}

impl Opener for Raw<'_> {
    fn open(&mut self) -> std::result::Result<(), BenchError> {
        let source = match self.backend {
            Backend::Simulated(text) => Source::Simulated(simulation(text)?),
            Backend::Loaded(file) => Source::Loaded(Box::new(library(file)?)),
        };
        // SAFETY: the function takes no arguments.
        check("hsa_init", unsafe { (source.table().core.hsa_init)() })?;
        self.open = Some(source);
        Ok(())
    }

    fn close(&mut self) -> std::result::Result<(), BenchError> {
        let Some(source) = self.open.take() else { return Ok(()) };
        // SAFETY: the function takes no arguments.
        check("hsa_shut_down", unsafe { (source.table().core.hsa_shut_down)() })
    }
}

/// The library's calls.
struct Calls<'a> {
    backend: &'a Backend,
    open: Option<Vmm>,
}

impl Opener for Calls<'_> {
    fn open(&mut self) -> std::result::Result<(), BenchError> {
        let runtime = match self.backend {
            Backend::Simulated(text) => Runtime::simulated(config(text)?)?,
            // SAFETY: the creator of the `LibraryFile` promises that it is sound to load.
            Backend::Loaded(file) => unsafe { Runtime::load_from(file.path())? },
        };
        self.open = Some(Vmm::open(&runtime)?);
        Ok(())
    }

    fn close(&mut self) -> std::result::Result<(), BenchError> {
        self.open = None;
        Ok(())
    }
}

/// The library's C interface.
struct C<'a> {
    backend: &'a Backend,
}

impl Opener for C<'_> {
    fn open(&mut self) -> std::result::Result<(), BenchError> {
        Hip::open_linked(self.backend)
    }

    fn close(&mut self) -> std::result::Result<(), BenchError> {
        Hip::close_linked();
        Ok(())
    }
}
