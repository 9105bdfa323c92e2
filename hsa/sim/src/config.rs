//! Configurations: agents, limits and ROCm generation of a simulation.

use crate::{FaultPlan, Generation, Hardware};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// The maximum number of CPUs, and of GPUs.
pub(crate) const MAX_AGENTS: usize = 64;

/// A CPU agent. To create one, change the CPU of a [preset](Config::mi300x).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The value of `HSA_AGENT_INFO_NAME`.
    pub name: String,
    /// Bytes of memory of the CPU's NUMA node.
    pub memory: u64,
    /// The number of hardware threads, which HSA reports as compute units.
    pub threads: u32,
    /// The highest clock in MHz.
    pub clock: u32,
    /// Bytes of a core's L1 data cache.
    pub l1_cache: u32,
}

/// The kind of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuKind {
    /// A separate card.
    Discrete,
    /// In one package with the CPU.
    Apu,
}

/// A GPU agent. To create one, change [`Gpu::mi300x`] or the GPU of a preset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// The instruction set, such as `gfx942`. Also the value of `HSA_AGENT_INFO_NAME`.
    pub isa: String,
    /// The suffix of the instruction set's full name, such as `:sramecc+:xnack-`.
    pub isa_features: String,
    /// The value of `HSA_AMD_AGENT_INFO_PRODUCT_NAME`.
    pub product: String,
    /// Discrete or integrated.
    pub kind: GpuKind,
    /// Bytes of video memory. The machine allocates memory for a page when the page is first accessed.
    pub vram: u64,
    /// Whether the CPU can access all of the video memory. Otherwise, an access of the CPU faults.
    pub large_bar: bool,
    /// The XGMI hive of the GPU, if any. GPUs of a hive list their fine-grained pool.
    pub hive: Option<u64>,
    /// The PCI device id.
    pub chip_id: u32,
    /// The number of compute units.
    pub compute_units: u32,
    /// The number of the nearest CPU.
    pub nearest_cpu: usize,
    /// The PCI bus, device and function: `bus << 8 | device << 3 | function`.
    pub bdf: u32,
    /// The PCI domain.
    pub domain: u32,
    /// The number in the UUID. The text of the UUID is `GPU-` and this number in 16 hexadecimal digits.
    pub uuid: u64,
    /// Properties of the hardware that the simulation reports but does not simulate.
    pub hardware: Hardware,
}

/// Whether GPUs enforce permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuPermissions {
    /// Permissions are only recorded. Each GPU whose access was set, even to none, can read and write the mapping, as
    /// with AMD's drivers. In generation E, GPUs enforce permissions nevertheless.
    Recorded,
    /// A GPU has exactly the permissions that were set.
    Enforced,
}

/// When changes of GPUs' page tables take effect. The first lock of a range of host memory, and the removal of its last
/// lock, make all earlier changes take effect. In generation E, changes always take effect at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageTableUpdates {
    /// At once.
    #[default]
    Immediate,
    /// At once, except for entries that the GPU has used: a change does not flush the GPU's TLB. This is
    /// the behaviour of AMD's driver if the CPU can access all video memory.
    NotFlushed,
    /// After the call has returned, and not before host memory is next locked or unlocked. AMD's driver also makes
    /// changes after the call has returned, if the CPU cannot access all video memory.
    Late,
}

/// A configuration of a simulation. Start from a preset and change fields, or parse a text (see
/// [`FromStr`](core::str::FromStr) below).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The CPUs: one agent for each NUMA node.
    pub cpus: Vec<Cpu>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The simulated ROCm generation.
    pub generation: Generation,
    /// The minor number of AMD's extension (the major number is 1). It must be a version of the
    /// [generation](Generation::extensions), and selects some behaviour within the generation.
    pub extension_minor: u32,
    /// Whether the runtime reports the extension's version. ROCm 6.0 does not.
    pub extension_reported: bool,
    /// The minor number that the runtime reports instead of [`extension_minor`](Self::extension_minor), to
    /// test programs that depend on the version. `None` by default.
    pub false_extension: Option<u16>,
    /// The build that the runtime reports instead of its own, to test programs that depend on the build. If the text
    /// is empty, the runtime reports no build. `None` by default.
    pub false_build: Option<String>,
    /// Whether a fabric links the GPUs, so that memory can be exported as fabric handles. Only generation D supports
    /// fabrics.
    pub fabric: bool,
    /// The granule of video memory: a power of two from 4 KiB to 1 GiB.
    pub granule: u64,
    /// The granule that is recommended for video memory.
    pub recommended_granule: u64,
    /// Whether GPUs enforce permissions.
    pub gpu_permissions: GpuPermissions,
    /// When changes of GPUs' page tables take effect.
    pub page_table_updates: PageTableUpdates,
    /// Whether the CPU can map an exported descriptor for writing. If not, only `set_access` gives
    /// the CPU write access. In generation A, as with AMD's runtime, each `set_access` call that changes the CPU's
    /// access leaves an address-space hole for a moment, and overwrites a mapping that another thread creates in the
    /// hole.
    pub dmabuf_cpu_mapping: bool,
    /// Whether the driver allocates memory of the host as dma-bufs
    /// ([`Simulation::host_buffer`](crate::Simulation::host_buffer)).
    pub host_buffers: bool,
    /// Whether virtual memory management is supported.
    pub vmem: bool,
    /// Whether GPUs can access each other's video memory.
    pub peer_access: bool,
    /// Whether `hsa_amd_ipc_memory_attach` accepts any length, as AMD's releases do (seen in 6.1.2,
    /// 6.4.3 and 7.2.4). Bytes beyond the memory are not accessible. If false, only the exported
    /// length is accepted.
    pub accepts_any_ipc_length: bool,
    /// Whether virtual memory does nothing: every function returns success at once, with addresses
    /// and handles from a counter and no memory. Used to measure the overhead of callers. These
    /// calls are not counted and support no faults.
    pub has_no_op_vmem: bool,
    /// Whether the first wait for each signal returns at once, whatever the value is, unless the program has read the
    /// signal before. HSA allows such early returns. With this setting, a copy starts after the first read of its
    /// signal, or after one second. Therefore, the first wait for a copy returns before the copy ends.
    pub early_waits: bool,
    /// The planned faults.
    pub faults: FaultPlan,
}

