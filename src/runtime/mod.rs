//! Loads and starts an HSA runtime, and lists its agents.

mod discovery;
mod implementation;

use crate::agent::{Agent, AgentId, AgentKind, ComputeProperties};
use crate::error::{Error, ErrorKind, Operation, SIMULATION};
pub use crate::native::DriverState;
use crate::native::{Failure, ForkCount, Native, SpareDescriptors, out_of_descriptors};
use crate::sync::{Mutex, lock};
use core::any::{Any, TypeId};
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use derive_more::Debug;
use discovery::{describe, discover};
use hsa_sys as sys;
pub use hsa_sys::library::variable as trusted_environment_variable;
pub use hsa_sys::loaded as loaded_libraries;
pub use hsa_sys::printable;
pub use hsa_sys::{LoadError, LoadedLibrary, Origin, RejectedCandidate};
pub use implementation::Implementation;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The number of started runtimes, not counting simulations. An atomic, because a forked child could wait forever for a
/// lock.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// The number of forks ([`ForkCount`]) at the last start of a runtime that is not a simulation.
static STARTED_AFTER: AtomicU64 = AtomicU64::new(0);

/// The properties of a runtime ([`Runtime::info`]).
///
/// ```
/// # use hsa_vmm::Runtime;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// println!("{}", runtime.info().name);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// `simulation`, or the library's file name.
    pub name: String,
    /// The loaded library; `None` for the simulation.
    pub path: Option<PathBuf>,
    /// Why this library was chosen; `None` for the simulation.
    pub origin: Option<Origin>,
    /// The implementation: a release of AMD's ROCr, another runtime of AMD, the simulation, or unknown. The
    /// implementation determines the quirks to work around.
    pub implementation: Implementation,
    /// The version of the HSA specification, not of the runtime.
    pub version: (u16, u16),
    /// The version of AMD's extension, which determines the features. It is 1.4 if the runtime is too old to return a
    /// version (ROCm 6.0).
    pub extension: (u16, u16),
    /// The runtime's build; empty if it is unknown.
    pub build: String,
    /// Why runtime and kernel driver do not support virtual memory management; `None` if they do.
    pub virtual_memory_failure: Option<String>,
    /// Whether memory can be exported as dma-bufs.
    pub dmabuf: bool,
    /// Whether shared virtual memory is supported.
    pub svm: bool,
    /// Whether GPUs can recover from page faults (XNACK).
    pub xnack: bool,
    /// Whether handles can be shared over a fabric.
    pub fabric: bool,
    /// Every optional function, and whether the library exports it.
    pub optional_functions: Vec<(&'static str, bool)>,
}

/// A started HSA runtime.
///
/// Cheap to clone. Dropping the last clone stops the runtime, except in two cases: stopping could crash the process
/// (for example [`ipc_server_outlives_stop`](crate::vmm::Quirks::ipc_server_outlives_stop)), or could unmap memory that
/// agents may still use ([`Vmm::quarantined_ranges`](crate::Vmm::quarantined_ranges)).
///
/// ```
/// # use hsa_vmm::{Runtime, simulation::Config};
/// # fn main() -> Result<(), hsa_vmm::Error> {
/// // On hardware: Runtime::load()?.
/// let runtime = Runtime::simulated(Config::mi300x(2))?;
/// for gpu in runtime.gpus() {
///     println!("{}: {}", gpu.id(), gpu.product);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Calls `hsa_init`, `hsa_shut_down`, `hsa_system_get_info`, `hsa_iterate_agents`, `hsa_agent_get_info`,
/// `hsa_agent_iterate_isas`, `hsa_isa_get_info_alt`, `hsa_amd_agent_iterate_memory_pools`,
/// `hsa_amd_memory_pool_get_info` and `hsa_amd_agent_memory_pool_get_info`.
#[derive(Clone, Debug)]
#[debug(
    "Runtime {{ name: {:?}, path: {:?}, agents: {}, .. }}",
    inner.info.name,
    inner.info.path,
    inner.agents.len()
)]
pub struct Runtime {
    inner: Arc<Inner>,
}

/// State of a higher layer that exists once for each runtime, such as the list of pool memory.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Cleans up before the runtime stops. Not called in a forked child.
    fn close(&self, _native: &Native) {}
}

