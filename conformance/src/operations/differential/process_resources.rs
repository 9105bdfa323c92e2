//! Resources of this process that the library could leak.

use super::describe::{Describe, list};
use super::difference::expect_equal;
use super::{Difference, address_space};
use crate::descriptors;
use hsa_vmm::Runtime;
use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time after which a free that takes effect late has ended.
const LATE_LIMIT: Duration = Duration::from_millis(200);
/// The interval at which resources are counted again.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

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

    /// Fails if the process's resources have changed. On a loaded runtime, waits for late frees.
    pub(super) fn check_unchanged(&self, runtime: &Runtime) -> Result<(), Difference> {
        let now = settled(runtime, self, Self::now);
        check_unchanged(runtime, "resources of the process", self, &now)
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

/// Returns the value of `now`. If it differs from `before`, calls `now` again until the values are equal, for at most
/// [`LATE_LIMIT`]: a driver may free memory, and the descriptors of this memory, some time after the call has returned.
/// Does not wait on the simulation, which frees at once.
pub(super) fn settled<T: PartialEq>(runtime: &Runtime, before: &T, now: impl Fn() -> T) -> T {
    let limit = if runtime.simulation().is_some() { Duration::ZERO } else { LATE_LIMIT };
    settled_within(limit, before, now)
}

fn settled_within<T: PartialEq>(limit: Duration, before: &T, now: impl Fn() -> T) -> T {
    let began = Instant::now();
    loop {
        let value = now();
        if value == *before || began.elapsed() >= limit {
            return value;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn late_free_is_waited_for() {
        let calls = Cell::new(0);
        let count = || {
            calls.set(calls.get() + 1);
            if calls.get() < 4 { 17 } else { 16 }
        };
        assert_eq!(settled_within(Duration::from_secs(60), &16, count), 16);
        assert_eq!(calls.get(), 4);
        assert_eq!(settled_within(Duration::ZERO, &16, || 17), 17, "a leak stays");
    }
}
