//! The runtime of a C program, which the first call opens.

use crate::allocations::Allocations;
use crate::devices::{Devices, visible_devices};
use crate::errors;
use crate::forks::Users;
use crate::objects::Objects;
use crate::registered::Registered;
use crate::status::Failure;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::hsa_sys::library::variable;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Address, Error, ErrorKind, Ipc, Runtime, Vmm};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// The configuration that a program can set before its first call.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub runtime: Backend,
    /// The profile of error numbers. `None` selects the value of `HSA_VMM_PROFILE`. Without this variable, it selects
    /// the newest profile.
    pub profile: Option<HipProfile>,
    /// Whether the library controls page tables. `None` selects the value of `HSA_VMM_PAGE_TABLES`. Without this
    /// variable, it selects `false`.
    pub page_tables: Option<bool>,
}

/// The runtime that the first call opens.
#[derive(Clone, Debug, Default)]
pub enum Backend {
    /// The runtime that `HSA_VMM_RUNTIME` names, else AMD's from the usual folders.
    #[default]
    Automatic,
    File(String),
    /// The simulation, with a configuration in the form of `HSA_SIM`.
    Simulation(String),
}

/// An open runtime and the library's objects on it.
#[derive(Debug)]
pub struct Process {
    pub runtime: Runtime,
    pub devices: Devices,
    pub allocations: Allocations,
    pub registered: Registered,
    pub objects: Objects,
    pub access_locks: AccessLocks,
    /// The bytes that `hipMemGetInfo` subtracts from the free memory: HIP's variable `HIP_HIDDEN_FREE_MEM`, in MiB.
    pub hidden_memory: usize,
    vmm: Result<Vmm, Error>,
    ipc: Vec<OnceLock<Ipc>>,
    /// Dropped last, when the runtime is closed.
    _in_use: InUse,
}

/// The locks of calls that read and then change access. Each reservation has one of them, so that calls on different
/// reservations rarely wait for each other.
#[derive(Debug)]
pub struct AccessLocks([Mutex<()>; 64]);

impl AccessLocks {
    /// Locks a reservation.
    pub fn lock(&self, reservation: Address) -> MutexGuard<'_, ()> {
        // Most reservations start at multiples of 2 MiB.
        let index = (reservation.get() >> 21) % self.0.len();
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The configuration, and the runtime if one is open.
#[derive(Debug, Default)]
struct State {
    settings: Settings,
    open: Option<Arc<Process>>,
}

/// The library's state in this process.
///
/// It is one value, aligned so that it is on one page: `fork` copies the pages one after the other, while other threads
/// change them. A child in which a lock is held therefore also finds the user that was counted before.
#[repr(align(1024))]
struct Global {
    users: Users,
    /// Held while a thread opens, configures or closes the runtime. `state` is not locked while the runtime opens,
    /// because opening is slow.
    opening: Mutex<()>,
    state: RwLock<Option<State>>,
}

const _: () = assert!(size_of::<Global>() <= 1024);

static GLOBAL: Global =
    Global { users: Users::new(), opening: Mutex::new(()), state: RwLock::new(None) };
/// The profile of error numbers, set when a runtime opens.
static PROFILE: AtomicU8 = AtomicU8::new(7);

/// Counts a user of the library's state. A child that is forked while this value exists cannot use the library.
#[derive(Debug)]
pub struct InUse(());

impl InUse {
    /// Fails in a forked child in which a lock can be held.
    pub fn begin() -> Result<Self, Failure> {
        GLOBAL.users.begin(after_fork).map(|()| Self(()))
    }
}

/// The fork handler of the child.
extern "C" fn after_fork() {
    GLOBAL.users.after_fork();
}

impl Drop for InUse {
    fn drop(&mut self) {
        GLOBAL.users.end();
    }
}

pub fn profile() -> HipProfile {
    match PROFILE.load(Ordering::Relaxed) {
        6 => HipProfile::Hip6,
        _ => HipProfile::Hip7,
    }
}

/// Returns the open runtime. The caller has called [`InUse::begin`].
pub fn current_process() -> Option<Arc<Process>> {
    GLOBAL.state.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.open.clone()
}

fn lock_opening() -> MutexGuard<'static, ()> {
    GLOBAL.opening.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_state<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut state = GLOBAL.state.write().unwrap_or_else(PoisonError::into_inner);
    act(state.get_or_insert_default())
}

/// Returns the process's runtime. The first call opens the runtime. Fails in a forked child.
pub fn process() -> Result<Arc<Process>, Failure> {
    let _in_use = InUse::begin()?;
    if let Some(process) = current_process() {
        return Ok(process);
    }
    let _opening = lock_opening();
    if let Some(process) = current_process() {
        return Ok(process);
    }
    let settings = with_state(|state| state.settings.clone());
    let opened = Process::open(&settings)
        .inspect_err(|failure| crate::log::print_open_failure(failure, &settings.runtime));
    let process = Arc::new(opened?);
    with_state(|state| state.open = Some(process.clone()));
    Ok(process)
}

/// Changes the configuration. Fails once a runtime is open.
pub fn configure(change: impl FnOnce(&mut Settings)) -> Result<(), Failure> {
    let _in_use = InUse::begin()?;
    let _opening = lock_opening();
    with_state(|state| match state.open {
        None => {
            change(&mut state.settings);
            Ok(())
        }
        Some(_) => {
            let message = "a runtime is open already; configure the library before the first other call, or after \
                         hsavmm_shut_down()";
            Err(Failure::new(errors::SET_ON_ACTIVE_PROCESS, message))
        }
    })
}

