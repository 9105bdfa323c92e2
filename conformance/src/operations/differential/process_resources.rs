//! What this process has that is not the library's alone.

use super::difference::same;
use super::{Difference, address_space};
use crate::descriptors;
use hsa_vmm::Runtime;
use std::fmt::Debug;
use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// What this process has that is not the library's alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessResources {
    /// How many are open, where that can be counted.
    descriptors: Option<usize>,
    shared_bytes: usize,
    /// What it holds of each GPU's memory, in bytes, where a driver says so.
    gpu_memory: Vec<u64>,
}

impl ProcessResources {
    pub(super) fn now() -> Self {
        Self {
            descriptors: descriptors::count(),
            shared_bytes: address_space::shared_bytes(),
            gpu_memory: gpu_memory(),
        }
    }

    /// Whether the process has what it had then.
    pub(super) fn is_unchanged(&self, runtime: &Runtime) -> Result<(), Difference> {
        is_unchanged(runtime, "what the process has", self, &Self::now())
    }
}

/// What amdkfd says that this process holds of each GPU's memory.
fn gpu_memory() -> Vec<u64> {
    let number = |path: &Path| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let nodes = read_dir("/sys/devices/virtual/kfd/kfd/topology/nodes");
    let ids = nodes.into_iter().flatten().flatten();
    let ids = ids.filter_map(|node| number(&node.path().join("gpu_id")));
    let mut ids: Vec<_> = ids.filter(|&id| id != 0).collect();
    ids.sort_unstable();
    let held = |id| {
        let process = std::process::id();
        number(Path::new(&format!("/sys/class/kfd/kfd/proc/{process}/vram_{id}")))
    };
    ids.into_iter().filter_map(held).collect()
}

/// Whether something that the process has is as it was. A simulation keeps nothing; a library may
/// have made something for good.
pub(super) fn is_unchanged<T: PartialEq + Debug>(
    runtime: &Runtime,
    what: &str,
    before: &T,
    now: &T,
) -> Result<(), Difference> {
    same(what, before, now).map_err(|difference| match difference {
        Difference::State { what, expected, found } if runtime.simulation().is_none() => {
            Difference::Retained { what, expected, found }
        }
        difference => difference,
    })
}
