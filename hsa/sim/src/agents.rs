//! The agents, CPUs before GPUs, and their attributes.

use crate::abi::{AgentCallback, IsaCallback};
use crate::config::{Gpu, GpuKind};
use crate::identity::Kind;
use crate::instance::Instance;
use crate::physical::Owner;
use crate::status::{HsaResult, non_null};
use core::ffi::{c_char, c_void};
use core::ptr::NonNull;
use hsa_sys::*;

/// An agent. Each agent can own memory.
pub(crate) type Agent = Owner;

impl Instance {
    /// Returns all agents, in the order of iteration.
    pub(crate) fn agents(&self) -> impl Iterator<Item = Agent> + use<> {
        let (cpus, gpus) = (self.config.cpus.len(), self.config.gpus.len());
        (0..cpus).map(Agent::Cpu).chain((0..gpus).map(Agent::Gpu))
    }

    /// Returns whether the agent exists. A descriptor from another simulation can name an agent
    /// that this one lacks.
    pub(crate) fn has_agent(&self, agent: Agent) -> bool {
        match agent {
            Agent::Cpu(number) => number < self.config.cpus.len(),
            Agent::Gpu(number) => number < self.config.gpus.len(),
        }
    }

    /// Returns the agent's number among all agents, which is also its NUMA node.
    pub(crate) fn node(&self, agent: Agent) -> usize {
        match agent {
            Agent::Cpu(number) => number,
            Agent::Gpu(number) => self.config.cpus.len() + number,
        }
    }

    pub(crate) fn agent_at(&self, node: usize) -> Option<Agent> {
        self.agents().nth(node)
    }

    pub(crate) fn agent_handle(&self, agent: Agent) -> hsa_agent_t {
        hsa_agent_t { handle: self.identity.value(Kind::Agent, self.node(agent)) }
    }

    /// Finds the agent of a handle.
    pub(crate) fn agent(&self, agent: hsa_agent_t) -> HsaResult<Agent> {
        let node = self.identity.index(Kind::Agent, agent.handle);
        node.and_then(|node| self.agent_at(node)).ok_or(HSA_STATUS_ERROR_INVALID_AGENT)
    }

