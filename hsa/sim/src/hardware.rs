//! The hardware of the preset GPUs, as the attributes of their agents report it.
//!
//! Each value has one of these sources:
//! * *specifications*: AMD's page "Accelerator and GPU hardware specifications" (ROCm 6.2.4), and the product pages;
//! * *rocminfo*: the public output of `rocminfo` on this GPU: MI300X in ROCm/ROCm#4414, ROCm/TransferBench#351 and
//!   ROCm/Tensile#2071, MI300A in ROCm/ROCm#4273, gfx1100 in ROCm/hipBLASLt#831;
//! * *kernel*: the tables of Linux's amdkfd and amdgpu (`amdgpu_drm.h`: `AMDGPU_FAMILY_*`).
//!
//! Values that AMD's runtime computes the same way for every GPU are in `agent_info`.

/// The properties of a GPU's hardware that the simulation reports but does not simulate. To create a value, change
/// [`Gpu::hardware`](crate::Gpu::hardware) of a preset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hardware {
    /// Work-items in a wavefront (specifications).
    pub wavefront_size: u32,
    /// SIMD units of a compute unit (rocminfo).
    pub simds_per_unit: u32,
    /// Wavefronts that a SIMD unit holds: rocminfo's waves per compute unit, divided by the unit's SIMDs.
    pub waves_per_simd: u32,
    /// Shader engines of the whole GPU (rocminfo).
    pub shader_engines: u32,
    /// Shader arrays of a shader engine (rocminfo).
    pub arrays_per_engine: u32,
    /// Compute dies: XCDs (specifications).
    pub compute_dies: u32,
    /// KiB of the data caches: L1 of one unit, L2 of one die, and L3 (rocminfo, specifications).
    pub cache_sizes: [u32; 3],
    /// Bytes in a line of L2 (rocminfo).
    pub cache_line: u32,
    /// The highest clock of the compute units in MHz (rocminfo, specifications).
    pub clock: u32,
    /// The highest clock of the memory in MHz (specifications).
    pub memory_clock: u32,
    /// Bits of the memory bus (specifications).
    pub memory_width: u32,
    /// The revision of the chip (rocminfo).
    pub revision: u32,
    /// The family of the chip (kernel).
    pub family: u32,
    /// The version of the packet processor's firmware (rocminfo).
    pub firmware: u32,
    /// The version of the copy engines' firmware (rocminfo).
    pub copy_firmware: u32,
    /// Copy engines for the host (kernel).
    pub copy_engines: u32,
    /// Copy engines for XGMI links (kernel).
    pub link_copy_engines: u32,
}

impl Hardware {
    pub(crate) fn mi300x() -> Self {
        Self {
            wavefront_size: 64,
            simds_per_unit: 4,
            waves_per_simd: 8,
            shader_engines: 32,
            arrays_per_engine: 1,
            compute_dies: 8,
            cache_sizes: [32, 4 << 10, 256 << 10],
            cache_line: 128,
            clock: 2100,
            memory_clock: 1300,
            memory_width: 8192,
            revision: 1,
            family: 141, // AMDGPU_FAMILY_AI
            firmware: 150,
            copy_firmware: 19,
            copy_engines: 2,
            link_copy_engines: 14,
        }
    }

    /// Returns the hardware of the MI300X with six instead of eight compute dies.
    pub(crate) fn mi300a() -> Self {
        Self { shader_engines: 24, compute_dies: 6, copy_firmware: 22, ..Self::mi300x() }
    }

    /// Returns the hardware of the Radeon RX 7800 XT (Navi 32), with the firmware versions of Navi
    /// 31, the most similar GPU whose `rocminfo` output is public.
    pub(crate) fn radeon() -> Self {
        Self {
            wavefront_size: 32,
            simds_per_unit: 2,
            waves_per_simd: 16,
            shader_engines: 3,
            arrays_per_engine: 2,
            compute_dies: 1,
            cache_sizes: [32, 4 << 10, 64 << 10],
            cache_line: 128,
            clock: 2430,
            memory_clock: 1219,
            memory_width: 256,
            revision: 0,
            family: 145, // AMDGPU_FAMILY_GC_11_0_0
            firmware: 202,
            copy_firmware: 20,
            copy_engines: 2,
            link_copy_engines: 0,
        }
    }
}
