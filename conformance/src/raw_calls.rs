//! The runtime's functions, called without the library and its checks.

#![expect(unsafe_code, reason = "calls the runtime's functions")]

use core::ptr::without_provenance_mut;
use hsa_vmm::error::Status;
use hsa_vmm::hsa_sys::*;
use hsa_vmm::{Address, Agent, Pool, Runtime};

/// The runtime's functions.
#[derive(Debug)]
pub(crate) struct RawCalls {
    pub core: Core,
    // The HSA library. Its functions stay loaded while this value exists.
    _library: Option<Library>,
}

impl RawCalls {
    /// Finds the functions of a runtime.
    pub fn of_runtime(runtime: &Runtime) -> Result<Self, String> {
        match (runtime.simulation(), &runtime.info().path) {
            (Some(simulation), _) => Ok(Self { core: simulation.table().core, _library: None }),
            (None, Some(path)) => {
                // SAFETY: this HSA runtime is already loaded from this path, so its initialisers do not run again.
                let library = unsafe { Library::load(&Search::only(path)) };
                let library = library.map_err(|error| error.to_string())?;
                Ok(Self { core: library.table().core, _library: Some(library) })
            }
            (None, None) => Err("the runtime's file is unknown".to_owned()),
        }
    }

    /// Fills memory with a number: `hsa_amd_memory_fill`.
    ///
    /// # Safety
    /// The `4 * count` bytes from `address` on are pool memory of this process, and nothing else uses them.
    pub unsafe fn fill(&self, address: Address, value: u32, count: usize) -> Result<(), String> {
        let fill = require_function(self.core.hsa_amd_memory_fill, "hsa_amd_memory_fill")?;
        let status = log_call("hsa_amd_memory_fill", || {
            // SAFETY: the caller guarantees this function's requirements.
            unsafe { fill(without_provenance_mut(address.get()), value, count) }
        });
        check_status("hsa_amd_memory_fill", status)
    }

    /// Stops the runtime: calls `hsa_shut_down` until the runtime is no longer initialised.
    ///
    /// # Safety
    /// No other thread uses the runtime, and nothing uses the runtime afterwards.
    pub unsafe fn stop(&self) -> Result<(), String> {
        let shut_down = self.core.hsa_shut_down;
        for stops in 0..MAX_STOPS {
            // SAFETY: the caller guarantees this function's requirements.
            match log_call("hsa_shut_down", || unsafe { shut_down() }) {
                HSA_STATUS_SUCCESS => {}
                HSA_STATUS_ERROR_NOT_INITIALIZED if stops > 0 => return Ok(()),
                status => return check_status("hsa_shut_down", status),
            }
        }
        Err(format!("the runtime still runs after {MAX_STOPS} successful calls of hsa_shut_down"))
    }
}

/// Returns the number of bytes of an agent's memory that no process uses: `HSA_AMD_AGENT_INFO_MEMORY_AVAIL`. Unlike
/// [`Runtime::available_memory`], returns why the query failed.
pub(crate) fn available_memory(runtime: &Runtime, agent: &Agent) -> Result<usize, String> {
    let (mut bytes, call) = (0_u64, "hsa_agent_get_info(HSA_AMD_AGENT_INFO_MEMORY_AVAIL)");
    let get = runtime.table().core.hsa_agent_get_info;
    let status = log_call("hsa_agent_get_info", || {
        // SAFETY: the agent belongs to this runtime; `bytes` is writable, and as large as the attribute.
        unsafe { get(agent.hsa_agent(), HSA_AMD_AGENT_INFO_MEMORY_AVAIL, (&raw mut bytes).cast()) }
    });
    check_status(call, status)?;
    usize::try_from(bytes).map_err(|error| format!("{call} returned {bytes} bytes: {error}"))
}

/// Returns a GPU's location on the bus, with the number of its partition in the bits 28 to 31:
/// `HSA_AMD_AGENT_INFO_BDFID`.
pub(crate) fn bus_location(runtime: &Runtime, agent: &Agent) -> Result<u32, String> {
    let mut location = 0_u32;
    let get = runtime.table().core.hsa_agent_get_info;
    let status = log_call("hsa_agent_get_info", || {
        // SAFETY: the agent belongs to this runtime; `location` is writable, and as large as the attribute.
        unsafe { get(agent.hsa_agent(), HSA_AMD_AGENT_INFO_BDFID, (&raw mut location).cast()) }
    });
    check_status("hsa_agent_get_info(HSA_AMD_AGENT_INFO_BDFID)", status).map(|()| location)
}

/// Returns whether and how an agent can access a pool: `HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS`.
pub(crate) fn pool_access(
    runtime: &Runtime,
    agent: &Agent,
    pool: &Pool,
) -> Result<hsa_amd_memory_pool_access_t, String> {
    let mut access = HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
    let (attribute, name) =
        (HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, "hsa_amd_agent_memory_pool_get_info");
    let get = require_function(runtime.table().core.hsa_amd_agent_memory_pool_get_info, name)?;
    let status = log_call(name, || {
        // SAFETY: the agent and the pool belong to this runtime; `access` is writable, and as large as the attribute.
        unsafe { get(agent.hsa_agent(), pool.hsa_pool(), attribute, (&raw mut access).cast()) }
    });
    check_status(name, status).map(|()| access)
}

/// The maximum number of calls of `hsa_shut_down`: more than the number of calls of `hsa_init` in a process.
const MAX_STOPS: usize = 8;

/// Makes a call, and logs it in the form of the library's own log. The parent process can then name the last call of a
/// worker that crashed or hung.
fn log_call(name: &str, call: impl FnOnce() -> hsa_status_t) -> hsa_status_t {
    log_begin(name);
    let status = call();
    tracing::trace!(target: "hsa_vmm::native", call = name, status = %format_args!("{status:#x}"));
    status
}

/// Logs that a call begins.
pub(crate) fn log_begin(name: &str) {
    tracing::trace!(target: "hsa_vmm::native", calling = name);
}

/// Returns a function, or an error if the runtime does not have it.
pub(crate) fn require_function<F>(function: Option<F>, name: &str) -> Result<F, String> {
    function.ok_or_else(|| format!("the runtime has no {name}"))
}

/// Returns an error if `status` is not success. `call` is the function's name.
pub(crate) fn check_status(call: &str, status: hsa_status_t) -> Result<(), String> {
    match status {
        HSA_STATUS_SUCCESS => Ok(()),
        _ => Err(format!("{call} returned {}", Status(status))),
    }
}
