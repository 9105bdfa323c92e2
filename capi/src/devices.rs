//! The visible GPUs by number, and the current device of a thread.

use crate::errors;
use crate::pointers::{write_out, write_text};
use crate::process::{Process, process};
use crate::status::{Failure, run};
use crate::types::{
    LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT, hipDevice_t,
    hipError_t, hipMemLocation, hipUUID,
};
use core::ffi::{c_char, c_int, c_uint};
use hsa_vmm::agent::AgentKind;
use hsa_vmm::hip::HipProfile;
use hsa_vmm::{Agent, AgentId, Runtime, Vmm};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    /// The current device, and the value of [`SHUT_DOWNS`] when it was selected.
    static CURRENT: Cell<(u32, c_int)> = const { Cell::new((0, 0)) };
}

/// The number of shut-downs. A shut-down resets the current device of each thread to 0.
static SHUT_DOWNS: AtomicU32 = AtomicU32::new(0);

/// Resets the current device of each thread.
pub fn reset_current() {
    SHUT_DOWNS.fetch_add(1, Ordering::Relaxed);
}

/// The GPUs in the order of their numbers.
#[derive(Debug)]
pub struct Devices {
    gpus: Vec<AgentId>,
}

/// Selects the visible GPUs by the lists of numbers and UUIDs (`GPU-…`) in the environment. As in HIP,
/// `CUDA_VISIBLE_DEVICES` is used only if `HIP_VISIBLE_DEVICES` is unset. If both variables are unset, all GPUs are
/// visible. An empty list selects no GPU (seen with HIP 6.4.3 and 7.2.4). The numbers in these variables count the
/// devices that `ROCR_VISIBLE_DEVICES` selects.
/// AMD's runtime applies `ROCR_VISIBLE_DEVICES` itself. For the simulation, this function applies the variable.
pub fn visible_devices(runtime: &Runtime, variable: impl Fn(&str) -> Option<String>) -> Devices {
    let mut gpus: Vec<&Agent> = runtime.gpus().collect();
    let is_simulated = runtime.info().path.is_none();
    if is_simulated && let Some(list) = variable("ROCR_VISIBLE_DEVICES") {
        gpus = select_as_rocr(&gpus, &list);
    }
    let hip_variables = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
    let mut lists = hip_variables.iter().filter_map(|name| variable(name));
    if let Some(list) = lists.next() {
        gpus = select_as_hip(&gpus, &list);
    }
    Devices { gpus: gpus.into_iter().map(Agent::id).collect() }
}

/// Returns the error of `hipMemCreate` for a device that does not exist.
pub fn device_error(vmm: &Vmm) -> hipError_t {
    match vmm.profile() {
        HipProfile::Hip6 => errors::INVALID_VALUE,
        _ => errors::INVALID_DEVICE,
    }
}

/// Selects GPUs as HIP does (`Device::init` in ROCm/clr, rocdevice.cpp). The list ends at its first invalid entry. A
/// number must be written as HIP would print it: " 1" and "01" are invalid. Repeated entries are skipped. A UUID may be
/// incomplete: the first GPU whose UUID contains the entry is selected.
fn select_as_hip<'a>(gpus: &[&'a Agent], list: &str) -> Vec<&'a Agent> {
    let find = |word: &str| {
        gpus.iter().enumerate().find_map(|(number, &gpu)| {
            let is_uuid = word.contains("GPU-") && gpu.uuid.contains(word);
            (is_uuid || word == number.to_string()).then_some(gpu)
        })
    };
    let mut chosen: Vec<&Agent> = Vec::new();
    for gpu in list.split(',').map_while(find) {
        if !chosen.iter().any(|other| other.id() == gpu.id()) {
            chosen.push(gpu);
        }
    }
    chosen
}

/// Selects GPUs as AMD's runtime does (`RvdFilter` in ROCR-Runtime, amd_filter_device.cpp). The list ends at its first
/// invalid or repeated entry. Spaces around an entry are ignored. A UUID may be incomplete: it selects the only GPU
/// whose UUID begins with the entry, in upper or lower case.
fn select_as_rocr<'a>(gpus: &[&'a Agent], list: &str) -> Vec<&'a Agent> {
    let find = |word: &str| {
        let word = word.trim().to_ascii_uppercase();
        if let Ok(number) = word.parse::<usize>() {
            return gpus.get(number).copied();
        }
        let has_prefix = |gpu: &&&Agent| gpu.uuid.to_ascii_uppercase().starts_with(&word);
        let mut found = gpus.iter().filter(has_prefix);
        let first = found.next().filter(|_| word.len() > "GPU-".len());
        first.filter(|_| found.next().is_none()).copied()
    };
    let mut chosen: Vec<&Agent> = Vec::new();
    for gpu in list.split(',').map_while(find) {
        if chosen.iter().any(|other| other.id() == gpu.id()) {
            break;
        }
        chosen.push(gpu);
    }
    chosen
}

