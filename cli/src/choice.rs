//! The options that choose the runtime.

use crate::arguments::option_with_value;
use crate::program::{OUTER_COMMAND, reproduce_command};
use crate::screen::Screen;
use anstyle::Style;
use anyhow::Context;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use hsa_vmm::runtime::DriverState;
use hsa_vmm::simulation::Config;
use hsa_vmm::{ErrorKind, Runtime};
use hsa_vmm_conformance::fuzz::Sequence;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;

/// Prints information to standard error, dimmed.
pub fn note_dimmed(text: &str) {
    let dim = Style::new().dimmed();
    let mut screen = Screen::stderr();
    // Ignore errors: the information is optional.
    let _ = screen.write_styled(dim, text).and_then(|()| writeln!(screen));
}

/// The value of `--runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// AMD's runtime if it is installed and `/dev/kfd` exists. Otherwise, the simulation.
    Auto,
    /// The simulation.
    Simulation,
    /// The library in this file.
    Library(PathBuf),
}

impl From<OsString> for RuntimeChoice {
    fn from(text: OsString) -> Self {
        match text.to_str() {
            // An empty `HSA_VMM_RUNTIME` counts as not set.
            Some("" | "auto") => Self::Auto,
            Some("sim") => Self::Simulation,
            _ => Self::Library(text.into()),
        }
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
        help_heading = "Runtime",
        value_parser = OsStringValueParser::new().map(RuntimeChoice::from)
    )]
    pub choice: RuntimeChoice,
    /// The number of GPUs of the simulation
    #[arg(long, value_name = "N", help_heading = "Runtime",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub gpus: Option<u8>,
    /// The configuration of the simulation, as in HSA_SIM: `era=a,granule=2m,vram=1g,…`
    #[arg(long, value_name = "CONFIG", env = "HSA_SIM", help_heading = "Runtime",
          value_parser = check_config)]
    pub sim: Option<String>,
}

/// Checks a simulation's configuration. Returns the text, because [`RuntimeOptions::config_text`] can append `--gpus`.
fn check_config(text: &str) -> Result<String, String> {
    text.parse::<Config>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The runtime that was chosen.
#[derive(Clone, Debug)]
pub enum SelectedRuntime {
    /// A simulation, not started yet.
    Simulation(SelectedSimulation),
    /// A loaded library.
    Library(Runtime),
}

/// A simulation that was chosen, and can be started.
#[derive(Clone, Debug)]
pub struct SelectedSimulation {
    /// The configuration, if one was given.
    pub config: Option<String>,
    /// With `auto`, the reason why AMD's runtime was not chosen.
    reason: Option<String>,
}

impl SelectedSimulation {
    /// Starts the simulation.
    pub fn start(&self) -> anyhow::Result<Runtime> {
        Ok(Runtime::simulated(parse_config(self.config.as_deref())?)?)
    }

    /// Returns the reason in parentheses after a space, or an empty string.
    pub fn reason_suffix(&self) -> String {
        self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    }
}

/// Parses a configuration.
fn parse_config(text: Option<&str>) -> anyhow::Result<Config> {
    let Some(text) = text else { return Ok(Config::default()) };
    text.parse().with_context(|| format!("invalid simulation `{text}`"))
}

impl fmt::Display for SelectedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(runtime) => f.write_str(&describe(runtime)),
            Self::Simulation(SelectedSimulation { config: None, .. }) => f.write_str("simulation"),
            Self::Simulation(SelectedSimulation { config: Some(text), .. }) => {
                write!(f, "simulation of {text}")
            }
        }
    }
}

/// Describes a runtime in a few words.
fn describe(runtime: &Runtime) -> String {
    let info = runtime.info();
    let name = match &info.path {
        Some(path) => path.display().to_string(),
        None => "simulation".to_owned(),
    };
    let (major, minor) = info.extension;
    let gpus = runtime.gpus().count();
    let plural = if gpus == 1 { "" } else { "s" };
    format!("{name}, extension {major}.{minor}, {gpus} GPU{plural}")
}

impl RuntimeOptions {
    /// Opens the chosen runtime and prints its description to standard error.
    pub fn open(&self) -> anyhow::Result<Runtime> {
        let (runtime, description) = self.open_with_description()?;
        note_dimmed(&description);
        Ok(runtime)
    }

    /// Opens the chosen runtime and returns it with a description.
    pub fn open_with_description(&self) -> anyhow::Result<(Runtime, String)> {
        let (runtime, reason) = match self.select()? {
            SelectedRuntime::Library(runtime) => (runtime, String::new()),
            SelectedRuntime::Simulation(simulation) => {
                (simulation.start()?, simulation.reason_suffix())
            }
        };
        let description = format!("runtime: {}{reason}", describe(&runtime));
        Ok((runtime, description))
    }

