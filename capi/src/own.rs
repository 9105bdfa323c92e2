//! Extensions of HIP (`hsavmm.h`).

use crate::answer::{Refusal, answer};
use crate::errors;
use crate::pointers::{address, cut, not_null, take, take_each, text, write_out};
use crate::process::{Backend, choose, process, shut_down};
use crate::types::{hipError_t, hipMemLocation};
use core::ffi::{c_char, c_int, c_uint, c_void};
use hsa_vmm::agent::Enforcement;
use hsa_vmm::hip::HipProfile;

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_use_runtime(path: *const c_char) -> hipError_t {
    answer("hsavmm_use_runtime", || {
        // SAFETY: as lib.rs says of pointers.
        let path = unsafe { text("path", path) }?;
        let backend = match path {
            "" => return Err(Refusal::value("path", "is empty")),
            "auto" => Backend::Usual,
            "sim" => Backend::Simulation(configuration()),
            path => Backend::File(path.to_owned()),
        };
        choose(|choice| choice.runtime = backend)
    })
}

/// Returns `HSA_SIM`, which privileged programs ignore.
fn configuration() -> String {
    let text = hsa_vmm::runtime::environment_variable("HSA_SIM").unwrap_or_default();
    text.to_string_lossy().into_owned()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_use_simulation(configuration: *const c_char) -> hipError_t {
    answer("hsavmm_use_simulation", || {
        let configuration = match configuration.is_null() {
            true => "",
            // SAFETY: as lib.rs says of pointers.
            false => unsafe { text("configuration", configuration) }?,
        };
        #[cfg(feature = "simulation")]
        if let Err(error) = configuration.parse::<hsa_vmm::simulation::Config>() {
            return Err(Refusal::value("configuration", error));
        }
        choose(|choice| choice.runtime = Backend::Simulation(configuration.to_owned()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_use_profile(profile: c_int) -> hipError_t {
    answer("hsavmm_use_profile", || {
        let profile = match profile {
            6 => HipProfile::Hip6,
            7 => HipProfile::Hip7,
            other => {
                let problem = format!("({other}) is invalid: valid values are 6 and 7");
                return Err(Refusal::value("profile", problem));
            }
        };
        choose(|choice| choice.profile = Some(profile))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_shut_down() -> hipError_t {
    answer("hsavmm_shut_down", shut_down)
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
    answer("hsavmm_runtime", || {
        let process = process()?;
        let about = process.runtime.info();
        let answer = RuntimeInfo {
            is_simulation: c_int::from(about.path.is_none()),
            virtual_memory: c_int::from(process.has_vmm()),
            extension_major: about.extension.0.into(),
            extension_minor: about.extension.1.into(),
            profile: if crate::process::profile() == HipProfile::Hip6 { 6 } else { 7 },
            name: cut(&about.name),
        };
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("info", info, answer) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_reserve_at(at: *mut c_void, size: usize) -> hipError_t {
    answer("hsavmm_reserve_at", || {
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
    answer("hsavmm_revoke", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: C promises `count` of them.
        let locations = unsafe { take_each("locations", locations, count) }?;
        let agents =
            process.devices.at_each(&process.runtime, &locations, errors::INVALID_VALUE)?;
        Ok(vmm.revoke(address(ptr), size, &agents)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_enforcement(
    enforced: *mut c_int,
    location: *const hipMemLocation,
) -> hipError_t {
    answer("hsavmm_enforcement", || {
        let process = process()?;
        // SAFETY: as lib.rs says of pointers.
        let location = unsafe { take("location", location) }?;
        let agent = process.devices.at(&process.runtime, location, errors::INVALID_VALUE)?;
        let agent = process.runtime.agent(agent);
        let is = agent.is_some_and(|agent| agent.enforcement() == Enforcement::Enforced);
        // SAFETY: as before.
        unsafe { write_out("enforced", enforced, c_int::from(is)) }
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
    answer("hsavmm_count", || {
        let process = process()?;
        let vmm = process.vmm()?;
        let held = vmm.usage();
        let answer = Usage {
            reservations: held.reservations,
            handles: held.handles,
            mappings: held.mappings,
            quarantined: vmm.quarantine().len(),
        };
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("usage", usage, answer) }
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
    answer("hsavmm_quarantine", || {
        let process = process()?;
        // SAFETY: as lib.rs says of pointers.
        let room = unsafe { take("count", count) }?;
        let all = process.vmm()?.quarantine();
        for (index, entry) in all.iter().take(room).enumerate() {
            let reason = cut(&format!("{}: {}", entry.operation, entry.reason()));
            let one = Quarantined { address: entry.address.as_ptr(), size: entry.size, reason };
            // SAFETY: C promises room for `count` of them.
            unsafe { write_out("list", list.wrapping_add(index), one) }?;
        }
        // SAFETY: as before.
        unsafe { write_out("count", count, all.len()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_check() -> hipError_t {
    answer("hsavmm_check", || {
        let check = process()?.vmm()?.check();
        check.map_err(|defect| Refusal::new(errors::UNKNOWN, defect))
    })
}
