//! Functions of `hsavmm.h`: the choice of a runtime, the state of the library, and calls that HIP lacks.

use crate::buffers::agents;
use crate::errors;
use crate::pointers::{address, not_null, read, read_text, to_char_array, write_out};
use crate::process::{Backend, configure, process, shut_down};
use crate::status::{Failure, run};
use crate::types::{hipError_t, hipMemLocation};
use core::ffi::{c_char, c_int, c_uint, c_void};
use hsa_vmm::Agent;
use hsa_vmm::agent::Enforcement;
use hsa_vmm::hip::HipProfile;

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_use_runtime(path: *const c_char) -> hipError_t {
    run("hsavmm_use_runtime", || {
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let path = unsafe { read_text("path", path) }?;
        let backend = match path {
            "" => return Err(Failure::invalid_argument("path", "is empty")),
            "auto" => Backend::Automatic,
            "sim" => Backend::Simulation(configuration_from_environment()),
            path => Backend::File(path.to_owned()),
        };
        configure(|settings| settings.runtime = backend)
    })
}

/// Returns the value of `HSA_SIM`. In a privileged program, returns an empty text.
fn configuration_from_environment() -> String {
    let text = hsa_vmm::runtime::trusted_environment_variable("HSA_SIM").unwrap_or_default();
    text.to_string_lossy().into_owned()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_use_simulation(configuration: *const c_char) -> hipError_t {
    run("hsavmm_use_simulation", || {
        let configuration = match configuration.is_null() {
            true => "",
            // SAFETY: the C caller passes null or a valid pointer (lib.rs).
            false => unsafe { read_text("configuration", configuration) }?,
        };
        check_configuration(configuration)?;
        configure(|settings| settings.runtime = Backend::Simulation(configuration.to_owned()))
    })
}

#[cfg(feature = "simulation")]
fn check_configuration(configuration: &str) -> Result<(), Failure> {
    let parsed = configuration.parse::<hsa_vmm::simulation::Config>();
    let invalid =
        |error| Failure::invalid_argument("configuration", format_args!("is invalid: {error}"));
    parsed.map(drop).map_err(invalid)
}

#[cfg(not(feature = "simulation"))]
fn check_configuration(_: &str) -> Result<(), Failure> {
    Err(Failure::new(errors::NOT_SUPPORTED, crate::process::WITHOUT_SIMULATION))
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_use_profile(profile: c_int) -> hipError_t {
    run("hsavmm_use_profile", || {
        let profile = match profile {
            6 => HipProfile::Hip6,
            7 => HipProfile::Hip7,
            other => {
                let problem = format!("({other}) is invalid: valid values are 6 and 7");
                return Err(Failure::invalid_argument("profile", problem));
            }
        };
        configure(|settings| settings.profile = Some(profile))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_use_page_tables(enabled: c_int) -> hipError_t {
    run("hsavmm_use_page_tables", || {
        configure(|settings| settings.page_tables = Some(enabled != 0))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_shut_down() -> hipError_t {
    run("hsavmm_shut_down", shut_down)
}

/// `hsavmm_runtime_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RuntimeInfo {
    is_simulation: c_int,
    virtual_memory: c_int,
    extension_major: c_uint,
    extension_minor: c_uint,
    profile: c_int,
    name: [c_char; 236],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_runtime(info: *mut RuntimeInfo) -> hipError_t {
    run("hsavmm_runtime", || {
        let process = process()?;
        let current = process.runtime.info();
        let result = RuntimeInfo {
            is_simulation: c_int::from(current.path.is_none()),
            virtual_memory: c_int::from(process.has_vmm()),
            extension_major: current.extension.0.into(),
            extension_minor: current.extension.1.into(),
            profile: if crate::process::profile() == HipProfile::Hip6 { 6 } else { 7 },
            name: to_char_array(&current.name),
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("info", info, result) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_reserve_at(at: *mut c_void, size: usize) -> hipError_t {
    run("hsavmm_reserve_at", || {
        not_null("ptr", at)?;
        let process = process()?;
        let vmm = process.vmm()?;
        vmm.address_reserve_at(address(at), size)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_revoke(
    ptr: *mut c_void,
    size: usize,
    locations: *const hipMemLocation,
    count: usize,
) -> hipError_t {
    run("hsavmm_revoke", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
        let agents = unsafe { agents(&process, locations, count) }?;
        Ok(vmm.revoke(address(ptr), size, &agents)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_enforcement(
    enforced: *mut c_int,
    location: *const hipMemLocation,
) -> hipError_t {
    run("hsavmm_enforcement", || {
        let process = process()?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let location = unsafe { read("location", location) }?;
        let agent = process.devices.agent_at(&process.runtime, location, errors::INVALID_VALUE)?;
        let enforcement = match process.vmm() {
            Ok(vmm) => vmm.enforcement(agent),
            Err(_) => process.runtime.agent(agent).map(Agent::enforcement),
        };
        let enforces = enforcement == Some(Enforcement::Enforced);
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("enforced", enforced, c_int::from(enforces)) }
    })
}

/// `hsavmm_usage`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    reservations: usize,
    handles: usize,
    mappings: usize,
    quarantined: usize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_count(usage: *mut Usage) -> hipError_t {
    run("hsavmm_count", || {
        let process = process()?;
        let vmm = process.vmm()?;
        let current = vmm.usage();
        let result = Usage {
            reservations: current.reservations,
            handles: current.handles,
            mappings: current.mappings,
            quarantined: vmm.quarantined_ranges().len(),
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("usage", usage, result) }
    })
}

/// `hsavmm_quarantined`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Quarantined {
    address: *mut c_void,
    size: usize,
    reason: [c_char; 240],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_quarantine(list: *mut Quarantined, count: *mut usize) -> hipError_t {
    run("hsavmm_quarantine", || {
        let process = process()?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let capacity = unsafe { read("count", count) }?;
        let all = process.vmm()?.quarantined_ranges();
        for (index, entry) in all.iter().take(capacity).enumerate() {
            let reason = to_char_array(&format!("{}: {}", entry.operation, entry.reason()));
            let element = Quarantined { address: entry.address.as_ptr(), size: entry.size, reason };
            // SAFETY: the C caller passes null or room for `count` elements (lib.rs).
            unsafe { write_out("list", list.wrapping_add(index), element) }?;
        }
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("count", count, all.len()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_check() -> hipError_t {
    run("hsavmm_check", || {
        let check = process()?.vmm()?.check();
        check.map_err(|defect| Failure::new(errors::UNKNOWN, defect))
    })
}

#[cfg(all(test, not(feature = "simulation")))]
mod tests {
    use super::check_configuration;
    use crate::errors;

    #[test]
    fn missing_simulation_is_not_supported() {
        assert_eq!(check_configuration("gpus=3").unwrap_err().code, errors::NOT_SUPPORTED);
    }
}