impl Devices {
    pub fn iter(&self) -> impl Iterator<Item = AgentId> + '_ {
        self.gpus.iter().copied()
    }

    /// Returns an error if there is no device.
    pub fn require(&self) -> Result<(), Failure> {
        match self.gpus.first() {
            Some(_) => Ok(()),
            None => Err(Failure::new(errors::NO_DEVICE, "no GPU found, or none is visible")),
        }
    }

    /// Returns the agent of a device number.
    pub fn agent(&self, device: c_int) -> Result<AgentId, Failure> {
        self.require()?;
        let agent = usize::try_from(device).ok().and_then(|index| self.gpus.get(index));
        agent.copied().ok_or_else(|| {
            let count = self.gpus.len();
            Failure::new(
                errors::INVALID_DEVICE,
                format_args!("invalid device {device}: the number of devices is {count}"),
            )
        })
    }

    /// Returns the device number of an agent. Returns -1 if the agent is not a visible GPU.
    pub fn number(&self, agent: AgentId) -> c_int {
        let index = self.gpus.iter().position(|gpu| *gpu == agent);
        index.and_then(|index| c_int::try_from(index).ok()).unwrap_or(-1)
    }

    /// Returns the agent of a location. For an invalid device, the error is `invalid`, because HIP's calls return
    /// different errors.
    pub fn agent_at(
        &self,
        runtime: &Runtime,
        location: hipMemLocation,
        invalid: hipError_t,
    ) -> Result<AgentId, Failure> {
        match location.kind {
            LOCATION_DEVICE => {
                self.agent(location.id).map_err(|failure| Failure { code: invalid, ..failure })
            }
            LOCATION_HOST | LOCATION_HOST_NUMA_CURRENT => Ok(runtime.host().id()),
            LOCATION_HOST_NUMA => {
                let is_node = |agent: &&Agent| {
                    agent.kind() == AgentKind::Cpu
                        && agent.numa_node.map(i64::from) == Some(i64::from(location.id))
                };
                let found = runtime.agents().iter().find(is_node).map(Agent::id);
                found.ok_or_else(|| {
                    Failure::invalid_argument(
                        "location.id",
                        format_args!("({}) is not a NUMA node", location.id),
                    )
                })
            }
            kind => {
                Err(Failure::invalid_argument("location.type", format_args!("({kind}) is invalid")))
            }
        }
    }
}

/// Makes a device the current device of this thread.
pub fn make_current(device: c_int) {
    // Fails only in an exiting thread, which does not read the device again.
    let _ = CURRENT.try_with(|it| it.set((SHUT_DOWNS.load(Ordering::Relaxed), device)));
}

/// Returns the current device of this thread.
pub fn current_device() -> c_int {
    let (shut_downs, device) = CURRENT.try_with(Cell::get).unwrap_or_default();
    if shut_downs == SHUT_DOWNS.load(Ordering::Relaxed) { device } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    run("hipInit", || {
        if flags != 0 {
            return Err(Failure::invalid_argument("flags", "must be 0"));
        }
        process()?.devices.require()
    })
}