struct Inner {
    native: Native,
    forks: ForkCount,
    info: RuntimeInfo,
    agents: Vec<Agent>,
    first_cpu: usize,
    /// The states of higher layers, by type.
    attachments: Mutex<BTreeMap<TypeId, Arc<dyn Attachment>>>,
    stays_started: AtomicBool,
    /// The value that `HSA_ENABLE_IPC_MODE_LEGACY` had before the runtime started.
    ipc_mode: Option<OsString>,
    spare_descriptors: SpareDescriptors,
}

impl Runtime {
    /// Loads AMD's runtime from the usual places and starts it.
    ///
    /// `HSA_VMM_RUNTIME` names the library to load. If the variable is not set, this function uses the library that the
    /// process has already loaded, for example for HIP. If the process has loaded none, this function searches
    /// `ROCM_PATH`, the dynamic linker's path, the ROCm folder that the build of this crate found, and `/opt/rocm/lib`.
    /// [`RuntimeInfo::origin`] contains the chosen place. With the feature `simulation`, `HSA_VMM_RUNTIME=sim` starts
    /// the simulation that `HSA_SIM` configures. No other setting starts the simulation.
    ///
    /// This function ignores a relative `ROCM_PATH`. If a program runs with more privileges than its caller
    /// (set-user-id, set-group-id, file capabilities), this function ignores `HSA_VMM_RUNTIME`, `ROCM_PATH` and
    /// `HSA_SIM`, and loads the library that the administrator has installed.
    ///
    /// This function is not unsafe, although it runs the library's code: the administrator or the user of this process
    /// has chosen the library, as for every library that the dynamic linker loads before `main`. To choose a file, call
    /// the unsafe [`load_from`](Self::load_from).
    ///
    /// # Errors
    /// [`ErrorKind::Load`] lists the files that were tried, and the HSA libraries that the process has
    /// loaded; [`ErrorKind::OutOfDescriptors`] if the process cannot open a file; [`ErrorKind::Start`] and
    /// [`ErrorKind::Runtime`] contain the runtime's status. [`ErrorKind::Forked`] in a forked child if the parent had a
    /// loaded `Runtime`. If only other code of the parent had started the runtime, this call or a later call can fail in
    /// the child, for example for lack of memory.
    #[allow(unsafe_code, reason = "the files are the administrator's or the user's choice")]
    pub fn load() -> Result<Self, Error> {
        let runtime = sys::library::variable(sys::library::RUNTIME_VARIABLE);
        if runtime.is_some_and(|value| value == "sim") {
            #[cfg(feature = "simulation")]
            return Self::simulated_by_environment();
            #[cfg(not(feature = "simulation"))]
            return Err(no_simulation(
                "the feature `simulation` of hsa-vmm is not enabled; enable it, or unset \
                 HSA_VMM_RUNTIME"
                    .into(),
            ));
        }
        let rocm_libraries = option_env!("HSA_VMM_ROCM_LIBRARIES").map(Path::new);
        // SAFETY: the administrator, or the user who set the variables of this process, has chosen these
        // files as HSA runtimes. The administrator and this user can also make the dynamic linker load any file. If the
        // caller of this program has fewer privileges than this process, the caller's variables are ignored.
        unsafe { Self::open(&sys::Search::usual(rocm_libraries)) }
    }

    /// Loads the runtime from this file and starts it.
    ///
    /// # Safety
    /// Loading a library runs its constructors, and calling its functions trusts their types. The file
    /// must be an HSA runtime. Loading it and every library that it needs into this process must be sound.
    /// Every user who can write to these files must be trusted with this process's privileges.
    ///
    /// ```compile_fail,E0133
    /// let runtime = hsa_vmm::Runtime::load_from("/any/file.so");
    /// ```
    ///
    /// # Errors
    /// As for [`Runtime::load`].
    #[allow(unsafe_code, reason = "the compiler cannot check the caller's promise")]
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, Error> {
        // SAFETY: the caller guarantees that the file is sound to load.
        unsafe { Self::open(&sys::Search::only(path.as_ref())) }
    }

