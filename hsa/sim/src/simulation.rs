//! The public handle of a running simulation.

use crate::abi::Function;
use crate::agents::Agent;
use crate::instance::Instance;
use crate::physical::Memory;
use crate::{Config, FaultPlan, Page, Usage, abi, slots};
use core::ops::Range;
use hsa_sys::{HSA_STATUS_SUCCESS, Table, hsa_agent_t, hsa_status_t};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Why a simulation could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process already has the maximum number of simulations.
    #[error(
        "cannot start a simulation: this process already has {}, the maximum; drop one first",
        slots::SLOT_COUNT
    )]
    TooMany,
    /// The configuration is invalid.
    #[error("invalid configuration of the simulation: {0}")]
    Config(String),
}

/// A software HSA runtime with agents, memory and counters of its own.
///
/// A process can have several simulations. The handles of one simulation are invalid in the others.
/// Dropping a simulation frees all its resources, including addresses. The functions of its table
/// that return a status then return `HSA_STATUS_ERROR_NOT_INITIALIZED`. Do not keep the table: a
/// later simulation can use the same functions.
#[derive(Debug)]
pub struct Simulation {
    instance: Arc<Instance>,
    slot: usize,
}

impl Simulation {
    /// Creates a simulation. The caller must then call `hsa_init`.
    ///
    /// # Errors
    /// [`Error::TooMany`] if the process already has 64 simulations. [`Error::Config`] if the
    /// configuration is contradictory.
    pub fn start(config: Config) -> Result<Self, Error> {
        let slot = slots::acquire().ok_or(Error::TooMany)?;
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

    /// Returns those functions of [`Table`] that a runtime with the configured extension version exports.
    #[must_use]
    pub fn table(&self) -> &'static Table {
        abi::table(self.slot, self.instance.behaviour, self.instance.config.has_no_op_vmem)
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.instance.config
    }

    /// Returns the number of calls of a function, including failed calls. Returns 0 for an unknown
    /// name.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        let calls = self.all_calls().into_iter().find(|(name, _)| *name == function);
        calls.map_or(0, |(_, count)| count)
    }

    /// Returns the number of calls of each function, always in the same order.
    #[must_use]
    pub fn all_calls(&self) -> Vec<(&'static str, u64)> {
        abi::names().zip(self.instance.calls()).collect()
    }

    /// Replaces the fault plan, restarts its counters and clears the list of [failed calls](Self::failed_calls).
    pub fn set_faults(&self, plan: FaultPlan) {
        self.instance.set_faults(plan);
    }

    /// Returns the calls that failed as planned since the plan was set, in order. Each is the function's name, and the
    /// call's number among the function's calls since then.
    #[must_use]
    pub fn failed_calls(&self) -> Vec<(&'static str, u64)> {
        self.instance.faults.failed()
    }

    /// Returns the resources that the simulation uses.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::of(&self.instance)
    }

    /// Maps the memory of a descriptor, from byte `offset` on, at a range of addresses in a GPU's page table.
    /// Replaces the entries of this range.
    ///
    /// AMD's driver does this with `GEM_VA` and `AMDGPU_VA_OP_REPLACE`. `permissions` is the sum of 1 (readable) and 2
    /// (writable).
    ///
    /// # Errors
    /// A status, if an argument is invalid or the fault plan names `hsa_sim_replace_entries`.
    pub fn replace_entries(
        &self,
        agent: hsa_agent_t,
        memory: BorrowedFd<'_>,
        range: Range<usize>,
        offset: usize,
        permissions: u32,
    ) -> Result<(), hsa_status_t> {
        let descriptor = memory.as_raw_fd();
        let status = abi::call(self.slot, Function::hsa_sim_replace_entries, move |instance| {
            instance.replace_entries(agent, descriptor, range, offset, permissions)
        });
        if status == HSA_STATUS_SUCCESS { Ok(()) } else { Err(status) }
    }

    /// Allocates memory of the host as a dma-buf, as a program does with the DRM file of a GPU
    /// (`AMDGPU_GEM_CREATE` in GTT, then `PRIME_HANDLE_TO_FD`). To import the dma-buf, call
    /// `hsa_amd_vmem_import_shareable_handle`.
    ///
    /// # Errors
    /// [`Unsupported`](std::io::ErrorKind::Unsupported) if the machine has no GPU, or its driver
    /// cannot allocate such memory ([`Config::host_buffers`](crate::Config::host_buffers)).
    /// `ENOMEM` for more than half of the machine's memory, which is amdgpu's limit. Otherwise the
    /// error of the system call that failed.
    pub fn host_buffer(&self, size: u64) -> std::io::Result<OwnedFd> {
        let config = &self.instance.config;
        if !config.host_buffers || config.gpus.is_empty() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        if size > config.cpus.iter().map(|cpu| cpu.memory).sum::<u64>() / 2 {
            return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Memory::unclaimed(size, Agent::Cpu(0)).export(true)
    }

    /// Looks up an address in the page table of a GPU. `gpu` is the GPU's number, from 0. The
    /// look-up fills the GPU's TLB, as an access of the GPU does.
    #[must_use]
    pub fn page(&self, gpu: usize, address: usize) -> Option<Page> {
        self.instance.lock().page_tables.get(gpu)?.page(address)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // A forked child inherits this value but does not own the simulation.
        if slots::is_owned(self.slot) {
            slots::release(self.slot);
            self.instance.close();
        }
    }
}
