//! Wrappers of HSA's functions. They send a record before and after each call.
//!
//! The wrappers call the runtime directly, without the library's checks and workarounds.

mod agents;
mod copy;
mod cpu_access;
mod page_table;
mod pool_memory;
mod stuck_copy;
mod virtual_memory;

pub use agents::{AGENT_INFO, POOL_INFO};
pub use copy::{COPY, FILL, SDMA, SHADER};
pub use cpu_access::{Difference, NOT_WRITTEN, OTHER_CONTENTS, wrong_data};
pub use page_table::{AddressSpace, FAILED, NEITHER_ENDED_NOR_FAULTED, REPLACE};
pub use virtual_memory::{FREE, RELEASE};

use super::arguments::Bringup;
use super::record::{Argument, Record};
use super::recorder::{AlreadyReported, Recorder};
use crate::choice::RuntimeChoice;
use crate::planned_faults::is_driver_emulated;
use hsa_sys as sys;
use std::fmt;
use std::sync::OnceLock;
use std::time::Instant;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// A value and its expression in the C program that `--program` writes.
#[derive(Clone, Debug)]
pub struct Named<T> {
    pub c_expression: String,
    pub value: T,
}

impl<T> Named<T> {
    pub fn new(c_expression: impl Into<String>, value: T) -> Self {
        Self { c_expression: c_expression.into(), value }
    }
}

/// An agent: `cpu` or `gpu[1]`.
pub type Agent = Named<sys::hsa_agent_t>;
/// A pool: `pool` or `host_pool`.
pub type Pool = Named<sys::hsa_amd_memory_pool_t>;
/// A handle of physical memory.
pub type Handle = Named<sys::hsa_amd_vmem_alloc_handle_t>;
/// An address as a number. In a call, it becomes a pointer.
pub type Address = Named<usize>;

/// The attributes of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolInfo {
    pub segment: u32,
    pub allocatable: bool,
    pub size: usize,
    pub granule: usize,
}

/// The functions of the runtime and the recorder of their calls.
#[derive(Debug)]
pub struct Hsa<'a> {
    table: sys::Table,
    vmem: Option<sys::Vmem>,
    pub recorder: &'a Recorder,
    /// When the level's time limit expires.
    deadline: Instant,
    /// Whether the driver is simulated or emulated. Each process then usually has its own GPUs.
    pub is_emulated: bool,
    /// The first CPU, once [`Hsa::set_cpu`] was called.
    cpu: OnceLock<sys::hsa_agent_t>,
}

/// The status of a call of a function that the runtime's library does not have.
const MISSING: u32 = sys::HSA_STATUS_ERROR_NOT_SUPPORTED;

fn hex(value: impl fmt::LowerHex) -> String {
    format!("{value:#x}")
}

/// Returns a list with a single output argument.
fn output(name: &str, value: impl Into<String>) -> Vec<Argument> {
    vec![Argument { name: name.into(), value: value.into() }]
}

impl<'a> Hsa<'a> {
    pub fn new(table: sys::Table, recorder: &'a Recorder, args: &Bringup) -> Self {
        let (deadline, cpu) = (Instant::now() + args.time_limit, OnceLock::new());
        let is_emulated = args.runtime.choice == RuntimeChoice::Simulation || is_driver_emulated();
        Self { vmem: table.vmem.ok(), table, recorder, deadline, is_emulated, cpu }
    }

    /// Sets the CPU that looks at copies that do not end.
    pub fn set_cpu(&self, cpu: &Agent) {
        let _ = self.cpu.set(cpu.value);
    }

    /// Makes a call that returns a status. With `in_c`, the C program contains the call, with the names in `arguments`
    /// as its arguments.
    fn call(
        &self,
        name: &str,
        arguments: &[(&str, String)],
        in_c: bool,
        perform: impl FnOnce() -> (u32, Vec<Argument>),
    ) -> Result<()> {
        let names: Vec<&str> = arguments.iter().map(|argument| argument.0).collect();
        let c_statement = in_c.then(|| format!("CHECK({name}({}));", names.join(", ")));
        let (id, status) = self.recorder.record(name, arguments, c_statement, || {
            let (status, outputs) = perform();
            (status, Some(status), outputs)
        });
        match status {
            sys::HSA_STATUS_SUCCESS | sys::HSA_STATUS_INFO_BREAK => Ok(()),
            _ => {
                self.recorder.send(&Record::Failed(id));
                Err(AlreadyReported)
            }
        }
    }

    /// Makes a call of a function that some releases of the runtime do not have.
    fn call_optional<F>(
        &self,
        function: Option<F>,
        name: &str,
        arguments: &[(&str, String)],
        in_c: bool,
        perform: impl FnOnce(F) -> (u32, Vec<Argument>),
    ) -> Result<()> {
        self.call(name, arguments, in_c, || function.map_or((MISSING, vec![]), perform))
    }

    /// Makes a call of a virtual memory function.
    fn vmem(
        &self,
        name: &str,
        arguments: &[(&str, String)],
        perform: impl FnOnce(&sys::Vmem) -> (u32, Vec<Argument>),
    ) -> Result<()> {
        self.call_optional(self.vmem.as_ref(), name, arguments, true, perform)
    }
}
