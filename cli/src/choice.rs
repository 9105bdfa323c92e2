//! Which runtime to use, and saying which it is.

use crate::arguments::word;
use crate::screen::Screen;
use anstyle::Style;
use anyhow::Context;
use clap::Args;
use hsa_vmm::runtime::DriverState;
use hsa_vmm::simulation::Config;
use hsa_vmm::{ErrorKind, Runtime};
use hsa_vmm_conformance::fuzz::Sequence;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// Says something on standard error that is good to know.
pub fn say(note: &str) {
    let dim = Style::new().dimmed();
    let mut screen = Screen::stderr();
    // Nobody reads what cannot be written.
    let _ = screen.styled(dim, note).and_then(|()| writeln!(screen));
}

/// What `--runtime` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// AMD's where it can run, else the simulation.
    Auto,
    /// The simulation.
    Simulation,
    /// This library, and no other.
    Library(PathBuf),
}

impl FromStr for Choice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            // A variable that is set to nothing asks for nothing.
            "" | "auto" => Self::Auto,
            "sim" => Self::Simulation,
            path => Self::Library(path.into()),
        })
    }
}

/// Which runtime.
#[derive(Args, Clone, Debug)]
pub struct RuntimeOptions {
    /// The runtime: `auto`, `sim`, or the path of a libhsa-runtime64.so.1
    #[arg(
        long = "runtime",
        value_name = "RUNTIME",
        env = "HSA_VMM_RUNTIME",
        default_value = "auto",
        help_heading = "Runtime"
    )]
    pub choice: Choice,
    /// How many GPUs the simulation has
    #[arg(long, value_name = "N", help_heading = "Runtime",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The simulation in detail, as in HSA_SIM: `era=a,granule=2m,vram=1g,…`
    #[arg(long, value_name = "CONFIG", env = "HSA_SIM", help_heading = "Runtime",
          value_parser = simulation)]
    pub sim: Option<String>,
}

/// A simulation's description, if it is understood. It is kept as text because `--gpus` may add to
/// it.
fn simulation(text: &str) -> Result<String, String> {
    text.parse::<Config>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// What there is to work on.
#[derive(Clone, Debug)]
pub enum Ground {
    /// A simulation, to be started.
    Simulation(Simulated),
    /// A library, loaded.
    Library(Runtime),
}

/// A simulation that can be started.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// What was asked for of it, if anything.
    pub text: Option<String>,
    /// Why it is not AMD's runtime, where that was to be had if there was one.
    why: Option<String>,
}

impl Simulated {
    /// Starts it.
    pub fn start(&self) -> anyhow::Result<Runtime> {
        Ok(Runtime::simulated(config(self.text.as_deref())?)?)
    }

    /// Why it is not AMD's runtime, to stand behind what it is.
    pub fn why(&self) -> String {
        self.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    }
}

/// What a simulation is like of which this was said.
fn config(text: Option<&str>) -> anyhow::Result<Config> {
    let Some(text) = text else { return Ok(Config::default()) };
    text.parse().with_context(|| format!("the simulation `{text}` is not understood"))
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(runtime) => f.write_str(&describe(runtime)),
            Self::Simulation(Simulated { text: None, .. }) => f.write_str("simulation"),
            Self::Simulation(Simulated { text: Some(text), .. }) => {
                write!(f, "simulation of {text}")
            }
        }
    }
}

/// A runtime in a few words.
fn describe(runtime: &Runtime) -> String {
    let info = runtime.info();
    let what = match &info.path {
        Some(path) => path.display().to_string(),
        None => "simulation".to_owned(),
    };
    let (major, minor) = info.extension;
    let gpus = runtime.gpus().count();
    let plural = if gpus == 1 { "" } else { "s" };
    format!("{what}, extension {major}.{minor}, {gpus} GPU{plural}")
}

impl RuntimeOptions {
    /// Opens the runtime that was asked for, and says on standard error which it is.
    pub fn open(&self) -> anyhow::Result<Runtime> {
        let (runtime, note) = self.open_and_tell()?;
        say(&note);
        Ok(runtime)
    }

    /// Opens the runtime that was asked for, and tells which it is.
    pub fn open_and_tell(&self) -> anyhow::Result<(Runtime, String)> {
        let (runtime, why) = match self.ground()? {
            Ground::Library(runtime) => (runtime, String::new()),
            Ground::Simulation(simulated) => (simulated.start()?, simulated.why()),
        };
        let note = format!("runtime: {}{why}", describe(&runtime));
        Ok((runtime, note))
    }

    /// Finds the runtime that was asked for, and loads it if it is a library.
    pub fn ground(&self) -> anyhow::Result<Ground> {
        let simulated = |why| Ground::Simulation(Simulated { text: self.simulation(), why });
        Ok(match &self.choice {
            Choice::Simulation => simulated(None),
            // SAFETY: the user has named the file to run its code, as a shell would have.
            Choice::Library(path) => Ground::Library(unsafe { Runtime::load_from(path)? }),
            Choice::Auto => match DriverState::probe() {
                DriverState::Missing => simulated(Some("there is no /dev/kfd".to_owned())),
                _ => match Runtime::load() {
                    Ok(runtime) => Ground::Library(runtime),
                    // A driver without a library: nothing to test, as without a driver. A library
                    // that does not start is what somebody wants to know.
                    Err(error) => match error.kind() {
                        ErrorKind::Load(tried) => simulated(Some(tried.to_string())),
                        _ => return Err(error.into()),
                    },
                },
            },
        })
    }

    /// Has a sequence performed on its own machine, unless another runtime is asked for by name.
    pub fn choose_for(&self, sequence: &mut Sequence) {
        let is_other = matches!(self.choice, Choice::Library(_)) || self.simulation().is_some();
        if is_other {
            sequence.machine = None;
        }
    }

    /// The simulation that was asked for, as text.
    pub fn simulation(&self) -> Option<String> {
        let text = self.sim.clone().unwrap_or_default();
        match self.gpus {
            Some(gpus) if text.is_empty() => Some(format!("gpus={gpus}")),
            Some(gpus) => Some(format!("{text},gpus={gpus}")),
            None => Some(text).filter(|text| !text.is_empty()),
        }
    }

    /// The same, understood.
    pub fn config(&self) -> anyhow::Result<Config> {
        config(self.simulation().as_deref())
    }

    /// The words that ask for the same again.
    pub fn words(&self) -> Vec<OsString> {
        let Self { choice, gpus, sim } = self;
        let choice = match choice {
            Choice::Auto => "auto".as_ref(),
            Choice::Simulation => "sim".as_ref(),
            Choice::Library(path) => path.as_os_str(),
        };
        let mut words = vec![word("--runtime", choice)];
        words.extend(gpus.map(|gpus| word("--gpus", gpus.to_string())));
        words.extend(sim.as_ref().map(|sim| word("--sim", sim)));
        words
    }
}