    /// Loads the first suitable library that a search finds, and starts it.
    ///
    /// # Safety
    /// As for [`sys::Library::load`].
    #[allow(unsafe_code, reason = "the compiler cannot check the caller's promise")]
    unsafe fn open(search: &sys::Search) -> Result<Self, Error> {
        // In a forked child, AMD's runtime would use the driver state of the parent.
        if STARTED.load(Ordering::Relaxed) > 0
            && STARTED_AFTER.load(Ordering::Relaxed) != ForkCount::current().number()
        {
            return Err(Error::new(Operation::Load, ErrorKind::Forked));
        }
        // SAFETY: the caller guarantees that the files are sound to load.
        let native = unsafe { Native::load(search) }.map_err(|error| {
            let kind = match out_of_descriptors() {
                true => ErrorKind::OutOfDescriptors,
                false => ErrorKind::Load(error),
            };
            Error::new(Operation::Load, kind)
        })?;
        let runtime = Self::start(native)?;
        let libraries = loaded_libraries();
        if libraries.len() > 1 {
            let list: Vec<_> = libraries.iter().map(ToString::to_string).collect();
            let (path, list) = (&runtime.inner.info.path, list.join(", "));
            crate::log::event!(WARN, ?path, list, "the process has loaded several HSA libraries");
        }
        Ok(runtime)
    }

    /// Starts a simulated runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Simulation`] if the configuration is invalid or too many simulations run at once
    /// in this process.
    #[cfg(feature = "simulation")]
    pub fn simulated(config: hsa_sim::Config) -> Result<Self, Error> {
        let simulation =
            hsa_sim::Simulation::start(config).map_err(|error| no_simulation(error.to_string()))?;
        Self::simulated_by(Arc::new(simulation))
    }

    /// Creates a runtime from a simulation that the caller has started and can inspect.
    ///
    /// # Errors
    /// As for [`Runtime::load`], if the simulation was configured to fail.
    #[cfg(feature = "simulation")]
    pub fn simulated_by(simulation: Arc<hsa_sim::Simulation>) -> Result<Self, Error> {
        Self::start(Native::simulated(simulation))
    }

    #[cfg(feature = "simulation")]
    fn simulated_by_environment() -> Result<Self, Error> {
        let text = sys::library::variable("HSA_SIM").unwrap_or_default();
        let config = text
            .to_string_lossy()
            .parse::<hsa_sim::Config>()
            .map_err(|error| no_simulation(format!("HSA_SIM is not understood: {error}")))?;
        Self::simulated(config)
    }

    fn start(native: Native) -> Result<Self, Error> {
        let forks = ForkCount::current();
        let ipc_mode = std::env::var_os("HSA_ENABLE_IPC_MODE_LEGACY");
        let is_library = native.library().is_some();
        // Counts the runtime before it starts: a child that is forked meanwhile would wait for the runtime's lock.
        if is_library {
            STARTED_AFTER.store(forks.number(), Ordering::Relaxed);
            STARTED.fetch_add(1, Ordering::Relaxed);
        }
        native.init().map_err(|Failure { status, .. }| {
            if is_library {
                STARTED.fetch_sub(1, Ordering::Relaxed);
            }
            let path = native.library().map_or(SIMULATION.as_ref(), sys::Library::path).to_owned();
            let driver = DriverState::probe();
            let loaded = loaded_libraries();
            Error::new(Operation::Start, ErrorKind::Start { path, status, driver, loaded })
        })?;
        let (info, agents, first_cpu) = describe_all(&native).map_err(|kind| {
            // SAFETY: the runtime has created nothing yet.
            #[allow(unsafe_code, reason = "a condition that the compiler cannot check")]
            unsafe {
                stop(&native, forks)
            };
            Error::new(Operation::Discover, kind)
        })?;
        crate::log::event!(DEBUG, name = info.name, implementation = %info.implementation, extension = ?info.extension, agents = agents.len());
        Ok(Self {
            inner: Arc::new(Inner {
                native,
                forks,
                info,
                agents,
                first_cpu,
                attachments: Mutex::default(),
                stays_started: AtomicBool::new(false),
                ipc_mode,
                spare_descriptors: SpareDescriptors::open(),
            }),
        })
    }

    /// Returns the runtime's properties.
    pub fn info(&self) -> &RuntimeInfo {
        &self.inner.info
    }

    /// Returns all agents, in the runtime's order.
    pub fn agents(&self) -> &[Agent] {
        &self.inner.agents
    }

