//! A running simulation, as the Rust program that started it holds it.

use crate::instance::Instance;
use crate::{Config, FaultPlan, Page, Usage, abi, slots};
use hsa_sys::Table;
use std::sync::Arc;

/// Why a simulation could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every slot is taken.
    #[error(
        "there are {} simulations in this process already, which is the most there can be; \
             drop one first",
        slots::SLOTS
    )]
    TooMany,
    /// The configuration makes no sense.
    #[error("the configuration cannot be simulated: {0}")]
    Config(String),
}

/// A software HSA runtime with agents, memory and counters of its own.
///
/// Several live side by side in a process; handles of one mean nothing to another. Dropping it
/// frees everything, addresses included; the functions of its table then answer
/// `HSA_STATUS_ERROR_NOT_INITIALIZED` (until another simulation takes the slot, so do not keep
/// the table).
#[derive(Debug)]
pub struct Simulation {
    instance: Arc<Instance>,
    slot: usize,
}

impl Simulation {
    /// Makes a simulation. It is not started in HSA's sense: that is `hsa_init`'s work.
    ///
    /// # Errors
    /// [`Error::TooMany`] if there are 64 already, [`Error::Config`] if the configuration is
    /// contradictory.
    pub fn start(config: Config) -> Result<Self, Error> {
        let slot = slots::take().ok_or(Error::TooMany)?;
        match Instance::new(config, slot) {
            Ok(instance) => {
                slots::fill(slot, Arc::clone(&instance));
                Ok(Self { instance, slot })
            }
            Err(error) => {
                slots::release(slot);
                Err(error)
            }
        }
    }

    /// The functions, as a runtime with this configuration's extension version exports them.
    #[must_use]
    pub fn table(&self) -> &'static Table {
        abi::table(self.slot, self.instance.behaviour, self.instance.config.does_nothing)
    }

    /// What is simulated.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.instance.config
    }

    /// How often a function was called, failed calls included; 0 for a name that is none.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        self.all_calls().into_iter().find(|(name, _)| *name == function).map_or(0, |(_, n)| n)
    }

    /// How often each function was called, in the order of the table.
    #[must_use]
    pub fn all_calls(&self) -> Vec<(&'static str, u64)> {
        abi::names().zip(self.instance.calls()).collect()
    }

    /// Replaces the fault plan. The calls' numbers count from now.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.instance.set_faults(plan);
    }

    /// The calls that the fault plan has made fail, in order: function and its call's number.
    #[must_use]
    pub fn failed_calls(&self) -> Vec<(&'static str, u64)> {
        self.instance.faults.failed()
    }

    /// What is in use at the moment.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::of(&self.instance)
    }

    /// What a GPU's page table says about an address; the first GPU is 0.
    #[must_use]
    pub fn page(&self, gpu: usize, address: usize) -> Option<Page> {
        self.instance.lock().page_tables.get(gpu)?.page(address)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // A forked child has inherited this value, but the memory is its parent's business.
        if slots::is_owned(self.slot) {
            slots::release(self.slot);
            self.instance.close();
        }
    }
}
