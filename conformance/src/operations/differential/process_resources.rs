//! Resources of this process that the library could leak.

use super::describe::{Describe, list};
use super::difference::expect_equal;
use super::{Difference, address_space};
use crate::descriptors;
use hsa_vmm::Runtime;
use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// Resources of this process that the library could leak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessResources {
    /// The number of open descriptors, if it can be counted.
    descriptors: Option<usize>,
    /// The bytes in shared mappings of the address space.
    shared_bytes: usize,
    /// The memory that this process holds on each GPU, in bytes. Empty if no driver reports the memory.
    gpu_memory: Vec<u64>,
}

impl ProcessResources {
    /// Reads the current resources.
    pub(super) fn now() -> Self {
        Self {
            descriptors: descriptors::count(),
            shared_bytes: address_space::shared_bytes(),
            gpu_memory: gpu_memory(),
        }
    }

    /// Fails if the process's resources have changed.
    pub(super) fn check_unchanged(&self, runtime: &Runtime) -> Result<(), Difference> {
        check_unchanged(runtime, "resources of the process", self, &Self::now())
    }
}

impl Describe for ProcessResources {
    fn describe(&self) -> String {
        let Self { descriptors, shared_bytes, gpu_memory } = self;
        let descriptors =
            descriptors.map_or_else(|| "uncounted".to_owned(), |count| count.to_string());
        let memory = list(gpu_memory);
        format!(
            "{descriptors} descriptors, {shared_bytes:#x} bytes in shared mappings, memory of GPUs {memory}"
        )
    }
}

/// Reads amdkfd's count of this process's memory on each GPU.
fn gpu_memory() -> Vec<u64> {
    let number = |path: &Path| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let nodes = read_dir("/sys/devices/virtual/kfd/kfd/topology/nodes");
    let nodes = nodes.into_iter().flatten().flatten();
    let ids = nodes.filter_map(|node| number(&node.path().join("gpu_id")));
    let mut ids: Vec<_> = ids.filter(|&id| id != 0).collect();
    ids.sort_unstable();
    let memory_on = |id| {
        let process = std::process::id();
        number(Path::new(&format!("/sys/class/kfd/kfd/proc/{process}/vram_{id}")))
    };
    ids.into_iter().filter_map(memory_on).collect()
}

/// Fails if a resource has changed: with [`Difference::State`] on the simulation, and with
/// [`Difference::Retained`] on a loaded runtime, which may keep resources.
pub(super) fn check_unchanged<T: PartialEq + Describe>(
    runtime: &Runtime,
    what: &str,
    before: &T,
    now: &T,
) -> Result<(), Difference> {
    expect_equal(what, before, now).map_err(|difference| match difference {
        Difference::State { what, expected, found } if runtime.simulation().is_none() => {
            Difference::Retained { what, expected, found }
        }
        difference => difference,
    })
}
