//! Caches, instruction sets, wavefronts and extensions.

use super::call;
use crate::agents::Agent;
use crate::attribute::Value;
use crate::identity::Kind;
use crate::instance::Instance;
use crate::status::{HsaResult, non_null};
use core::ffi::{CStr, c_char, c_void};
use hsa_sys::*;
use std::sync::{Mutex, PoisonError};

type CacheCallback = Option<unsafe extern "C" fn(hsa_cache_t, *mut c_void) -> hsa_status_t>;
type WavefrontCallback = Option<unsafe extern "C" fn(hsa_wavefront_t, *mut c_void) -> hsa_status_t>;

/// The number of low bits of a cache's index that contain the cache's level.
const LEVEL_BITS: u32 = 2;

/// Returns the sizes of an agent's caches: in KiB for a GPU, in bytes for a CPU, as AMD's runtime reports them (seen in
/// 6.1.2, 6.4.3 and 7.2.4). One entry stands for all caches of a level.
fn cache_sizes(instance: &Instance, agent: Agent) -> Vec<u32> {
    match agent {
        Agent::Cpu(number) => vec![instance.config.cpus[number].l1_cache],
        Agent::Gpu(number) => instance.config.gpus[number].hardware.cache_sizes.to_vec(),
    }
}

/// Returns the agent, the level and the size of a cache. The unit of the size is that of [`cache_sizes`].
fn cache(instance: &Instance, cache: hsa_cache_t) -> HsaResult<(Agent, u8, u32)> {
    let found = || {
        let index = instance.identity.index(Kind::Cache, cache.handle)?;
        let agent = instance.agent_at(index >> LEVEL_BITS)?;
        let level = index & ((1 << LEVEL_BITS) - 1);
        let size = *cache_sizes(instance, agent).get(level.checked_sub(1)?)?;
        Some((agent, level as u8, size))
    };
    found().ok_or(HSA_STATUS_ERROR_INVALID_CACHE)
}

fn cache_name(instance: &Instance, agent: Agent, level: u8) -> String {
    let name = match agent {
        Agent::Cpu(number) => &instance.config.cpus[number].name,
        Agent::Gpu(number) => &instance.config.gpus[number].isa,
    };
    format!("{name} L{level}")
}

/// Returns a C string that lives until the process ends. Equal texts share one string.
fn permanent_string(text: &str) -> *const c_char {
    static TEXTS: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.iter().find(|known| known.to_bytes() == text.as_bytes()) {
        return known.as_ptr();
    }
    let new = std::ffi::CString::new(text.replace('\0', "")).unwrap_or_default();
    let new: &'static CStr = Box::leak(new.into_boxed_c_str());
    texts.push(new);
    new.as_ptr()
}

fn extension_name(extension: u16) -> Option<&'static CStr> {
    Some(match u32::from(extension) {
        HSA_EXTENSION_FINALIZER => c"HSA_EXTENSION_FINALIZER",
        HSA_EXTENSION_IMAGES => c"HSA_EXTENSION_IMAGES",
        HSA_EXTENSION_PERFORMANCE_COUNTERS => c"HSA_EXTENSION_PERFORMANCE_COUNTERS",
        HSA_EXTENSION_PROFILING_EVENTS => c"HSA_EXTENSION_PROFILING_EVENTS",
        HSA_EXTENSION_AMD_PROFILER => c"HSA_EXTENSION_AMD_PROFILER",
        HSA_EXTENSION_AMD_LOADER => c"HSA_EXTENSION_AMD_LOADER",
        HSA_EXTENSION_AMD_AQLPROFILE => c"HSA_EXTENSION_AMD_AQLPROFILE",
        HSA_EXTENSION_AMD_PC_SAMPLING => c"HSA_EXTENSION_AMD_PC_SAMPLING",
        _ => return None,
    })
}

