//! The runtime of a C program: configured before the first call, which opens it.

use crate::answer::Refusal;
use crate::devices::{Devices, visible};
use crate::errors;
use crate::memory::Allocations;
use crate::objects::Objects;
use crate::registered::Registered;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Error, ErrorKind, Ipc, Runtime, Vmm};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// The configuration that a program can set before its first call.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub runtime: Backend,
    /// `None`: the value of `HSA_VMM_PROFILE`, else the newest.
    pub profile: Option<HipProfile>,
}

#[derive(Clone, Debug, Default)]
pub enum Backend {
    /// The value of `HSA_VMM_RUNTIME`, else AMD's from the usual folders.
    #[default]
    Usual,
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
    vmm: Result<Vmm, Error>,
    ipc: Vec<OnceLock<Ipc>>,
}

#[derive(Debug, Default)]
struct State {
    choice: Choice,
    open: Option<Arc<Process>>,
}

static STATE: RwLock<Option<State>> = RwLock::new(None);
/// Serialises opening, which is slow, so that `STATE` is not locked meanwhile.
static OPENING: Mutex<()> = Mutex::new(());
/// The profile of error numbers; that of the open runtime, if any.
static PROFILE: AtomicU8 = AtomicU8::new(7);

/// The process that opens or has opened the runtime; 0 if none is open. Checked before any lock is
/// taken: in a forked child, a lock can be held by a thread that does not exist there.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn not_forked() -> Result<(), Refusal> {
    match OWNER.load(Ordering::Acquire) {
        0 => Ok(()),
        owner if owner == std::process::id() => Ok(()),
        owner => {
            let words = format!(
                "this process was forked from process {owner} after that had opened the runtime, \
                 which a fork does not survive; fork first, or start a new program"
            );
            Err(Refusal::new(errors::NOT_INITIALIZED, words))
        }
    }
}

/// Returns the profile of error numbers.
pub fn profile() -> HipProfile {
    match PROFILE.load(Ordering::Relaxed) {
        6 => HipProfile::Hip6,
        _ => HipProfile::Hip7,
    }
}

fn is_open() -> Option<Arc<Process>> {
    STATE.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.open.clone()
}

fn opening() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_state<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    act(state.get_or_insert_default())
}

/// Returns the process's runtime; opens it on first use. Fails in a forked child.
pub fn process() -> Result<Arc<Process>, Refusal> {
    not_forked()?;
    if let Some(process) = is_open() {
        return Ok(process);
    }
    // Checked before the first lock, and again in case a shut-down ended meanwhile.
    OWNER.store(std::process::id(), Ordering::Release);
    let _alone = opening();
    OWNER.store(std::process::id(), Ordering::Release);
    if let Some(process) = is_open() {
        return Ok(process);
    }
    let choice = with_state(|state| state.choice.clone());
    let opened = Process::open(&choice).inspect_err(|refusal| {
        crate::log::not_opened(refusal);
        OWNER.store(0, Ordering::Release);
    });
    let process = Arc::new(opened?);
    with_state(|state| state.open = Some(process.clone()));
    Ok(process)
}

/// Changes the configuration; fails once a runtime is open.
pub fn choose(change: impl FnOnce(&mut Choice)) -> Result<(), Refusal> {
    not_forked()?;
    let _alone = opening();
    with_state(|state| match state.open {
        None => {
            change(&mut state.choice);
            Ok(())
        }
        Some(_) => {
            let words = "a runtime is open already; choose before the first call, or call \
                         hsavmm_shut_down()";
            Err(Refusal::new(errors::SET_ON_ACTIVE_PROCESS, words))
        }
    })
}

/// Frees everything as soon as running calls have ended. Fails in a forked child.
pub fn shut_down() -> Result<(), Refusal> {
    not_forked()?;
    let _alone = opening();
    let process = with_state(|state| state.open.take());
    // Dropped without the lock: this unmaps and frees memory.
    drop(process);
    OWNER.store(0, Ordering::Release);
    Ok(())
}

impl Process {
    fn open(choice: &Choice) -> Result<Self, Refusal> {
        crate::log::begin()?;
        let profile = match choice.profile {
            Some(profile) => profile,
            None => profile_by_environment()?,
        };
        let runtime = match &choice.runtime {
            Backend::Usual => Runtime::load().map_err(not_opened)?,
            // SAFETY: the caller of hsavmm_use_runtime() vouches for the file (hsavmm.h).
            Backend::File(path) => unsafe { Runtime::load_from(path) }.map_err(not_opened)?,
            Backend::Simulation(configuration) => simulated(configuration)?,
        };
        let number = if profile == HipProfile::Hip6 { 6 } else { 7 };
        PROFILE.store(number, Ordering::Relaxed);
        let vmm = Vmm::open_with(&runtime, VmmOptions::new().with_profile(profile));
        let devices = visible(&runtime, |variable| std::env::var(variable).ok());
        let ipc = devices.iter().map(|_| OnceLock::new()).collect();
        let (allocations, objects) = (Allocations::default(), Objects::default());
        let registered = Registered::default();
        Ok(Self { runtime, devices, allocations, registered, objects, vmm, ipc })
    }

    /// Virtual-memory management, if the runtime supports it.
    pub fn vmm(&self) -> Result<&Vmm, Refusal> {
        self.devices.any()?;
        self.vmm.as_ref().map_err(|error| Refusal::from(error.clone()))
    }

    pub fn has_vmm(&self) -> bool {
        self.vmm.is_ok()
    }

    /// IPC, for a device and its peers.
    pub fn ipc(&self, device: i32) -> Result<&Ipc, Refusal> {
        let agent = self.devices.agent(device)?;
        let slot = &self.ipc[device as usize];
        match slot.get() {
            Some(ipc) => Ok(ipc),
            None => {
                let ipc = Ipc::on(&self.runtime, agent)?;
                Ok(slot.get_or_init(|| ipc))
            }
        }
    }
}

#[cfg(feature = "simulation")]
fn simulated(configuration: &str) -> Result<Runtime, Refusal> {
    let configuration = configuration.parse::<hsa_vmm::simulation::Config>();
    let refused = |error| Refusal::new(errors::NOT_INITIALIZED, error);
    Runtime::simulated(configuration.map_err(refused)?).map_err(not_opened)
}

#[cfg(not(feature = "simulation"))]
fn simulated(_: &str) -> Result<Runtime, Refusal> {
    let reason = "libhsavmm was built without the feature `simulation`";
    Err(Refusal::new(errors::NOT_INITIALIZED, reason))
}

fn profile_by_environment() -> Result<HipProfile, Refusal> {
    match std::env::var("HSA_VMM_PROFILE") {
        Ok(name) => {
            let refused = |error| Refusal::new(errors::NOT_INITIALIZED, error);
            name.parse().map_err(|error: hsa_vmm::hip::UnknownProfile| {
                refused(format!("HSA_VMM_PROFILE: {error}"))
            })
        }
        Err(_) => Ok(HipProfile::default()),
    }
}

/// Returns "no device" for a runtime that does not start, as HIP does.
fn not_opened(error: Error) -> Refusal {
    let code = match error.kind() {
        ErrorKind::Load(_) => errors::SHARED_OBJECT_INIT_FAILED,
        ErrorKind::Start { .. } => errors::NO_DEVICE,
        _ => errors::NOT_INITIALIZED,
    };
    Refusal::new(code, error)
}