/// Closes the runtime. When the last running call has ended, all objects of the runtime are freed. Fails in a forked
/// child.
pub fn shut_down() -> Result<(), Failure> {
    let _in_use = InUse::begin()?;
    let _opening = lock_opening();
    let process = with_state(|state| state.open.take());
    // Dropped while `state` is not locked, because the drop unmaps and frees memory.
    drop(process);
    crate::devices::reset_current();
    crate::contexts::reset_flags();
    Ok(())
}

impl Process {
    fn open(settings: &Settings) -> Result<Self, Failure> {
        crate::log::init();
        let profile = match settings.profile {
            Some(profile) => profile,
            None => profile_from_environment()?,
        };
        let page_tables = match settings.page_tables {
            Some(enabled) => enabled,
            None => page_tables_from_environment()?,
        };
        let runtime = match &settings.runtime {
            Backend::Automatic => Runtime::load()?,
            // SAFETY: hsavmm.h requires that the caller of hsavmm_use_runtime() trusts the file.
            Backend::File(path) => unsafe { Runtime::load_from(path) }.map_err(file_failure)?,
            Backend::Simulation(configuration) => simulated(configuration)?,
        };
        let number = if profile == HipProfile::Hip6 { 6 } else { 7 };
        PROFILE.store(number, Ordering::Relaxed);
        let options = VmmOptions::new().with_profile(profile).with_page_tables(page_tables);
        let vmm = Vmm::open_with(&runtime, options);
        let devices = visible_devices(&runtime, |variable| std::env::var(variable).ok());
        let hidden = std::env::var("HIP_HIDDEN_FREE_MEM").ok().and_then(|size| size.parse().ok());
        let hidden_memory = hidden.unwrap_or(0_usize).saturating_mul(1 << 20);
        let ipc = devices.iter().map(|_| OnceLock::new()).collect();
        let (allocations, objects) = (Allocations::default(), Objects::default());
        let registered = Registered::default();
        let access_locks = AccessLocks([const { Mutex::new(()) }; 64]);
        Ok(Self {
            runtime,
            devices,
            allocations,
            registered,
            objects,
            access_locks,
            hidden_memory,
            vmm,
            ipc,
            _in_use: InUse::begin()?,
        })
    }

    /// Returns the `Vmm`. Fails if there is no device, or if the runtime does not support virtual memory management.
    pub fn vmm(&self) -> Result<&Vmm, Failure> {
        self.devices.require()?;
        self.vmm.as_ref().map_err(|error| Failure::from(error.clone()))
    }

    pub fn has_vmm(&self) -> bool {
        self.vmm.is_ok()
    }

    /// Returns IPC for a device and its peers.
    pub fn ipc(&self, device: i32) -> Result<&Ipc, Failure> {
        let agent = self.devices.agent(device)?;
        let slot = &self.ipc[device as usize];
        match slot.get() {
            Some(ipc) => Ok(ipc),
            None => {
                let devices: Vec<_> = self.devices.iter().collect();
                let ipc = Ipc::on(&self.runtime, agent)?.with_devices(&devices);
                Ok(slot.get_or_init(|| ipc))
            }
        }
    }
}

#[cfg(feature = "simulation")]
fn simulated(configuration: &str) -> Result<Runtime, Failure> {
    let configuration = configuration.parse::<hsa_vmm::simulation::Config>();
    // `hsavmm_use_simulation` has checked its argument.
    let invalid =
        |error| Failure::new(errors::NO_DEVICE, format_args!("HSA_SIM is not understood: {error}"));
    Ok(Runtime::simulated(configuration.map_err(invalid)?)?)
}

#[cfg(not(feature = "simulation"))]
pub const WITHOUT_SIMULATION: &str = "libhsavmm was built without the feature `simulation`";

#[cfg(not(feature = "simulation"))]
fn simulated(_: &str) -> Result<Runtime, Failure> {
    Err(Failure::new(errors::NO_DEVICE, WITHOUT_SIMULATION))
}

fn profile_from_environment() -> Result<HipProfile, Failure> {
    let Some(name) = variable("HSA_VMM_PROFILE") else { return Ok(HipProfile::default()) };
    name.to_string_lossy().parse().map_err(|error: hsa_vmm::hip::UnknownProfile| {
        Failure::new(errors::NOT_INITIALIZED, format!("HSA_VMM_PROFILE: {error}"))
    })
}

fn page_tables_from_environment() -> Result<bool, Failure> {
    let value = variable("HSA_VMM_PAGE_TABLES").map(|value| value.to_string_lossy().into_owned());
    match value.as_deref() {
        Some("on") => Ok(true),
        Some("off") | None => Ok(false),
        Some(other) => {
            let message =
                format!("HSA_VMM_PAGE_TABLES={other:?} is invalid: valid values are on and off");
            Err(Failure::new(errors::NOT_INITIALIZED, message))
        }
    }
}

/// Converts the error of opening the file that `hsavmm_use_runtime` has named. Replaces the advice of a missing
/// runtime, to set `HSA_VMM_RUNTIME`.
fn file_failure(error: Error) -> Failure {
    let ErrorKind::Load(reasons) = error.kind() else { return error.into() };
    let message = format!(
        "{reasons}\nthe program has named this file (hsavmm_use_runtime), so HSA_VMM_RUNTIME has no effect"
    );
    Failure::new(errors::NO_DEVICE, message)
}