    /// Finds the agents of an array of handles.
    ///
    /// # Safety
    /// `agents` must be null or point at `count` agents.
    pub(crate) unsafe fn agents_of(
        &self,
        agents: *const hsa_agent_t,
        count: usize,
    ) -> HsaResult<Vec<Agent>> {
        if agents.is_null() || count == 0 {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the caller promises the array, and each element is read on its own.
        (0..count).map(|index| self.agent(unsafe { agents.add(index).read_unaligned() })).collect()
    }
}

/// `hsa_iterate_agents`
///
/// # Safety
/// `callback` must be callable with `data`.
pub(crate) unsafe fn iterate(
    instance: &Instance,
    callback: AgentCallback,
    data: *mut c_void,
) -> HsaResult {
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    for agent in instance.agents() {
        // SAFETY: the caller's function and the caller's data.
        match unsafe { callback(instance.agent_handle(agent), data) } {
            HSA_STATUS_SUCCESS => {}
            stop => return Err(stop),
        }
    }
    Ok(())
}

/// Writes a text into an array of `room` characters, padded with zeros.
///
/// # Safety
/// There must be room for that many characters.
unsafe fn write_text(value: NonNull<c_void>, room: usize, text: &str) {
    let text = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the text is shorter than `room`, and the caller promises that `room` characters fit.
    unsafe {
        value.cast::<u8>().write_bytes(0, room);
        value.cast::<u8>().copy_from_nonoverlapping(NonNull::from(text).cast(), text.len());
    }
}

/// `hsa_agent_get_info`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn info(
    instance: &Instance,
    agent: hsa_agent_t,
    attribute: hsa_agent_info_t,
    value: *mut c_void,
) -> HsaResult {
    let agent = instance.agent(agent)?;
    let value = non_null(value)?;
    // SAFETY: not null, and the caller has room for the attribute's type: 64 characters.
    let text = |text: &str| unsafe { write_text(value, 64, text) };
    // SAFETY: as above, a 32-bit number.
    let word = |number: u32| unsafe { value.cast().write_unaligned(number) };
    // SAFETY: as above, a 64-bit number.
    let long = |number: u64| unsafe { value.cast().write_unaligned(number) };
    // Attributes of both kinds of agents.
    match attribute {
        HSA_AGENT_INFO_NODE | HSA_AMD_AGENT_INFO_DRIVER_NODE_ID => {
            word(instance.node(agent) as u32);
            return Ok(());
        }
        HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS => {
            let direct = match agent {
                Agent::Cpu(_) => true,
                Agent::Gpu(number) => instance.config.gpus[number].kind == GpuKind::Apu,
            };
            // SAFETY: as above, a boolean.
            unsafe { value.cast().write_unaligned(direct) };
            return Ok(());
        }
        _ => {}
    }
    match agent {
        Agent::Cpu(number) => {
            let cpu = &instance.config.cpus[number];
            match attribute {
                HSA_AGENT_INFO_NAME | HSA_AMD_AGENT_INFO_PRODUCT_NAME => text(&cpu.name),
                HSA_AGENT_INFO_VENDOR_NAME => text("CPU"),
                HSA_AGENT_INFO_FEATURE
                | HSA_AMD_AGENT_INFO_CHIP_ID
                | HSA_AMD_AGENT_INFO_BDFID
                | HSA_AMD_AGENT_INFO_DRIVER_UID
                | HSA_AMD_AGENT_INFO_DOMAIN => word(0),
                HSA_AGENT_INFO_DEVICE => word(HSA_DEVICE_TYPE_CPU),
                HSA_AGENT_INFO_ISA => long(0),
                HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT => word(8),
                // SAFETY: as above, 21 characters.
                HSA_AMD_AGENT_INFO_UUID => unsafe { write_text(value, 21, "CPU-XX") },
                HSA_AMD_AGENT_INFO_NEAREST_CPU => long(instance.agent_handle(agent).handle),
                HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES
                    if instance.behaviour.has_memory_properties() =>
                {
                    long(0);
                }
                _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
            }
        }
        Agent::Gpu(number) => {
            let gpu = &instance.config.gpus[number];
            match attribute {
                HSA_AGENT_INFO_NAME => text(&gpu.isa),
                HSA_AGENT_INFO_VENDOR_NAME => text("AMD"),
                HSA_AGENT_INFO_FEATURE => word(1), // HSA_AGENT_FEATURE_KERNEL_DISPATCH
                HSA_AGENT_INFO_DEVICE => word(HSA_DEVICE_TYPE_GPU),
                HSA_AGENT_INFO_ISA => long(instance.identity.value(Kind::Isa, number)),
                HSA_AMD_AGENT_INFO_CHIP_ID => word(gpu.chip_id),
                HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT => word(gpu.compute_units),
                HSA_AMD_AGENT_INFO_BDFID => word(gpu.bdf),
                HSA_AMD_AGENT_INFO_PRODUCT_NAME => text(&gpu.product),
                HSA_AMD_AGENT_INFO_DOMAIN => word(gpu.domain),
                HSA_AMD_AGENT_INFO_UUID => {
                    let uuid = format!("GPU-{:016x}", gpu.uuid);
                    // SAFETY: as above, 21 characters.
                    unsafe { write_text(value, 21, &uuid) };
                }
                HSA_AMD_AGENT_INFO_MEMORY_AVAIL => {
                    long(instance.reported_size(instance.video_memory[number].available()));
                }
                HSA_AMD_AGENT_INFO_DRIVER_UID => word(gpu.uuid as u32),
                HSA_AMD_AGENT_INFO_NEAREST_CPU => {
                    long(instance.agent_handle(Agent::Cpu(gpu.nearest_cpu)).handle);
                }
                HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES
                    if instance.behaviour.has_memory_properties() =>
                {
                    // Little-endian: bit n of the eight bytes is bit n of the number.
                    let apu = u64::from(gpu.kind == GpuKind::Apu);
                    long(apu << HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU);
                }
                _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
            }
        }
    }
    Ok(())
}

/// `hsa_agent_iterate_isas`
///
/// # Safety
/// `callback` must be callable with `data`.
pub(crate) unsafe fn iterate_isas(
    instance: &Instance,
    agent: hsa_agent_t,
    callback: IsaCallback,
    data: *mut c_void,
) -> HsaResult {
    let agent = instance.agent(agent)?;
    let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
    let Agent::Gpu(number) = agent else { return Ok(()) };
    let isa = hsa_isa_t { handle: instance.identity.value(Kind::Isa, number) };
    // SAFETY: the caller's function and the caller's data.
    match unsafe { callback(isa, data) } {
        HSA_STATUS_SUCCESS => Ok(()),
        stop => Err(stop),
    }
}

/// `hsa_isa_get_info_alt`
///
/// # Safety
/// `value` must be null or have room for the attribute's type.
pub(crate) unsafe fn isa_info(
    instance: &Instance,
    isa: hsa_isa_t,
    attribute: hsa_isa_info_t,
    value: *mut c_void,
) -> HsaResult {
    let number = instance.identity.index(Kind::Isa, isa.handle);
    let gpu = number.and_then(|number| instance.config.gpus.get(number));
    let name = full_isa_name(gpu.ok_or(HSA_STATUS_ERROR_INVALID_ISA)?);
    let value = non_null(value)?;
    match attribute {
        // Includes the terminating zero.
        // SAFETY: the caller has room for a 32-bit number.
        HSA_ISA_INFO_NAME_LENGTH => unsafe {
            value.cast().write_unaligned(name.len() as u32 + 1);
        },
        // SAFETY: the caller has room for the reported length.
        HSA_ISA_INFO_NAME => unsafe { write_text(value, name.len() + 1, &name) },
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    }
    Ok(())
}

fn full_isa_name(gpu: &Gpu) -> String {
    format!("amdgcn-amd-amdhsa--{}{}", gpu.isa, gpu.isa_features)
}

const _: () = assert!(size_of::<c_char>() == 1);
