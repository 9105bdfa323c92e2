//! The GPUs that can be emulated, with the properties that amdkfd and amdgpu report.

/// One model of GPU.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// `gfx_target_version`: 90402 is gfx942.
    pub(crate) target: u32,
    /// The PCI device id.
    pub(crate) device: u32,
    /// `AMDGPU_FAMILY_*`.
    pub(crate) family: u32,
    /// amdgpu's external revision of the chip.
    pub(crate) revision: u32,
    /// Whether the CPU can access all of the GPU's memory (large BAR).
    pub(crate) large_bar: bool,
    /// Whether the GPU is integrated, with memory carved out of the system's.
    pub(crate) integrated: bool,
    pub(crate) compute_units: u32,
    pub(crate) simds_per_unit: u32,
    pub(crate) wave_size: u32,
    pub(crate) waves_per_simd: u32,
    pub(crate) shader_arrays: u32,
    /// The number of compute dies (XCC).
    pub(crate) compute_dies: u32,
    pub(crate) dma_engines: u32,
    /// The number of DMA engines for XGMI links.
    pub(crate) link_dma_engines: u32,
    pub(crate) clock_mhz: u32,
    pub(crate) memory_clock_mhz: u32,
    /// The width of the memory bus in bits.
    pub(crate) memory_width: u32,
    /// The register `GB_ADDR_CONFIG`, from which AMD's runtime computes the layout of images.
    ///
    /// For `mi300x` and `mi210`, amdgpu sets this value (`gfx_v9_4_3.c`, `gfx_v9_0.c`). For `mi210`, amdgpu keeps some
    /// bits of the hardware, which are 0 here. On GFX11, amdgpu reads the register. The value of `rdna3` was recorded
    /// on this model (Mesa, `drm-shim/amdgpu_devices.c`). For `apu`, no value was found: it has that of another
    /// integrated GPU, Van Gogh, in the same file. No value was verified on a GPU for this emulation.
    pub(crate) address_config: u32,
    /// The size of the memory in bytes.
    pub(crate) memory: u64,
    /// Whether several such GPUs form a hive, connected by XGMI.
    pub(crate) hive: bool,
}

const GIB: u64 = 1 << 30;

pub(crate) const PROFILES: [Profile; 4] = [
    Profile {
        name: "mi300x",
        target: 90402,
        device: 0x74a1,
        family: 141,
        revision: 0x47,
        large_bar: true,
        integrated: false,
        compute_units: 304,
        simds_per_unit: 4,
        wave_size: 64,
        waves_per_simd: 8,
        shader_arrays: 32,
        compute_dies: 8,
        dma_engines: 2,
        link_dma_engines: 14,
        clock_mhz: 2100,
        memory_clock_mhz: 1300,
        memory_width: 8192,
        address_config: 0x2a11_4042,
        memory: 64 * GIB,
        hive: true,
    },
    Profile {
        name: "mi210",
        target: 90010,
        device: 0x740f,
        family: 141,
        revision: 0x3d,
        large_bar: true,
        integrated: false,
        compute_units: 104,
        simds_per_unit: 4,
        wave_size: 64,
        waves_per_simd: 8,
        shader_arrays: 8,
        compute_dies: 1,
        dma_engines: 2,
        link_dma_engines: 3,
        clock_mhz: 1700,
        memory_clock_mhz: 1600,
        memory_width: 4096,
        address_config: 0x2201_4042,
        memory: 64 * GIB,
        hive: true,
    },
    Profile {
        name: "rdna3",
        target: 110000,
        device: 0x744c,
        family: 145,
        revision: 0x02,
        large_bar: false,
        integrated: false,
        compute_units: 96,
        simds_per_unit: 2,
        wave_size: 32,
        waves_per_simd: 16,
        shader_arrays: 12,
        compute_dies: 1,
        dma_engines: 2,
        link_dma_engines: 0,
        clock_mhz: 2500,
        memory_clock_mhz: 1250,
        memory_width: 384,
        address_config: 0x0000_0545,
        memory: 24 * GIB,
        hive: false,
    },
    // Phoenix (gfx1103, Radeon 780M).
    Profile {
        name: "apu",
        target: 110003,
        device: 0x15bf,
        family: 148,
        revision: 0x01,
        large_bar: true,
        integrated: true,
        compute_units: 12,
        simds_per_unit: 2,
        wave_size: 32,
        waves_per_simd: 16,
        shader_arrays: 2,
        compute_dies: 1,
        dma_engines: 1,
        link_dma_engines: 0,
        clock_mhz: 2700,
        memory_clock_mhz: 2800,
        memory_width: 128,
        address_config: 0x0000_0142,
        memory: GIB / 2,
        hive: false,
    },
];

/// The bytes of GPU memory that the CPU can access without a large BAR.
const SMALL_BAR: u64 = GIB / 4;

impl Profile {
    /// Returns how many of `memory` bytes the CPU can access.
    pub(crate) fn visible(&self, memory: u64) -> u64 {
        if self.large_bar { memory } else { memory.min(SMALL_BAR) }
    }
}

pub(crate) fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}