/// The version of the implemented interface: HIP 7.2.0.
const VERSION: c_int = 70_200_000;

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    run("hipDriverGetVersion", || unsafe { write_out("version", version, VERSION) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    run("hipRuntimeGetVersion", || unsafe { write_out("version", version, VERSION) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    run("hipGetDeviceCount", || {
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("count", count, 0) }?;
        let process = process()?;
        process.devices.require()?;
        let number = process.devices.gpus.len().try_into().unwrap_or(c_int::MAX);
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("count", count, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> hipError_t {
    run("hipGetDevice", || {
        process()?.devices.require()?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device", device, current_device()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(device: c_int) -> hipError_t {
    run("hipSetDevice", || {
        process()?.devices.agent(device)?;
        make_current(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int) -> hipError_t {
    run("hipDeviceGet", || {
        process()?.devices.agent(ordinal)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device", device, ordinal) }
    })
}

/// Runs a function with the agent of a device.
pub fn with_agent<T>(
    device: c_int,
    act: impl FnOnce(&Agent) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let process = process()?;
    let id = process.devices.agent(device)?;
    match process.runtime.agent(id) {
        Some(agent) => act(agent),
        None => Err(Failure::new(errors::INVALID_DEVICE, "the runtime does not know the device")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetName(
    name: *mut c_char,
    length: c_int,
    device: hipDevice_t,
) -> hipError_t {
    run("hipDeviceGetName", || {
        with_agent(device, |agent| {
            let text = if agent.product.is_empty() { agent.name() } else { &agent.product };
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_text("name", name, length, text) }
        })
    })
}

/// Returns a GPU's UUID as in HIP: the sixteen digits after `GPU-`, as text.
pub fn device_uuid(agent: &Agent) -> hipUUID {
    let digits = agent.uuid.strip_prefix("GPU-").unwrap_or(&agent.uuid);
    let mut bytes = [0; 16];
    for (byte, digit) in bytes.iter_mut().zip(digits.bytes()) {
        *byte = digit as c_char;
    }
    hipUUID { bytes }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t) -> hipError_t {
    run("hipDeviceGetUuid", || {
        with_agent(device, |agent| {
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_out("uuid", uuid, device_uuid(agent)) }
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetPCIBusId(
    id: *mut c_char,
    length: c_int,
    device: c_int,
) -> hipError_t {
    run("hipDeviceGetPCIBusId", || {
        with_agent(device, |agent| {
            let no_address =
                || Failure::new(errors::NOT_SUPPORTED, "the device has no PCI address");
            let text = agent.pci.ok_or_else(no_address)?.to_string();
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_text("id", id, length, &text) }?;
            // As in HIP, a truncated address is an error.
            let needed = text.len() + 1;
            if usize::try_from(length).is_ok_and(|room| room < needed) {
                let problem = format!("({length}) must be at least {needed}");
                return Err(Failure::invalid_argument("length", problem));
            }
            Ok(())
        })
    })
}

/// Returns the size of a device's memory in bytes: the size of the largest pool that supports handles. If no pool
/// supports handles, returns the size of the largest pool.
pub fn memory_size(agent: &Agent) -> usize {
    let pools = agent.pools.iter().filter(|pool| pool.supports_handles());
    let sizes = pools.map(|pool| pool.size);
    sizes.max().or_else(|| agent.pools.iter().map(|pool| pool.size).max()).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    run("hipDeviceTotalMem", || {
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        with_agent(device, |agent| unsafe { write_out("bytes", bytes, memory_size(agent)) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceCanAccessPeer(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> hipError_t {
    run("hipDeviceCanAccessPeer", || {
        let process = process()?;
        process.devices.require()?;
        // As in HIP, the number is not checked if both numbers are equal.
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("can", can, 0) }?;
        if device == peer {
            return Ok(());
        }
        let owner = process.devices.agent(peer)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        with_agent(device, |agent| unsafe {
            write_out("can", can, c_int::from(agent.can_access(owner)))
        })
    })
}

/// Returns the agents of a change of peer access: the current device, and the peer that owns the memory. Fails if the
/// current device cannot access the peer's memory.
fn peer_access_agents(
    process: &Process,
    peer: c_int,
    flags: c_uint,
) -> Result<(AgentId, AgentId), Failure> {
    if flags != 0 {
        return Err(Failure::invalid_argument("flags", "must be 0"));
    }
    let (user, owner) = (process.devices.agent(current_device())?, process.devices.agent(peer)?);
    if user == owner {
        return Err(Failure::new(errors::INVALID_DEVICE, "a device cannot be its own peer"));
    }
    match process.runtime.agent(user).is_some_and(|agent| agent.can_access(owner)) {
        true => Ok((user, owner)),
        false => {
            let message = "the current device cannot access the peer's memory";
            Err(Failure::new(errors::INVALID_DEVICE, message))
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t {
    run("hipDeviceEnablePeerAccess", || {
        let process = process()?;
        let (user, owner) = peer_access_agents(&process, peer, flags)?;
        process.allocations.enable_peer(owner, user)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceDisablePeerAccess(peer: c_int) -> hipError_t {
    run("hipDeviceDisablePeerAccess", || {
        let process = process()?;
        let (user, owner) = peer_access_agents(&process, peer, 0)?;
        process.allocations.disable_peer(owner, user)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceSynchronize() -> hipError_t {
    run("hipDeviceSynchronize", || process()?.devices.require())
}

#[cfg(all(test, feature = "simulation"))]
mod tests {
    use super::{select_as_hip, select_as_rocr};
    use hsa_vmm::simulation::Config;
    use hsa_vmm::{Agent, Runtime};

    #[test]
    fn uuid_may_be_incomplete() {
        let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
        let gpus: Vec<&Agent> = runtime.gpus().collect();
        let uuid = &gpus[1].uuid;
        assert!(uuid.starts_with("GPU-") && gpus[0].uuid != *uuid, "{uuid}");
        let numbers = |selected: Vec<&Agent>| -> Vec<usize> {
            let number = |gpu: &Agent| gpus.iter().position(|other| other.id() == gpu.id());
            selected.into_iter().filter_map(number).collect()
        };
        let hip = |list: &str| numbers(select_as_hip(&gpus, list));
        assert_eq!(hip(&format!("{uuid},0")), [1, 0]);
        assert_eq!(hip("GPU-"), [0], "the first that matches");
        assert_eq!(hip("0,GPU-no-such-device,1"), [0]);
        let rocr = |list: &str| numbers(select_as_rocr(&gpus, list));
        assert_eq!(rocr(&format!(" {} ,0", uuid.to_lowercase())), [1, 0]);
        assert_eq!(rocr(""), [0; 0]);
        let common = uuid.bytes().zip(gpus[0].uuid.bytes()).take_while(|(a, b)| a == b).count();
        assert_eq!(rocr(&uuid[..common]), [0; 0], "matches both");
        assert_eq!(rocr(&uuid[..=common]), [1]);
    }
}
