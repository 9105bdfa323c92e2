//! The options that choose the runtime.

use crate::arguments::word;
use crate::program::{UNDER, reproducing};
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

/// Prints information to standard error, dimmed.
pub fn print_info(note: &str) {
    let dim = Style::new().dimmed();
    let mut screen = Screen::stderr();
    // Ignore errors: the information is optional.
    let _ = screen.styled(dim, note).and_then(|()| writeln!(screen));
}

/// The value of `--runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// AMD's runtime where it can run, otherwise the simulation.
    Auto,
    /// The simulation.
    Simulation,
    /// This library.
    Library(PathBuf),
}

impl FromStr for Choice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            // An empty variable counts as not set.
            "" | "auto" => Self::Auto,
            "sim" => Self::Simulation,
            path => Self::Library(path.into()),
        })
    }
}

/// The options that choose the runtime.
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
    /// The number of GPUs of the simulation
    #[arg(long, value_name = "N", help_heading = "Runtime",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The configuration of the simulation, as in HSA_SIM: `era=a,granule=2m,vram=1g,…`
    #[arg(long, value_name = "CONFIG", env = "HSA_SIM", help_heading = "Runtime",
          value_parser = simulation)]
    pub sim: Option<String>,
}

/// Checks a simulation's configuration. Returns it as text, because `--gpus` may be added to it.
fn simulation(text: &str) -> Result<String, String> {
    text.parse::<Config>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The runtime that was chosen.
#[derive(Clone, Debug)]
pub enum Selected {
    /// A simulation, not started yet.
    Simulation(Simulated),
    /// A loaded library.
    Library(Runtime),
}

/// A simulation that can be started.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The configuration, if one was given.
    pub text: Option<String>,
    /// With `auto`, why AMD's runtime was not chosen.
    why: Option<String>,
}

impl Simulated {
    /// Starts the simulation.
    pub fn start(&self) -> anyhow::Result<Runtime> {
        Ok(Runtime::simulated(config(self.text.as_deref())?)?)
    }

    /// Returns the reason in parentheses, or an empty string.
    pub fn why(&self) -> String {
        self.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    }
}

/// Parses a configuration.
fn config(text: Option<&str>) -> anyhow::Result<Config> {
    let Some(text) = text else { return Ok(Config::default()) };
    text.parse().with_context(|| format!("invalid simulation `{text}`"))
}

impl fmt::Display for Selected {
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

/// Describes a runtime in a few words.
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
    /// Opens the chosen runtime and prints to standard error which it is.
    pub fn open(&self) -> anyhow::Result<Runtime> {
        let (runtime, note) = self.open_with_description()?;
        print_info(&note);
        Ok(runtime)
    }

    /// Opens the chosen runtime and returns it with a description.
    pub fn open_with_description(&self) -> anyhow::Result<(Runtime, String)> {
        let (runtime, why) = match self.select()? {
            Selected::Library(runtime) => (runtime, String::new()),
            Selected::Simulation(simulated) => (simulated.start()?, simulated.why()),
        };
        let note = format!("runtime: {}{why}", describe(&runtime));
        Ok((runtime, note))
    }

    /// Chooses the runtime, and loads it if it is a library.
    pub fn select(&self) -> anyhow::Result<Selected> {
        let simulated = |why| Selected::Simulation(Simulated { text: self.simulation(), why });
        Ok(match &self.choice {
            Choice::Simulation => simulated(None),
            // SAFETY: the user has asked to run the code of this file.
            Choice::Library(path) => Selected::Library(unsafe { Runtime::load_from(path)? }),
            Choice::Auto => match DriverState::probe() {
                DriverState::Missing => simulated(Some("there is no /dev/kfd".to_owned())),
                _ => match Runtime::load() {
                    Ok(runtime) => Selected::Library(runtime),
                    // Without a library there is nothing to test. But a library that does not start
                    // must be reported.
                    Err(error) => match error.kind() {
                        ErrorKind::Load(tried) => simulated(Some(tried.to_string())),
                        _ => return Err(error.into()),
                    },
                },
            },
        })
    }

    /// Removes the machine of a sequence if another runtime was chosen explicitly.
    pub fn choose_for(&self, sequence: &mut Sequence) {
        let is_other = matches!(self.choice, Choice::Library(_)) || self.simulation().is_some();
        if is_other {
            sequence.machine = None;
        }
    }

    /// Returns the simulation's configuration as text.
    pub fn simulation(&self) -> Option<String> {
        let text = self.sim.clone().unwrap_or_default();
        match self.gpus {
            Some(gpus) if text.is_empty() => Some(format!("gpus={gpus}")),
            Some(gpus) => Some(format!("{text},gpus={gpus}")),
            None => Some(text).filter(|text| !text.is_empty()),
        }
    }

    /// Returns the simulation's configuration.
    pub fn config(&self) -> anyhow::Result<Config> {
        config(self.simulation().as_deref())
    }

    /// Returns the arguments that choose the same runtime in a new shell, as a user would type them.
    pub fn typed_words(&self) -> Vec<String> {
        // `emulate` and `rocr run` choose the library by this variable.
        let chosen =
            |path: &PathBuf| std::env::var_os("HSA_VMM_RUNTIME").is_some_and(|it| it == *path);
        let under = std::env::var_os(UNDER).is_some();
        let choice = match &self.choice {
            Choice::Auto => None,
            Choice::Library(path) if under && chosen(path) => None,
            Choice::Simulation => Some("sim".to_owned()),
            Choice::Library(path) => Some(path.display().to_string()),
        };
        let gpus = self.gpus.map(|gpus| gpus.to_string());
        [("--runtime", choice), ("--gpus", gpus), ("--sim", self.sim.clone())]
            .into_iter()
            .filter_map(|(option, value)| Some([option.to_owned(), value?]))
            .flatten()
            .collect()
    }

    /// Returns the `bringup` command for the same runtime.
    pub fn bringup(&self, is_simulation: bool) -> String {
        let mut words = self.typed_words();
        if is_simulation && self.choice == Choice::Auto {
            words.splice(..0, ["--runtime", "sim"].map(str::to_owned));
        }
        reproducing(["bringup".to_owned()].into_iter().chain(words))
    }

    /// Returns the arguments that choose the same runtime again.
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
