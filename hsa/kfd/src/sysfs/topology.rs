//! amdkfd's topology: node 0 is the CPU, the other nodes are the GPUs.

use super::File;
use crate::config::Config;
use crate::driver::{FIRST_RENDER_MINOR, gpu_id};
use crate::page_table::PAGE;
use std::fmt::Write;

const ROOT: &str = "sys/devices/virtual/kfd/kfd/topology";

/// `CRAT_IOLINK_FLAGS_ENABLED`.
const LINK_ENABLED: u64 = 1;
// Types of links (`CRAT_IOLINK_TYPE_*`).
const PCI_EXPRESS: u64 = 2;
const XGMI: u64 = 11;

// Types of memory banks (`HSA_MEM_HEAP_TYPE_*`).
const SYSTEM: u64 = 0;
const FRAME_BUFFER_PUBLIC: u64 = 1;
const FRAME_BUFFER_PRIVATE: u64 = 2;

/// The identifier of the hive of all GPUs, an arbitrary number.
const HIVE_ID: u64 = 0x00c0_ffee_0000_0001;

/// The capabilities of each GPU: 64-bit doorbells, four watch points, and firmware that can be
/// debugged (bit 29). Without bit 29, AMD's runtime (6.4.3, 7.2.4) does not release the driver when
/// it stops, and cannot start again.
const CAPABILITY: u64 = 2 << 12 | 1 << 7 | 2 << 8 | 1 << 29;

/// Formats a file of `name value` lines.
fn text(fields: &[(&str, u64)]) -> String {
    fields.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} {value}");
        text
    })
}

/// Returns every file of the topology.
pub(crate) fn files(config: &Config) -> Vec<File> {
    let mut files = vec![
        (format!("{ROOT}/generation_id"), "2\n".to_owned()),
        (
            format!("{ROOT}/system_properties"),
            text(&[("platform_oem", 0), ("platform_id", 0), ("platform_rev", 0)]),
        ),
    ];
    files.extend(cpu_files(config));
    for gpu in 0..config.gpus {
        files.extend(gpu_files(config, gpu));
    }
    files
}

/// Returns the file of a link from one node to another.
fn link(node: usize, index: usize, to: usize, kind: u64) -> File {
    let (weight, bandwidth) = if kind == XGMI { (15, 50_000) } else { (20, 64_000) };
    let fields = text(&[
        ("type", kind),
        ("version_major", 0),
        ("version_minor", 0),
        ("node_from", node as u64),
        ("node_to", to as u64),
        ("weight", weight),
        ("min_latency", 0),
        ("max_latency", 0),
        ("min_bandwidth", bandwidth),
        ("max_bandwidth", bandwidth),
        ("recommended_transfer_size", 0),
        ("recommended_sdma_engine_id_mask", 0),
        ("flags", LINK_ENABLED),
    ]);
    (format!("{ROOT}/nodes/{node}/io_links/{index}/properties"), fields)
}

/// Returns the file of a node's only memory bank.
fn bank(node: usize, fields: &[(&str, u64)]) -> File {
    (format!("{ROOT}/nodes/{node}/mem_banks/0/properties"), text(fields))
}

/// Returns the size of the machine's memory in bytes.
pub(crate) fn host_memory_size() -> u64 {
    // SAFETY: the calls access no memory.
    let (pages, page) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (pages as u64).saturating_mul(page as u64)
}

/// Returns how many bytes of the machine's memory GPUs can use (GTT): half of it, the default of `ttm.pages_limit`,
/// which limits amdgpu and amdkfd. Linux 6.12 reports this size in a virtual machine (`mem_info_gtt_total`).
///
/// amdkfd has a second limit, for the GTT and user memory of all GPUs together: 63/64 of the machine's memory, minus
/// 1.5 GiB. This second limit is not emulated. On machines with more than 3.1 GiB, the second limit is higher than the
/// size of the GTT. On smaller machines, the two limits are nearly equal.
pub(crate) fn gtt_memory() -> u64 {
    let half = host_memory_size() / 2;
    half - half % PAGE
}