/// Writes whether an extension is supported. Only the loader's extension can be supported. An unknown extension is an
/// error.
///
/// # Safety
/// `supported` must be null or writable.
unsafe fn write_support(extension: u16, has_loader: bool, supported: *mut bool) -> HsaResult {
    let supported = non_null(supported)?;
    extension_name(extension).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    // SAFETY: not null, therefore writable (`# Safety`).
    unsafe { supported.write(has_loader && u32::from(extension) == HSA_EXTENSION_AMD_LOADER) };
    Ok(())
}

/// Calls [`write_support`], and writes the newest minor version of a supported extension.
///
/// # Safety
/// `minor` and `supported` must be null or writable.
unsafe fn write_minor(
    extension: u16,
    has_loader: bool,
    minor: *mut u16,
    supported: *mut bool,
) -> HsaResult {
    let minor = non_null(minor)?;
    // SAFETY: the caller promises that `supported` is null or writable.
    unsafe { write_support(extension, has_loader, supported) }?;
    if has_loader && u32::from(extension) == HSA_EXTENSION_AMD_LOADER {
        // SAFETY: not null, therefore writable (`# Safety`).
        unsafe { minor.write(0) };
    }
    Ok(())
}

super::exports! {
    hsa_agent_iterate_caches(agent: hsa_agent_t, callback: CacheCallback, data: *mut c_void) => |instance| {
        let agent = instance.agent(agent)?;
        let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        for level in 1..=cache_sizes(instance, agent).len() {
            let index = instance.node(agent) << LEVEL_BITS | level;
            let cache = hsa_cache_t { handle: instance.identity.value(Kind::Cache, index) };
            // SAFETY: `callback` accepts `data`, as the caller promises.
            match unsafe { callback(cache, data) } {
                HSA_STATUS_SUCCESS => {}
                status => return Err(status),
            }
        }
        Ok(())
    };

    hsa_cache_get_info(
        handle: hsa_cache_t,
        attribute: hsa_cache_info_t,
        value: *mut c_void,
    ) => |instance| {
        let (agent, level, size) = cache(instance, handle)?;
        let name = cache_name(instance, agent, level);
        let found: Value = match attribute {
            HSA_CACHE_INFO_NAME_LENGTH => (name.len() as u32).into(),
            HSA_CACHE_INFO_NAME => permanent_string(&name).expose_provenance().into(),
            HSA_CACHE_INFO_LEVEL => level.into(),
            HSA_CACHE_INFO_SIZE => size.into(),
            _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
        };
        // SAFETY: the caller has room for the attribute's type.
        unsafe { found.write(value) }
    };

    hsa_isa_get_info(
        isa: hsa_isa_t,
        attribute: hsa_isa_info_t,
        index: u32,
        value: *mut c_void,
    ) => |instance| {
        if index != 0 {
            return Err(HSA_STATUS_ERROR_INVALID_INDEX);
        }
        // SAFETY: both functions have the same contract.
        unsafe { crate::isa::info(instance, isa, attribute, value) }
    };

    hsa_isa_from_name(name: *const c_char, isa: *mut hsa_isa_t) => |instance| {
        let (name, isa) = (non_null(name.cast_mut())?, non_null(isa)?);
        // SAFETY: not null, and terminated by a zero as HSA documents the function.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let is_named = |gpu: &crate::Gpu| gpu.isa_name().as_bytes() == name.to_bytes();
        let number = instance.config.gpus.iter().position(is_named);
        let number = number.ok_or(HSA_STATUS_ERROR_INVALID_ISA_NAME)?;
        let handle = instance.identity.value(Kind::Isa, number);
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { isa.write(hsa_isa_t { handle }) };
        Ok(())
    };

    hsa_isa_compatible(code: hsa_isa_t, agent: hsa_isa_t, compatible: *mut bool) => |instance| {
        let compatible = non_null(compatible)?;
        let name = |isa| instance.gpu_of_isa(isa).map(crate::Gpu::isa_name);
        let is_compatible = name(code)? == name(agent)?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { compatible.write(is_compatible) };
        Ok(())
    };

    // Each GPU's instruction set has one size of wavefronts. The handle of the wavefront contains the GPU's number.
    hsa_isa_iterate_wavefronts(isa: hsa_isa_t, callback: WavefrontCallback, data: *mut c_void) => |instance| {
        let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        instance.gpu_of_isa(isa)?;
        let number = instance.identity.index(Kind::Isa, isa.handle).unwrap_or_default();
        let handle = instance.identity.value(Kind::Wavefront, number);
        // SAFETY: `callback` accepts `data`, as the caller promises.
        match unsafe { callback(hsa_wavefront_t { handle }, data) } {
            HSA_STATUS_SUCCESS => Ok(()),
            status => Err(status),
        }
    };

    hsa_wavefront_get_info(
        wavefront: hsa_wavefront_t,
        attribute: hsa_wavefront_info_t,
        value: *mut c_void,
    ) => |instance| {
        let number = instance.identity.index(Kind::Wavefront, wavefront.handle);
        let gpu = number.and_then(|number| instance.config.gpus.get(number));
        let gpu = gpu.ok_or(HSA_STATUS_ERROR_INVALID_WAVEFRONT)?;
        if attribute != HSA_WAVEFRONT_INFO_SIZE {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the caller has room for a 32-bit number.
        unsafe { Value::from(gpu.hardware.wavefront_size).write(value) }
    };

    // AMD's runtime reports no exception policy.
    hsa_agent_get_exception_policies(agent: hsa_agent_t, profile: hsa_profile_t, mask: *mut u16) => |instance| {
        instance.agent(agent)?;
        if profile > HSA_PROFILE_FULL {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: null or writable as HSA documents the function.
        unsafe { Value::from(0u16).write(mask.cast()) }
    };

    hsa_isa_get_exception_policies(isa: hsa_isa_t, profile: hsa_profile_t, mask: *mut u16) => |instance| {
        instance.gpu_of_isa(isa)?;
        if profile > HSA_PROFILE_FULL {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: null or writable as HSA documents the function.
        unsafe { Value::from(0u16).write(mask.cast()) }
    };

    hsa_extension_get_name(extension: u16, name: *mut *const c_char) => |_| {
        let name = non_null(name)?;
        let found = extension_name(extension);
        let text = found.unwrap_or(c"HSA_EXTENSION_INVALID").as_ptr();
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { name.write(text) };
        found.map(drop).ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)
    };

    hsa_system_extension_supported(
        extension: u16,
        major: u16,
        minor: u16,
        supported: *mut bool,
    ) => |instance| {
        let has_loader = instance.behaviour.supports_loader() && matches!((major, minor), (0..=1, 0));
        // SAFETY: null or writable as HSA documents the function.
        unsafe { write_support(extension, has_loader, supported) }
    };

    hsa_system_major_extension_supported(
        extension: u16,
        major: u16,
        minor: *mut u16,
        supported: *mut bool,
    ) => |instance| {
        let has_loader = instance.behaviour.supports_loader() && major == 1;
        // SAFETY: null or writable as HSA documents the function.
        unsafe { write_minor(extension, has_loader, minor, supported) }
    };

    hsa_agent_extension_supported(
        extension: u16,
        agent: hsa_agent_t,
        major: u16,
        minor: u16,
        supported: *mut bool,
    ) => |instance| {
        let is_gpu = matches!(instance.agent(agent)?, Agent::Gpu(_));
        let has_loader = is_gpu
            && instance.behaviour.supports_loader()
            && matches!((major, minor), (0..=1, 0));
        // SAFETY: null or writable as HSA documents the function.
        unsafe { write_support(extension, has_loader, supported) }
    };

    hsa_agent_major_extension_supported(
        extension: u16,
        agent: hsa_agent_t,
        major: u16,
        minor: *mut u16,
        supported: *mut bool,
    ) => |instance| {
        let is_gpu = matches!(instance.agent(agent)?, Agent::Gpu(_));
        let has_loader = is_gpu && instance.behaviour.supports_loader() && major == 1;
        // SAFETY: null or writable as HSA documents the function.
        unsafe { write_minor(extension, has_loader, minor, supported) }
    };
}