    /// Returns the GPUs, in the runtime's order. This is also HIP's order, unless `HIP_VISIBLE_DEVICES` or
    /// `CUDA_VISIBLE_DEVICES` is set.
    pub fn gpus(&self) -> impl Iterator<Item = &Agent> {
        self.inner.agents.iter().filter(|agent| agent.kind == AgentKind::Gpu)
    }

    /// Returns the first CPU. Access that is granted to any CPU applies to the loads and stores of this process.
    pub fn host(&self) -> &Agent {
        &self.inner.agents[self.inner.first_cpu]
    }

    /// Returns the agent with this identifier; `None` if the identifier belongs to another runtime.
    pub fn agent(&self, id: AgentId) -> Option<&Agent> {
        self.inner.agents.get(id.index()).filter(|agent| agent.id == id)
    }

    /// Returns the number of bytes of an agent's memory that no process uses (`hipMemGetInfo`,
    /// `HSA_AMD_AGENT_INFO_MEMORY_AVAIL`). AMD's kernel driver counts each allocation of a GPU's memory as a multiple of
    /// 2 MiB, so allocating 4 KiB can reduce the number by 2 MiB. Returns `None` if the runtime's query fails, for an
    /// agent of another runtime, and in a [forked child](Self::has_forked).
    pub fn available_memory(&self, id: AgentId) -> Option<usize> {
        let agent = self.agent(id)?;
        if self.has_forked() {
            return None;
        }
        let attribute = sys::HSA_AMD_AGENT_INFO_MEMORY_AVAIL;
        self.native().agent_attribute(agent.native, attribute).ok().map(|bytes| bytes.number())
    }

    /// Returns the limits of kernels on an agent, the agent's clocks and its caches. Returns `None` for an agent of
    /// another runtime, and in a [forked child](Self::has_forked).
    pub fn compute_properties(&self, id: AgentId) -> Option<ComputeProperties> {
        let agent = self.agent(id)?;
        if self.has_forked() {
            return None;
        }
        Some(discovery::compute_properties(self.native(), agent))
    }

    /// Returns the HSA functions of the loaded library or the simulation, for HSA calls that the caller makes itself:
    /// signals, copies, pool memory and others. For functions that are not in the table, such as the functions of
    /// queues, call [`function`](Self::function).
    ///
    /// Call the functions only while a clone of this `Runtime` exists: dropping the last clone stops the runtime. Pass
    /// [`Agent::hsa_agent`] and [`Pool::hsa_pool`](crate::Pool::hsa_pool) to them.
    ///
    /// ```
    /// use hsa_vmm::{Runtime, hsa_sys};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// let hsa = &runtime.table().core;
    /// let (create, destroy) = hsa.hsa_signal_create.zip(hsa.hsa_signal_destroy).ok_or("no signals")?;
    /// let mut signal = hsa_sys::hsa_signal_t { handle: 0 };
    /// // SAFETY: no consumers are named, and `signal` is writable.
    /// let status = unsafe { create(1, 0, std::ptr::null(), &mut signal) };
    /// assert_eq!(status, hsa_sys::HSA_STATUS_SUCCESS);
    /// // SAFETY: nothing uses the signal.
    /// unsafe { destroy(signal) };
    /// # Ok(())
    /// # }
    /// ```
    pub fn table(&self) -> &sys::Table {
        self.inner.native.table()
    }

    /// Returns the address of a function that the loaded library exports. The function need not be in the
    /// [`table`](Self::table). `None` if the library has no such function, and for the simulation.
    ///
    /// Taking the address is safe; calling it is not. The caller casts the address to the function's type. Call the
    /// function only while a clone of this `Runtime` exists, as for the table. The library stays loaded until the
    /// process ends.
    ///
    /// `examples/queue.rs` creates a queue with this function.
    ///
    /// ```no_run
    /// use hsa_vmm::Runtime;
    /// use hsa_vmm::hsa_sys::{hsa_queue_t, hsa_status_t};
    ///
    /// # fn main() -> Result<(), hsa_vmm::Error> {
    /// let runtime = Runtime::load()?;
    /// let address = runtime.function(c"hsa_queue_destroy");
    /// type Destroy = Option<unsafe extern "C" fn(*mut hsa_queue_t) -> hsa_status_t>;
    /// // SAFETY: this is the function's type.
    /// let destroy: Destroy = unsafe { std::mem::transmute(address) };
    /// # Ok(())
    /// # }
    /// ```
    pub fn function(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.inner.native.function(name)
    }