impl Default for Config {
    fn default() -> Self {
        Self::mi300x(2)
    }
}

impl Config {
    fn with_agents(cpus: Vec<Cpu>, gpus: Vec<Gpu>) -> Self {
        Self {
            cpus,
            gpus,
            generation: Generation::B,
            extension_minor: Generation::B.extension(),
            extension_reported: true,
            false_extension: None,
            false_build: None,
            fabric: true,
            granule: 4 * KIB,
            recommended_granule: 2 * MIB,
            gpu_permissions: GpuPermissions::Recorded,
            page_table_updates: PageTableUpdates::Immediate,
            dmabuf_cpu_mapping: true,
            host_buffers: true,
            vmem: true,
            peer_access: true,
            accepts_any_ipc_length: false,
            has_no_op_vmem: false,
            early_waits: false,
            faults: FaultPlan::none(),
        }
    }

    /// Configures one CPU and `gpus` MI300X of 192 GiB, linked by XGMI.
    #[must_use]
    pub fn mi300x(gpus: usize) -> Self {
        let mut config = Self::with_agents(vec![Cpu::epyc()], vec![Gpu::mi300x()]);
        config.set_gpus(gpus);
        config
    }

    /// Configures one CPU and a Radeon of 16 GiB, of which the CPU can access 256 MiB.
    #[must_use]
    pub fn consumer() -> Self {
        Self::with_agents(vec![Cpu::ryzen()], vec![Gpu::radeon()])
    }

    /// Configures an MI300A: a CPU and a GPU in one package.
    #[must_use]
    pub fn apu() -> Self {
        Self::with_agents(vec![Cpu::mi300a()], vec![Gpu::mi300a()])
    }

    /// Configures one CPU and `gpus` MI300X whose virtual memory [does nothing](Self::has_no_op_vmem). The CPU cannot
    /// access the GPUs' memory. Simulates ROCm 6.4, because in ROCm 7.2 callers must map over an unmapped range to
    /// release the range's memory.
    #[must_use]
    pub fn no_op_vmem(gpus: usize) -> Self {
        let mut config = Self::mi300x(gpus).with_generation(Generation::A);
        config.has_no_op_vmem = true;
        config.gpus.iter_mut().for_each(|gpu| gpu.large_bar = false);
        config
    }

    /// Selects a generation, with its usual extension version.
    #[must_use]
    pub fn with_generation(mut self, generation: Generation) -> Self {
        self.generation = generation;
        self.extension_minor = generation.extension();
        self
    }

    /// Selects an extension version, with its generation. Keeps the current generation if that has this version.
    #[must_use]
    pub fn with_extension(mut self, minor: u32) -> Self {
        if !self.generation.extensions().contains(&minor) {
            self.generation = Generation::of_extension(minor);
        }
        self.extension_minor = minor;
        self
    }

    /// Sets a [false](Self::false_extension) extension version, which the runtime reports.
    #[must_use]
    pub fn with_false_extension(mut self, minor: u16) -> Self {
        self.false_extension = Some(minor);
        self
    }

    /// Sets a [false](Self::false_build) build, which the runtime reports.
    #[must_use]
    pub fn with_false_build(mut self, build: impl Into<String>) -> Self {
        self.false_build = Some(build.into());
        self
    }

    /// Sets the granule.
    #[must_use]
    pub fn with_granule(mut self, granule: u64) -> Self {
        self.granule = granule;
        self.recommended_granule = self.recommended_granule.max(granule);
        self
    }

    /// Sets the size of each GPU's video memory.
    #[must_use]
    pub fn with_vram(mut self, bytes: u64) -> Self {
        self.gpus.iter_mut().for_each(|gpu| gpu.vram = bytes);
        self
    }