    /// Chooses the runtime, and loads it if it is a library.
    pub fn select(&self) -> anyhow::Result<SelectedRuntime> {
        let simulated = |reason| {
            SelectedRuntime::Simulation(SelectedSimulation { config: self.config_text(), reason })
        };
        Ok(match &self.choice {
            RuntimeChoice::Simulation => simulated(None),
            RuntimeChoice::Library(path) => {
                // SAFETY: the user chose the file, whose code runs when it is loaded.
                SelectedRuntime::Library(unsafe { Runtime::load_from(path)? })
            }
            RuntimeChoice::Auto => match DriverState::probe() {
                DriverState::Missing => simulated(Some("there is no /dev/kfd".to_owned())),
                _ => match Runtime::load() {
                    Ok(runtime) => SelectedRuntime::Library(runtime),
                    // Use the simulation if no library loads. Report a library that does not start.
                    Err(error) => match error.kind() {
                        ErrorKind::Load(tried) => simulated(Some(tried.to_string())),
                        _ => return Err(error.into()),
                    },
                },
            },
        })
    }

    /// Removes the configuration of a sequence's simulation if these options name a library or configure the
    /// simulation. The sequence then runs on the runtime of these options.
    pub fn override_machine(&self, sequence: &mut Sequence) {
        let selects_runtime =
            matches!(self.choice, RuntimeChoice::Library(_)) || self.config_text().is_some();
        if selects_runtime {
            sequence.machine = None;
        }
    }

    /// Returns the simulation's configuration as text. Returns `None` for the default.
    pub fn config_text(&self) -> Option<String> {
        let text = self.sim.clone().unwrap_or_default();
        match self.gpus {
            Some(gpus) if text.is_empty() => Some(format!("gpus={gpus}")),
            Some(gpus) => Some(format!("{text},gpus={gpus}")),
            None => Some(text).filter(|text| !text.is_empty()),
        }
    }

    /// Parses the simulation's configuration.
    pub fn config(&self) -> anyhow::Result<Config> {
        parse_config(self.config_text().as_deref())
    }

    /// Returns the subcommand and options that chose the library, without the program: `emulate --rocr 7.2.4`.
    /// `emulate`, `vm` and `rocr run` set `HSA_VMM_RUNTIME` to choose the library. Returns `None` if none of them did.
    pub fn outer_choice(&self) -> Option<String> {
        let RuntimeChoice::Library(path) = &self.choice else { return None };
        let is_in_variable = std::env::var_os("HSA_VMM_RUNTIME").is_some_and(|it| it == *path);
        let outer = std::env::var(OUTER_COMMAND).ok().filter(|_| is_in_variable)?;
        // The variable lists the outermost subcommand first.
        let innermost = outer.rsplit(" -- ").next().unwrap_or(&outer);
        Some(innermost.to_owned())
    }

    /// Returns the arguments that choose the same runtime in a new shell, as a user would type them.
    pub fn arguments_to_repeat(&self) -> Vec<String> {
        let choice = match &self.choice {
            RuntimeChoice::Auto => None,
            RuntimeChoice::Library(_) if self.outer_choice().is_some() => None,
            RuntimeChoice::Simulation => Some("sim".to_owned()),
            RuntimeChoice::Library(path) => Some(path.display().to_string()),
        };
        let gpus = self.gpus.map(|gpus| gpus.to_string());
        [("--runtime", choice), ("--gpus", gpus), ("--sim", self.sim.clone())]
            .into_iter()
            .filter_map(|(option, value)| Some([option.to_owned(), value?]))
            .flatten()
            .collect()
    }

    /// Returns the `bringup` command for the same runtime. `is_simulation` says whether a simulation was chosen:
    /// `bringup` uses a simulation only with `--runtime sim`.
    pub fn bringup_command(&self, is_simulation: bool) -> String {
        let mut arguments = self.arguments_to_repeat();
        if is_simulation && self.choice == RuntimeChoice::Auto {
            arguments.splice(..0, ["--runtime", "sim"].map(str::to_owned));
        }
        reproduce_command(["bringup".to_owned()].into_iter().chain(arguments))
    }

    /// Returns the arguments that start a worker with the same options.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let Self { choice, gpus, sim } = self;
        let choice = match choice {
            RuntimeChoice::Auto => "auto".as_ref(),
            RuntimeChoice::Simulation => "sim".as_ref(),
            RuntimeChoice::Library(path) => path.as_os_str(),
        };
        let mut arguments = vec![option_with_value("--runtime", choice)];
        arguments.extend(gpus.map(|gpus| option_with_value("--gpus", gpus.to_string())));
        arguments.extend(sim.as_ref().map(|sim| option_with_value("--sim", sim)));
        arguments
    }
}
