//! The attributes of agents.
//!
//! The properties of hardware come from the configuration ([`Hardware`](crate::Hardware)). The other values are those
//! that AMD's runtimes 6.1.2, 6.4.3 and 7.2.4 returned for an emulated MI300X, and for its CPU. An attribute that AMD's
//! runtimes reject for an agent is an error here too.

use crate::agents::Agent;
use crate::attribute::Value;
use crate::config::{Cpu, Gpu, GpuKind};
use crate::identity::Kind;
use crate::instance::Instance;
use crate::status::HsaResult;
use crate::system::{self, FREQUENCY, extensions};
use core::ffi::c_void;
use core::sync::atomic::AtomicU32;
use hsa_sys::*;

const INVALID: HsaResult<Value> = Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);

/// The smallest and the largest number of packets in a GPU's queue.
pub(crate) const QUEUE_SIZES: (u32, u32) = (64, 128 << 10);
/// The number of hardware queues of a GPU.
const QUEUE_COUNT: u32 = 128;
/// The largest number of work-items in a workgroup, also in each dimension.
pub(crate) const WORKGROUP_SIZE: u16 = 1024;
/// The largest number of fine-grained barriers in a workgroup.
pub(crate) const FBARRIER_COUNT: u32 = 32;
/// The frequency of a GPU's clock counter in Hz.
const GPU_FREQUENCY: u64 = 100_000_000;
const WATCH_POINT_COUNT: u32 = 4;
/// The bytes of scratch memory that one compute die can use.
const SCRATCH_SIZE: u64 = 4 << 30;
/// The length of the texts in the attributes, with the terminating zero.
const TEXT_LENGTH: usize = 64;

/// The size in bytes of each attribute that is a set of bits.
const BIT_SET_LENGTH: usize = 8;
/// The length of a GPU's UUID: `GPU-`, 16 digits and the terminating zero.
const UUID_LENGTH: usize = 21;

/// The registers that a program writes to flush the path to a GPU's memory. In the simulation, writes have no effect.
static HDP_REGISTERS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

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
    let found = match agent {
        Agent::Cpu(number) => of_cpu(instance, agent, &instance.config.cpus[number], attribute)?,
        Agent::Gpu(number) => of_gpu(instance, number, &instance.config.gpus[number], attribute)?,
    };
    // SAFETY: the caller promises that `value` has room.
    unsafe { found.write(value) }
}

/// Returns an attribute that has the same value for all agents, or depends only on the agent's number or type.
fn common(instance: &Instance, agent: Agent, attribute: hsa_agent_info_t) -> HsaResult<Value> {
    Ok(match attribute {
        HSA_AGENT_INFO_NODE | HSA_AMD_AGENT_INFO_DRIVER_NODE_ID => {
            (instance.node(agent) as u32).into()
        }
        HSA_AGENT_INFO_MACHINE_MODEL => HSA_MACHINE_MODEL_LARGE.into(),
        HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE
        | HSA_AGENT_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES => {
            HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR.into()
        }
        HSA_AGENT_INFO_QUEUE_TYPE => HSA_QUEUE_TYPE_MULTI.into(),
        HSA_AGENT_INFO_VERSION_MAJOR | HSA_AGENT_INFO_VERSION_MINOR => 1u16.into(),
        HSA_AGENT_INFO_EXTENSIONS => {
            let is_gpu = matches!(agent, Agent::Gpu(_));
            extensions(is_gpu && instance.behaviour.supports_loader()).into()
        }
        // AMD's 6.1.2, 6.4.3 and 7.2.4 reject this attribute, although their header names it.
        HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT
            if instance.behaviour.has_row_pitch_alignment() =>
        {
            0usize.into()
        }
        HSA_AMD_AGENT_INFO_IOMMU_SUPPORT => HSA_IOMMU_SUPPORT_NONE.into(),
        HSA_AMD_AGENT_INFO_AQL_EXTENSIONS => Value::zeros(BIT_SET_LENGTH),
        HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_CURRENT if instance.behaviour.has_scratch_limits() => {
            0u64.into()
        }
        _ => return INVALID,
    })
}

/// Returns the limits of images for an agent without image support.
fn no_images(attribute: hsa_agent_info_t) -> HsaResult<Value> {
    Ok(match attribute {
        HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS
        | HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES
        | HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES
        | HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS => 0u32.into(),
        HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS => [0u32; 2].into(),
        HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS => [0u32; 3].into(),
        _ => return INVALID,
    })
}

/// Returns the limits of images. The source is `image_lut_kv.cpp` of ROCr, which is used for every GPU that supports
/// images.
fn images(attribute: hsa_agent_info_t) -> HsaResult<Value> {
    const SIDE: u32 = 16384;
    const LAYERS: u32 = 8192;
    Ok(match attribute {
        HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS | HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS => {
            SIDE.into()
        }
        HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS => u32::MAX.into(),
        HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS => [SIDE; 2].into(),
        HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS => [SIDE, SIDE, LAYERS].into(),
        HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS => LAYERS.into(),
        HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES => 128u32.into(),
        HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES => 64u32.into(),
        HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS => 16u32.into(),
        _ => return INVALID,
    })
}

