//! The instruction sets of GPUs. In the simulation, each GPU has one instruction set. AMD's 7.2.4
//! also lists a generic instruction set.

use crate::abi::IsaCallback;
use crate::agent_info::{FBARRIER_COUNT, WORKGROUP_SIZE};
use crate::agents::Agent;
use crate::attribute::Value;
use crate::config::Gpu;
use crate::identity::Kind;
use crate::instance::Instance;
use crate::status::HsaResult;
use core::ffi::c_void;
use hsa_sys::*;

impl Gpu {
    /// Returns the full name of the instruction set.
    pub(crate) fn isa_name(&self) -> String {
        format!("amdgcn-amd-amdhsa--{}{}", self.isa, self.isa_features)
    }
}

impl Instance {
    /// Finds the GPU of an instruction set.
    pub(crate) fn gpu_of_isa(&self, isa: hsa_isa_t) -> HsaResult<&Gpu> {
        let number = self.identity.index(Kind::Isa, isa.handle);
        let gpu = number.and_then(|number| self.config.gpus.get(number));
        gpu.ok_or(HSA_STATUS_ERROR_INVALID_ISA)
    }
}

/// `hsa_agent_iterate_isas`
///
/// # Safety
/// `callback` must be callable with `data`.
pub(crate) unsafe fn iterate(
    instance: &Instance,
    agent: hsa_agent_t,
    callback: IsaCallback,
    data: *mut c_void,
) -> HsaResult {
    let agent = instance.agent(agent)?;
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let Agent::Gpu(number) = agent else { return Ok(()) };
    let isa = hsa_isa_t { handle: instance.identity.value(Kind::Isa, number) };
    // SAFETY: `callback` accepts `data`, as the caller promises.
    match unsafe { callback(isa, data) } {
        HSA_STATUS_SUCCESS => Ok(()),
        status => Err(status),
    }
}

/// `hsa_isa_get_info_alt`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn info(
    instance: &Instance,
    isa: hsa_isa_t,
    attribute: hsa_isa_info_t,
    value: *mut c_void,
) -> HsaResult {
    let found = attribute_of(instance, instance.gpu_of_isa(isa)?, attribute)?;
    // SAFETY: the caller promises that `value` has room.
    unsafe { found.write(value) }
}

/// Returns an attribute. AMD's runtime reports the same call conventions for every GPU.
fn attribute_of(instance: &Instance, gpu: &Gpu, attribute: hsa_isa_info_t) -> HsaResult<Value> {
    // Includes the terminating zero.
    let length = gpu.isa_name().len() + 1;
    Ok(match attribute {
        HSA_ISA_INFO_NAME_LENGTH => (length as u32).into(),
        HSA_ISA_INFO_NAME => Value::text(length, &gpu.isa_name()),
        HSA_ISA_INFO_CALL_CONVENTION_COUNT => 1u32.into(),
        HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONT_SIZE => 64u32.into(),
        HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONTS_PER_COMPUTE_UNIT => 40u32.into(),
        // A flag for each machine model (small, large) and for each profile (base, full).
        HSA_ISA_INFO_MACHINE_MODELS => [0u8, 1].into(),
        HSA_ISA_INFO_PROFILES => [1u8, 0].into(),
        // A flag for each mode: default, zero, near.
        HSA_ISA_INFO_DEFAULT_FLOAT_ROUNDING_MODES
        | HSA_ISA_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES => [0u8, 0, 1].into(),
        HSA_ISA_INFO_FAST_F16_OPERATION => true.into(),
        HSA_ISA_INFO_WORKGROUP_MAX_DIM => [WORKGROUP_SIZE; 3].into(),
        HSA_ISA_INFO_WORKGROUP_MAX_SIZE => u32::from(WORKGROUP_SIZE).into(),
        HSA_ISA_INFO_GRID_MAX_DIM => instance.behaviour.grid_limits().into(),
        HSA_ISA_INFO_GRID_MAX_SIZE => u64::MAX.into(),
        HSA_ISA_INFO_FBARRIER_MAX_SIZE => FBARRIER_COUNT.into(),
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    })
}
