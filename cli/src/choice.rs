//! Which runtime to use, and saying which it is.

use crate::arguments::Common;
use anstyle::Style;
use anyhow::Context;
use hsa_vmm::runtime::DriverState;
use hsa_vmm::simulation::Config;
use hsa_vmm::{Runtime, RuntimeError};
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

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

impl Common {
    /// Opens the runtime that was asked for, and says on standard error which it is.
    pub fn open(&self) -> anyhow::Result<Runtime> {
        let (runtime, why) = match &self.runtime {
            Choice::Simulation => (self.simulate()?, None),
            Choice::Library(path) => (Runtime::load_from(path)?, None),
            Choice::Auto => match DriverState::probe() {
                DriverState::Missing => (self.simulate()?, Some("there is no /dev/kfd".to_owned())),
                _ => match Runtime::load() {
                    Ok(runtime) => (runtime, None),
                    // A driver without a library: nothing to test, as without a driver. A library
                    // that does not start is what somebody wants to know.
                    Err(RuntimeError::Load(error)) => (self.simulate()?, Some(error.to_string())),
                    Err(error) => return Err(error.into()),
                },
            },
        };
        tell(&runtime, why);
        Ok(runtime)
    }

    /// What is simulated, in the words of HSA_SIM.
    pub fn simulation(&self) -> String {
        let text = self.sim.clone().unwrap_or_default();
        match self.gpus {
            Some(gpus) if text.is_empty() => format!("gpus={gpus}"),
            Some(gpus) => format!("{text},gpus={gpus}"),
            None => text,
        }
    }

    fn simulate(&self) -> anyhow::Result<Runtime> {
        let text = self.simulation();
        let config = if text.is_empty() {
            Config::default()
        } else {
            text.parse().with_context(|| format!("the simulation `{text}` is not understood"))?
        };
        Ok(Runtime::simulated(config)?)
    }
}

/// Says on standard error which runtime it is, and why not another.
pub fn tell(runtime: &Runtime, why: Option<String>) {
    let info = runtime.info();
    let what = match &info.path {
        Some(path) => path.display().to_string(),
        None => "simulation".to_owned(),
    };
    let (major, minor) = info.extension;
    let gpus = runtime.gpus().count();
    let plural = if gpus == 1 { "" } else { "s" };
    let dim = Style::new().dimmed();
    anstream::eprintln!(
        "{dim}runtime: {what}, extension {major}.{minor}, {gpus} GPU{plural}{}{dim:#}",
        why.map(|why| format!(" ({why})")).unwrap_or_default()
    );
}