fn of_cpu(
    instance: &Instance,
    agent: Agent,
    cpu: &Cpu,
    attribute: hsa_agent_info_t,
) -> HsaResult<Value> {
    Ok(match attribute {
        HSA_AGENT_INFO_NAME | HSA_AMD_AGENT_INFO_PRODUCT_NAME => {
            Value::text(TEXT_LENGTH, &cpu.name)
        }
        HSA_AGENT_INFO_VENDOR_NAME => Value::text(TEXT_LENGTH, "CPU"),
        HSA_AGENT_INFO_DEVICE => HSA_DEVICE_TYPE_CPU.into(),
        HSA_AGENT_INFO_PROFILE => HSA_PROFILE_FULL.into(),
        HSA_AGENT_INFO_FAST_F16_OPERATION => false.into(),
        // The kernel reports bytes. AMD's runtime multiplies them by 1024, and lists only L1.
        HSA_AGENT_INFO_CACHE_SIZE => [cpu.l1_cache << 10, 0, 0, 0].into(),
        // These attributes describe packets, hardware identifiers or firmware, which CPUs do not have.
        HSA_AGENT_INFO_FEATURE
        | HSA_AGENT_INFO_WAVEFRONT_SIZE
        | HSA_AGENT_INFO_WORKGROUP_MAX_SIZE
        | HSA_AGENT_INFO_GRID_MAX_SIZE
        | HSA_AGENT_INFO_FBARRIER_MAX_SIZE
        | HSA_AGENT_INFO_QUEUES_MAX
        | HSA_AGENT_INFO_QUEUE_MIN_SIZE
        | HSA_AGENT_INFO_QUEUE_MAX_SIZE
        | HSA_AMD_AGENT_INFO_CHIP_ID
        | HSA_AMD_AGENT_INFO_BDFID
        | HSA_AMD_AGENT_INFO_DRIVER_UID
        | HSA_AMD_AGENT_INFO_DOMAIN
        | HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU
        | HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU
        | HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES
        | HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE
        | HSA_AMD_AGENT_INFO_ASIC_REVISION
        | HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID
        | HSA_AMD_AGENT_INFO_UCODE_VERSION
        | HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION
        | HSA_AMD_AGENT_INFO_NUM_SDMA_ENG
        | HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG
        | HSA_AMD_AGENT_INFO_NUM_XCC => 0u32.into(),
        HSA_AGENT_INFO_WORKGROUP_MAX_DIM => [0u16; 3].into(),
        HSA_AGENT_INFO_GRID_MAX_DIM => [0u32; 3].into(),
        HSA_AGENT_INFO_ISA => 0u64.into(),
        HSA_AMD_AGENT_INFO_CACHELINE_SIZE => 64u32.into(),
        HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT => cpu.threads.into(),
        HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY => cpu.clock.into(),
        HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS => 1u32.into(),
        HSA_AMD_AGENT_INFO_HDP_FLUSH => [0u64; 2].into(),
        HSA_AMD_AGENT_INFO_UUID => Value::text(7, "CPU-XX"),
        HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS => true.into(),
        HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY => FREQUENCY.into(),
        // No agent, as in AMD's runtime.
        HSA_AMD_AGENT_INFO_NEAREST_CPU => 0u64.into(),
        HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES if instance.behaviour.has_memory_properties() => {
            Value::zeros(BIT_SET_LENGTH)
        }
        HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_MAX if instance.behaviour.has_scratch_limits() => {
            0u64.into()
        }
        HSA_AMD_AGENT_INFO_CLOCK_COUNTERS if instance.behaviour.has_clock_counters() => {
            [0u64; 4].into()
        }
        _ => return common(instance, agent, attribute).or_else(|_| no_images(attribute)),
    })
}

