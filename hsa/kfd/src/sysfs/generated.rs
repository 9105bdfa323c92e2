//! Files with the driver's current counts and page tables.

use crate::driver::{DRM_MAJOR, Driver, FIRST_RENDER_MINOR};
use crate::vm_info;

/// The files of a device's folder that contain sizes of memory.
pub(super) const MEMORY_FILES: [&str; 5] = [
    "mem_info_vram_total",
    "mem_info_vram_used",
    "mem_info_vis_vram_total",
    "mem_info_gtt_total",
    "mem_info_gtt_used",
];

/// A file whose contents are generated on open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeneratedFile {
    /// Bytes of a GPU's memory that this process holds (amdkfd's `vram_<gpuid>`).
    Held(usize),
    /// Bytes of a GPU's memory (amdgpu's `mem_info_vram_total`).
    Total(usize),
    /// Bytes of a GPU's memory in use (`mem_info_vram_used`).
    Used(usize),
    /// Bytes of a GPU's memory that the CPU can access (`mem_info_vis_vram_total`).
    Visible(usize),
    /// Bytes of system memory that GPUs can use (`mem_info_gtt_total`).
    SystemTotal,
    /// Bytes of system memory that GPUs use (`mem_info_gtt_used`).
    SystemUsed,
    /// The page tables of a GPU (`amdgpu_vm_info` of debugfs).
    PageTables(usize),
}

impl GeneratedFile {
    /// Returns the generated file at a path, if there is one.
    pub(crate) fn at_path(driver: &Driver, path: &str) -> Option<Self> {
        let (folder, name) = path.rsplit_once('/')?;
        match name {
            "mem_info_vram_total" => gpu_of_folder(driver, folder).map(Self::Total),
            "mem_info_vram_used" => gpu_of_folder(driver, folder).map(Self::Used),
            "mem_info_vis_vram_total" => gpu_of_folder(driver, folder).map(Self::Visible),
            "mem_info_gtt_total" => gpu_of_folder(driver, folder).map(|_| Self::SystemTotal),
            "mem_info_gtt_used" => gpu_of_folder(driver, folder).map(|_| Self::SystemUsed),
            "amdgpu_vm_info" => {
                let minor = folder.strip_prefix("/sys/kernel/debug/dri/")?;
                gpu_of_minor(driver, minor.parse().ok()?).map(Self::PageTables)
            }
            name => {
                let id = name.strip_prefix("vram_")?.parse().ok()?;
                is_process_folder(folder).then(|| driver.gpu(id).ok().map(Self::Held))?
            }
        }
    }

    /// Generates the contents.
    pub(crate) fn text(self, driver: &Driver) -> String {
        let vram = |gpu: usize| &driver.gpus[gpu].vram;
        match self {
            Self::Held(gpu) => format!("{}\n", vram(gpu).held()),
            Self::Total(gpu) => format!("{}\n", vram(gpu).size),
            Self::Used(gpu) => format!("{}\n", vram(gpu).used()),
            Self::Visible(gpu) => {
                format!("{}\n", driver.config.profile.visible(vram(gpu).size))
            }
            Self::SystemTotal => format!("{}\n", driver.gtt.size),
            Self::SystemUsed => format!("{}\n", driver.gtt.used()),
            Self::PageTables(gpu) => vm_info::of_gpu(driver, gpu),
        }
    }
}

/// Finds the GPU whose card or render node has this minor number.
fn gpu_of_minor(driver: &Driver, minor: usize) -> Option<usize> {
    let gpu = minor.checked_sub(FIRST_RENDER_MINOR).unwrap_or(minor);
    (gpu < driver.gpus.len()).then_some(gpu)
}

/// Finds the GPU of a device folder.
fn gpu_of_folder(driver: &Driver, folder: &str) -> Option<usize> {
    let folder = folder.strip_suffix("/device")?;
    let minor = match folder.strip_prefix("/sys/class/drm/") {
        Some(name) => name.strip_prefix("card").or_else(|| name.strip_prefix("renderD"))?,
        None => folder.strip_prefix(&format!("/sys/dev/char/{DRM_MAJOR}:"))?,
    };
    gpu_of_minor(driver, minor.parse().ok()?)
}

/// Returns whether a folder is amdkfd's folder for this process.
fn is_process_folder(folder: &str) -> bool {
    let roots = ["/sys/class/kfd/kfd/proc/", "/sys/devices/virtual/kfd/kfd/proc/"];
    let name = roots.iter().find_map(|root| folder.strip_prefix(root));
    name.is_some_and(|name| name == "self" || name.parse() == Ok(std::process::id()))
}
