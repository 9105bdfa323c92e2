//! Attributes of the runtime.

use crate::Generation;
use crate::config::{Config, Gpu};
use crate::instance::Instance;
use crate::status::{HsaResult, non_null};
use core::ffi::c_void;
use hsa_sys::*;
use std::ffi::CString;
use std::sync::OnceLock;
use std::time::Instant;

/// Returns the build that the runtime reports, or an empty text if the runtime reports no build.
pub(crate) fn build(config: &Config) -> CString {
    let own = || {
        let simulated = if config.generation == Generation::E { " (libhsa on rocddi)" } else { "" };
        format!("hsa-sim {}{simulated}", env!("CARGO_PKG_VERSION"))
    };
    let build = config.false_build.clone().unwrap_or_else(own);
    CString::new(build.replace('\0', "")).unwrap_or_default()
}

/// The frequency of timestamps in Hz. Timestamps and timeouts are in nanoseconds.
pub(crate) const FREQUENCY: u64 = 1_000_000_000;

/// Returns the nanoseconds since the first call.
pub(crate) fn timestamp() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns a bit for each extension. Only the loader's extension can be supported.
pub(crate) fn extensions(has_loader: bool) -> [u8; 128] {
    let mut bits = [0; 128];
    let number = HSA_EXTENSION_AMD_LOADER as usize;
    bits[number / 8] = u8::from(has_loader) << (number % 8);
    bits
}

/// `hsa_system_get_info`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn info(
    instance: &Instance,
    attribute: hsa_system_info_t,
    value: *mut c_void,
) -> HsaResult {
    let value = non_null(value)?;
    let behaviour = instance.behaviour;
    // SAFETY: not null, and the caller has room for the attribute's type, a 16-bit number.
    let write_short = |number: u16| unsafe { value.cast().write_unaligned(number) };
    // SAFETY: not null, and the caller has room for the attribute's type, a 32-bit number.
    let write_word = |number: u32| unsafe { value.cast().write_unaligned(number) };
    // SAFETY: not null, and the caller has room for the attribute's type, a 64-bit number.
    let write_long = |number: u64| unsafe { value.cast().write_unaligned(number) };
    // SAFETY: not null, and the caller has room for the attribute's type, a boolean.
    let write_boolean = |flag: bool| unsafe { value.cast().write_unaligned(flag) };
    match attribute {
        HSA_SYSTEM_INFO_VERSION_MAJOR => write_short(1),
        HSA_SYSTEM_INFO_VERSION_MINOR => write_short(behaviour.hsa_minor()),
        HSA_SYSTEM_INFO_TIMESTAMP => write_long(timestamp()),
        HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY => write_long(FREQUENCY),
        HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT => write_long(u64::MAX),
        HSA_SYSTEM_INFO_ENDIANNESS => write_word(HSA_ENDIANNESS_LITTLE),
        HSA_SYSTEM_INFO_MACHINE_MODEL => write_word(HSA_MACHINE_MODEL_LARGE),
        // SAFETY: not null, and the caller has room for the attribute's type, an array of 128 bytes.
        HSA_SYSTEM_INFO_EXTENSIONS => unsafe {
            value.cast().write_unaligned(extensions(behaviour.supports_loader()));
        },
        HSA_AMD_SYSTEM_INFO_BUILD_VERSION if !instance.build.is_empty() => {
            // SAFETY: not null, and the caller has room for a pointer. The text lives as long as the instance.
            unsafe { value.cast().write_unaligned(instance.build.as_ptr()) };
        }
        HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED => write_boolean(behaviour.reports_svm()),
        HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT | HSA_AMD_SYSTEM_INFO_MWAITX_ENABLED => {
            write_boolean(false)
        }
        HSA_AMD_SYSTEM_INFO_XNACK_ENABLED => {
            write_boolean(instance.config.gpus.iter().any(Gpu::has_xnack));
        }
        HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED => write_boolean(true),
        HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED if behaviour.has_vmem() => {
            write_boolean(instance.config.vmem);
        }
        HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR if behaviour.extension_reported => write_short(1),
        HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR if behaviour.extension_reported => {
            let own = u16::try_from(behaviour.extension).unwrap_or(u16::MAX);
            write_short(instance.config.false_extension.unwrap_or(own));
        }
        HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED if behaviour.reports_fabric() => {
            write_boolean(instance.has_fabric());
        }
        HSA_AMD_SYSTEM_INFO_HOST_ALLOC_DMA_BUF_SUPPORTED if behaviour.supports_cpu_memory() => {
            write_boolean(instance.config.vmem && !instance.config.gpus.is_empty());
        }
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    }
    Ok(())
}