fn of_gpu(
    instance: &Instance,
    number: usize,
    gpu: &Gpu,
    attribute: hsa_agent_info_t,
) -> HsaResult<Value> {
    let (hardware, behaviour) = (&gpu.hardware, instance.behaviour);
    Ok(match attribute {
        HSA_AGENT_INFO_NAME => Value::text(TEXT_LENGTH, &gpu.isa),
        HSA_AGENT_INFO_VENDOR_NAME => Value::text(TEXT_LENGTH, "AMD"),
        HSA_AGENT_INFO_FEATURE => HSA_AGENT_FEATURE_KERNEL_DISPATCH.into(),
        HSA_AGENT_INFO_DEVICE => HSA_DEVICE_TYPE_GPU.into(),
        HSA_AGENT_INFO_PROFILE => HSA_PROFILE_BASE.into(),
        HSA_AGENT_INFO_FAST_F16_OPERATION => true.into(),
        HSA_AGENT_INFO_WAVEFRONT_SIZE => hardware.wavefront_size.into(),
        HSA_AGENT_INFO_WORKGROUP_MAX_DIM => [WORKGROUP_SIZE; 3].into(),
        HSA_AGENT_INFO_WORKGROUP_MAX_SIZE => u32::from(WORKGROUP_SIZE).into(),
        HSA_AGENT_INFO_GRID_MAX_DIM => behaviour.grid_limits().into(),
        HSA_AGENT_INFO_GRID_MAX_SIZE => u32::MAX.into(),
        HSA_AGENT_INFO_FBARRIER_MAX_SIZE => FBARRIER_COUNT.into(),
        HSA_AGENT_INFO_QUEUES_MAX => QUEUE_COUNT.into(),
        HSA_AGENT_INFO_QUEUE_MIN_SIZE => QUEUE_SIZES.0.into(),
        HSA_AGENT_INFO_QUEUE_MAX_SIZE => QUEUE_SIZES.1.into(),
        HSA_AGENT_INFO_CACHE_SIZE => {
            let [l1, l2, l3] = hardware.cache_sizes.map(|kib| kib << 10);
            [l1, l2, l3, 0].into()
        }
        HSA_AGENT_INFO_ISA => instance.identity.value(Kind::Isa, number).into(),
        HSA_AMD_AGENT_INFO_CHIP_ID => gpu.chip_id.into(),
        HSA_AMD_AGENT_INFO_CACHELINE_SIZE => hardware.cache_line.into(),
        HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT
        | HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT => gpu.compute_units.into(),
        HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY => hardware.clock.into(),
        HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS => WATCH_POINT_COUNT.into(),
        HSA_AMD_AGENT_INFO_BDFID => gpu.bdf.into(),
        HSA_AMD_AGENT_INFO_MEMORY_WIDTH => hardware.memory_width.into(),
        HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY => hardware.memory_clock.into(),
        HSA_AMD_AGENT_INFO_PRODUCT_NAME => Value::text(TEXT_LENGTH, &gpu.product),
        HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU => {
            (hardware.simds_per_unit * hardware.waves_per_simd).into()
        }
        HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU => hardware.simds_per_unit.into(),
        HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES => hardware.shader_engines.into(),
        HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE => hardware.arrays_per_engine.into(),
        HSA_AMD_AGENT_INFO_HDP_FLUSH => {
            let [memory, registers] = &HDP_REGISTERS;
            [memory, registers].map(|register| register.as_ptr().expose_provenance() as u64).into()
        }
        HSA_AMD_AGENT_INFO_DOMAIN => gpu.domain.into(),
        HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES => true.into(),
        HSA_AMD_AGENT_INFO_UUID => Value::text(UUID_LENGTH, &format!("GPU-{:016x}", gpu.uuid)),
        HSA_AMD_AGENT_INFO_ASIC_REVISION => hardware.revision.into(),
        HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS => (gpu.kind == GpuKind::Apu).into(),
        HSA_AMD_AGENT_INFO_MEMORY_AVAIL => {
            instance.lock().drop_replaced_memory();
            instance.reported_size(instance.video_memory[number].available()).into()
        }
        HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY => GPU_FREQUENCY.into(),
        HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID => hardware.family.into(),
        HSA_AMD_AGENT_INFO_UCODE_VERSION => hardware.firmware.into(),
        HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION => hardware.copy_firmware.into(),
        HSA_AMD_AGENT_INFO_NUM_SDMA_ENG => hardware.copy_engines.into(),
        HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG => hardware.link_copy_engines.into(),
        HSA_AMD_AGENT_INFO_NUM_XCC => hardware.compute_dies.into(),
        HSA_AMD_AGENT_INFO_DRIVER_UID => (gpu.uuid as u32).into(),
        HSA_AMD_AGENT_INFO_NEAREST_CPU => {
            instance.agent_handle(Agent::Cpu(gpu.nearest_cpu)).handle.into()
        }
        HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES if behaviour.has_memory_properties() => {
            // Little-endian: bit n of the eight bytes is bit n of the number.
            let apu = u64::from(gpu.kind == GpuKind::Apu);
            (apu << HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU).into()
        }
        HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_MAX if behaviour.has_scratch_limits() => {
            (SCRATCH_SIZE * u64::from(hardware.compute_dies)).into()
        }
        HSA_AMD_AGENT_INFO_CLOCK_COUNTERS if behaviour.has_clock_counters() => {
            let now = system::timestamp();
            [now / (FREQUENCY / GPU_FREQUENCY), now, now, FREQUENCY].into()
        }
        _ => {
            let limits = if gpu.has_images() { images } else { no_images };
            return common(instance, Agent::Gpu(number), attribute).or_else(|_| limits(attribute));
        }
    })
}