fn cpu_files(config: &Config) -> Vec<File> {
    // SAFETY: the call accesses no memory.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let memory = host_memory_size();
    let node = format!("{ROOT}/nodes/0");
    // amdkfd lists a link from the CPU only to GPUs with large BAR (`kfd_parse_subtype_iolink`).
    let links = if config.profile.large_bar { config.gpus } else { 0 };
    let properties = text(&[
        ("cpu_cores_count", processors as u64),
        ("simd_count", 0),
        ("mem_banks_count", 1),
        ("caches_count", 0),
        ("io_links_count", links as u64),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("max_engine_clk_ccompute", 3000),
    ]);
    let mut files = vec![
        (format!("{node}/gpu_id"), "0\n".to_owned()),
        (format!("{node}/properties"), properties),
        bank(
            0,
            &[
                ("heap_type", SYSTEM),
                ("size_in_bytes", memory),
                ("flags", 0),
                ("width", 64),
                ("mem_clk_max", 3200),
            ],
        ),
    ];
    files.extend((0..links).map(|gpu| link(0, gpu, gpu + 1, PCI_EXPRESS)));
    files
}

fn gpu_files(config: &Config, gpu: usize) -> Vec<File> {
    let (profile, node) = (config.profile, gpu + 1);
    let folder = format!("{ROOT}/nodes/{node}");
    let hive = if profile.hive && config.gpus > 1 { HIVE_ID } else { 0 };
    let peers: Vec<usize> = (0..config.gpus).filter(|peer| *peer != gpu && hive != 0).collect();
    let heap_type = if profile.large_bar { FRAME_BUFFER_PUBLIC } else { FRAME_BUFFER_PRIVATE };
    let properties = text(&[
        ("cpu_cores_count", 0),
        ("simd_count", u64::from(profile.compute_units * profile.simds_per_unit)),
        ("mem_banks_count", 1),
        ("caches_count", 1),
        ("io_links_count", 1 + peers.len() as u64),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 0x8000_0000 + 0x1000 * gpu as u64),
        ("max_waves_per_simd", u64::from(profile.waves_per_simd)),
        ("lds_size_in_kb", 64),
        ("gds_size_in_kb", 0),
        ("num_gws", 64),
        ("wave_front_size", u64::from(profile.wave_size)),
        ("array_count", u64::from(profile.shader_arrays)),
        ("simd_arrays_per_engine", 1),
        ("cu_per_simd_array", u64::from(profile.compute_units / profile.shader_arrays)),
        ("simd_per_cu", u64::from(profile.simds_per_unit)),
        ("max_slots_scratch_cu", 32),
        ("gfx_target_version", u64::from(profile.target)),
        ("vendor_id", 0x1002),
        ("device_id", u64::from(profile.device)),
        ("location_id", 0x0300 + 0x100 * gpu as u64),
        ("domain", 0),
        ("drm_render_minor", (FIRST_RENDER_MINOR + gpu) as u64),
        ("hive_id", hive),
        ("num_sdma_engines", u64::from(profile.dma_engines)),
        ("num_sdma_xgmi_engines", u64::from(profile.link_dma_engines)),
        ("num_sdma_queues_per_engine", 8),
        ("num_cp_queues", 24),
        ("max_engine_clk_fcompute", u64::from(profile.clock_mhz)),
        ("max_engine_clk_ccompute", 3000),
        ("local_mem_size", 0),
        ("fw_version", 166),
        ("capability", CAPABILITY),
        ("debug_prop", 0),
        ("sdma_fw_version", 22),
        ("unique_id", 0x5ca1_ab1e_0000_0000 + gpu as u64),
        ("num_xcc", u64::from(profile.compute_dies)),
        ("family_id", u64::from(profile.family)),
    ]);
    let cache = text(&[
        ("processor_id_low", 0x8000_0000),
        ("level", 2),
        ("size", 4096),
        ("cache_line_size", 128),
        ("cache_lines_per_tag", 1),
        ("association", 16),
        ("latency", 0),
        ("type", 9),
    ]);
    let mut files = vec![
        (format!("{folder}/gpu_id"), format!("{}\n", gpu_id(gpu))),
        (format!("{folder}/name"), format!("{}\n", profile.name)),
        (format!("{folder}/properties"), properties),
        (format!("{folder}/caches/0/properties"), cache),
        bank(
            node,
            &[
                ("heap_type", heap_type),
                ("size_in_bytes", config.memory),
                ("flags", 0),
                ("width", u64::from(profile.memory_width)),
                ("mem_clk_max", u64::from(profile.memory_clock_mhz)),
            ],
        ),
        link(node, 0, 0, PCI_EXPRESS),
    ];
    let links = peers.iter().enumerate();
    files.extend(links.map(|(index, peer)| link(node, index + 1, peer + 1, XGMI)));
    files
}