    /// Sets whether GPUs enforce permissions.
    #[must_use]
    pub fn with_gpu_permissions(mut self, permissions: GpuPermissions) -> Self {
        self.gpu_permissions = permissions;
        self
    }

    /// Sets when changes of GPUs' page tables take effect.
    #[must_use]
    pub fn with_page_table_updates(mut self, updates: PageTableUpdates) -> Self {
        self.page_table_updates = updates;
        self
    }

    /// Sets whether waits return [early](Self::early_waits).
    #[must_use]
    pub fn with_early_waits(mut self, early: bool) -> Self {
        self.early_waits = early;
        self
    }

    /// Enables or disables XNACK on each GPU, as `HSA_XNACK=1` and `HSA_XNACK=0` do; see [`Gpu::has_xnack`].
    #[must_use]
    pub fn with_xnack(mut self, on: bool) -> Self {
        self.gpus.iter_mut().for_each(|gpu| gpu.set_xnack(on));
        self
    }

    /// Sets the planned faults.
    #[must_use]
    pub fn with_faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// Replaces the GPUs by `count` copies of the first, each with its own PCI address.
    pub(crate) fn set_gpus(&mut self, count: usize) {
        let Some(first) = self.gpus.first().cloned() else { return };
        self.gpus = (0u32..).take(count).map(|index| first.sibling(index)).collect();
    }
}

impl Cpu {
    /// Returns a CPU of the Zen 4 architecture, whose cores have an L1 data cache of 32 KiB. The callers pass the
    /// threads and the clock from AMD's product pages.
    fn new(name: &str, memory: u64, threads: u32, clock: u32) -> Self {
        Self { name: name.into(), memory, threads, clock, l1_cache: 32 << 10 }
    }

    fn mi300a() -> Self {
        Self::new("AMD Instinct MI300A Accelerator", 128 * GIB, 48, 3700)
    }

    fn epyc() -> Self {
        Self::new("AMD EPYC 9654 96-Core Processor", 768 * GIB, 192, 3700)
    }

    fn ryzen() -> Self {
        Self::new("AMD Ryzen 9 7950X 16-Core Processor", 64 * GIB, 32, 5700)
    }
}

impl Gpu {
    /// Returns an MI300X.
    #[must_use]
    pub fn mi300x() -> Self {
        Self {
            isa: "gfx942".into(),
            isa_features: ":sramecc+:xnack-".into(),
            product: "AMD Instinct MI300X".into(),
            kind: GpuKind::Discrete,
            vram: 192 * GIB,
            large_bar: true,
            hive: Some(0x7c91_52b6_f5c1_a0d3),
            chip_id: 0x74a1,
            compute_units: 304,
            nearest_cpu: 0,
            bdf: 0x0500,
            domain: 0,
            uuid: 0x4f3a_91c8_5e20_b700,
            hardware: Hardware::mi300x(),
        }
    }

    /// Returns whether the GPU can retry page faults, and therefore access all memory of the
    /// process. A GPU without XNACK can only access host memory that was allocated or locked for the GPU.
    /// With XNACK, the [features](Self::isa_features) of the instruction set contain `:xnack+`.
    #[must_use]
    pub fn has_xnack(&self) -> bool {
        self.isa_features.split(':').any(|feature| feature == "xnack+")
    }

    /// Returns whether the hardware supports images: every GPU but gfx94x does.
    pub(crate) fn has_images(&self) -> bool {
        !self.isa.starts_with("gfx94")
    }

    fn set_xnack(&mut self, on: bool) {
        if self.has_xnack() == on {
            return;
        }
        let others = self.isa_features.split(':').filter(|feature| !feature.is_empty());
        let others = others.filter(|feature| !feature.starts_with("xnack"));
        let feature = if on { "xnack+" } else { "xnack-" };
        self.isa_features = others.chain([feature]).map(|feature| format!(":{feature}")).collect();
    }

    fn mi300a() -> Self {
        Self {
            product: "AMD Instinct MI300A".into(),
            kind: GpuKind::Apu,
            vram: 128 * GIB,
            hive: None,
            chip_id: 0x74a0,
            compute_units: 228,
            hardware: Hardware::mi300a(),
            ..Self::mi300x()
        }
    }

    fn radeon() -> Self {
        Self {
            isa: "gfx1101".into(),
            isa_features: String::new(),
            product: "AMD Radeon RX 7800 XT".into(),
            kind: GpuKind::Discrete,
            vram: 16 * GIB,
            large_bar: false,
            hive: None,
            chip_id: 0x747e,
            compute_units: 60,
            nearest_cpu: 0,
            bdf: 0x0300,
            domain: 0,
            uuid: 0x1b7d_0042_9a6e_c310,
            hardware: Hardware::radeon(),
        }
    }

    fn sibling(&self, index: u32) -> Self {
        // Siblings are 16 buses apart, so that 16 GPUs fit into a PCI domain.
        let bdf = (self.bdf + (index << 12)) & 0xffff;
        let uuid = self.uuid.wrapping_add(u64::from(index));
        Self { bdf, domain: self.domain + index / 16, uuid, ..self.clone() }
    }
}