    /// Returns the simulation; `None` for a loaded library.
    #[cfg(feature = "simulation")]
    pub fn simulation(&self) -> Option<&hsa_sim::Simulation> {
        self.inner.native.simulation()
    }

    pub(crate) fn native(&self) -> &Native {
        &self.inner.native
    }

    /// Returns this runtime's state of type `T`. The first call creates the state.
    pub(crate) fn attachment<T: Attachment + Default>(&self) -> Arc<T> {
        debug_assert!(!self.has_forked(), "a thread of the parent may hold the lock");
        let mut attachments = lock(&self.inner.attachments);
        let state = attachments.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        let state: Arc<dyn Any + Send + Sync> = state.clone();
        state.downcast().expect("the key is the type")
    }

    /// Keeps the runtime started when the last clone is dropped. Called if stopping the runtime could crash the
    /// process, or unmap memory that agents use.
    pub(crate) fn stay_started(&self) {
        self.inner.stays_started.store(true, Ordering::Relaxed);
    }

    /// Returns the value that `HSA_ENABLE_IPC_MODE_LEGACY` had before the runtime started.
    pub(crate) fn ipc_mode(&self) -> Option<&OsStr> {
        self.inner.ipc_mode.as_deref()
    }

    /// Returns whether `self` and `other` are clones of one runtime.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn spare_descriptors(&self) -> &SpareDescriptors {
        &self.inner.spare_descriptors
    }

    /// Fails in a forked child.
    pub(crate) fn check_not_forked(&self) -> Result<(), ErrorKind> {
        if self.has_forked() { Err(ErrorKind::Forked) } else { Ok(()) }
    }

    /// Returns whether this process is a forked child of the process that opened the runtime.
    ///
    /// In a forked child, every operation returns an error, because a thread of the parent may have held a lock at the
    /// fork. Functions of a [`Vmm`](crate::Vmm) that return a list or a count without a `Result` return an empty list
    /// or zero.
    pub fn has_forked(&self) -> bool {
        self.inner.forks.has_forked()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.forks.has_forked() {
            let attachments: Vec<_> = lock(&self.attachments).values().cloned().collect();
            attachments.iter().for_each(|state| state.close(&self.native));
        }
        // Stopping only drops this value's reference to the runtime. Other users of the runtime in this process have
        // references of their own. If the runtime stays started, the kernel frees its memory when the process ends.
        if *self.stays_started.get_mut() {
            crate::log::event!(
                DEBUG,
                "the runtime stays started, because stopping it could crash the process or unmap memory in use"
            );
        } else {
            // SAFETY: this is the last clone, and `stay_started` was not called.
            #[allow(unsafe_code, reason = "a condition that the compiler cannot check")]
            unsafe {
                stop(&self.native, self.forks)
            };
        }
    }
}

fn no_simulation(reason: String) -> Error {
    Error::new(Operation::Start, ErrorKind::Simulation(reason))
}

/// Describes a started runtime and its agents, and returns the index of the first CPU.
fn describe_all(native: &Native) -> Result<(RuntimeInfo, Vec<Agent>, usize), ErrorKind> {
    let failed = |Failure { call, status }| ErrorKind::Runtime { call, status };
    let info = describe(native).map_err(failed)?;
    let agents = discover(native).map_err(failed)?;
    let first_cpu = agents.iter().position(|agent| agent.kind == AgentKind::Cpu);
    Ok((info, agents, first_cpu.ok_or(ErrorKind::NoCpu)?))
}

/// # Safety
/// As for [`Native::shut_down`].
#[allow(unsafe_code, reason = "a condition that the compiler cannot check")]
unsafe fn stop(native: &Native, forks: ForkCount) {
    // A forked child has no runtime to stop.
    if forks.has_forked() {
        return;
    }
    // SAFETY: the caller guarantees the conditions.
    if let Err(failure) = unsafe { native.shut_down() } {
        crate::log::event!(WARN, ?failure, "the runtime did not stop");
    } else if native.library().is_some() {
        STARTED.fetch_sub(1, Ordering::Relaxed);
    }
}
