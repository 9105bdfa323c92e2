//! Counts this process's resources, as the kernel, the GPUs' driver, the runtime and the library report them.

use hsa_vmm::{Runtime, Vmm};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time within which the counts must shrink after the release: a runtime frees some resources in the background.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// The maximum increase of mappings that is not a leak: a runtime and the C library keep mappings for heaps and thread
/// stacks.
const MAX_KEPT_MAPPINGS: i64 = 64;

/// Resource counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceCounts(BTreeMap<String, Count>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    value: i64,
    /// The maximum increase that is not a leak.
    slack: i64,
}

/// A resource whose count has grown.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The resource and the source of the count: `descriptors (/proc/self/fd)`.
    pub what: String,
    pub before: i64,
    pub after: i64,
}

impl ResourceCounts {
    /// Counts the resources of this process.
    pub fn now(runtime: &Runtime, vmm: &Vmm) -> Self {
        let mut counts = Self::default();
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        counts.add("descriptors (/proc/self/fd)", open as i64, 0);
        counts.add_mappings(&fs::read_to_string("/proc/self/maps").unwrap_or_default());
        for (name, bytes) in driver_memory() {
            counts.add(&name, bytes, 0);
        }
        counts.add_runtime(runtime);
        let usage = vmm.usage();
        counts.add("reservations (library)", usage.reservations as i64, 0);
        counts.add("handles (library)", usage.handles as i64, 0);
        counts.add("mappings (library)", usage.mappings as i64, 0);
        counts.add("quarantined ranges (library)", vmm.quarantined_ranges().len() as i64, 0);
        counts
    }

    fn add(&mut self, name: &str, value: i64, slack: i64) {
        self.0.insert(name.to_owned(), Count { value, slack });
    }

    fn add_mappings(&mut self, maps: &str) {
        // Mappings of devices and of anonymous files: the driver's memory and dma-bufs.
        let is_device = |line: &&str| {
            ["/dev/dri/", "/dev/kfd", "dmabuf", "/memfd:"].iter().any(|word| line.contains(word))
        };
        self.add("mappings (/proc/self/maps)", maps.lines().count() as i64, MAX_KEPT_MAPPINGS);
        let devices = maps.lines().filter(is_device).count();
        self.add("mappings of devices (/proc/self/maps)", devices as i64, 0);
    }

    fn add_runtime(&mut self, runtime: &Runtime) {
        let simulation = runtime.simulation();
        if let Some(usage) = simulation.map(|simulation| simulation.usage()) {
            self.add("reservations (simulation)", usage.reservations as i64, 0);
            self.add("handles (simulation)", usage.handles as i64, 0);
            self.add("mappings (simulation)", usage.mappings as i64, 0);
        }
        for (number, gpu) in runtime.gpus().enumerate() {
            // With a driver, this value includes other processes. `driver_memory` returns the count of this process.
            let free = runtime.available_memory(gpu.id()).filter(|_| simulation.is_some());
            let size = gpu.vmem_pool().map(|pool| pool.size);
            if let (Some(free), Some(size)) = (free, size) {
                let used = size.saturating_sub(free) as i64;
                self.add(&format!("memory of GPU {number} (runtime)"), used, 0);
            }
        }
    }

    /// Returns the counts that have grown, and do not shrink again within [`SETTLE_LIMIT`].
    pub fn leaks(&self, now: impl Fn() -> Self) -> Vec<Leak> {
        let began = Instant::now();
        loop {
            let leaks = self.grown(&now());
            if leaks.is_empty() || began.elapsed() > SETTLE_LIMIT {
                return leaks;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the counts that have grown by more than their slack.
    fn grown(&self, now: &Self) -> Vec<Leak> {
        let grown = now.0.iter().filter_map(|(what, count)| {
            let before = self.0.get(what).map_or(0, |before| before.value);
            let leak = Leak { what: what.clone(), before, after: count.value };
            (count.value > before + count.slack).then_some(leak)
        });
        grown.collect()
    }
}

/// Returns the driver's count of this process's memory on each GPU, in bytes.
fn driver_memory() -> Vec<(String, i64)> {
    let folder = format!("/sys/class/kfd/kfd/proc/{}", std::process::id());
    let mut memory = Vec::new();
    for id in gpu_ids() {
        let file = format!("{folder}/vram_{id}");
        if let Some(bytes) = read_number(Path::new(&file)) {
            memory.push((format!("memory of GPU {id} (driver, vram_{id})"), bytes));
        }
    }
    memory
}

/// Returns the driver's identifiers of its GPUs.
fn gpu_ids() -> Vec<i64> {
    let nodes = fs::read_dir("/sys/devices/virtual/kfd/kfd/topology/nodes");
    let ids = nodes.into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| read_number(&entry.path().join("gpu_id")));
    ids.filter(|id| *id != 0).collect()
}

/// Returns the number of bytes that all processes use on all GPUs. Returns `None` if the driver does not report it.
pub fn memory_in_use() -> Option<i64> {
    let cards = fs::read_dir("/sys/class/drm").ok()?.flatten();
    let used = cards.filter(|card| {
        let name = card.file_name().to_string_lossy().into_owned();
        name.starts_with("card") && !name.contains('-')
    });
    let used: Vec<_> = used
        .filter_map(|card| read_number(&card.path().join("device/mem_info_vram_used")))
        .collect();
    (!used.is_empty()).then(|| used.iter().sum())
}

/// Reads a number from a file. Returns `None` if the file does not contain one.
fn read_number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(name: &str, value: i64, slack: i64) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        counts.add(name, value, slack);
        counts
    }

    #[test]
    fn growth_beyond_slack_is_a_leak() {
        let before = counts("x", 5, 0);
        assert!(before.grown(&counts("x", 5, 0)).is_empty());
        assert!(before.grown(&counts("x", 4, 0)).is_empty());
        assert!(before.grown(&counts("x", 69, 64)).is_empty());
        let leaks = before.grown(&counts("x", 6, 0));
        assert_eq!(leaks, [Leak { what: "x".into(), before: 5, after: 6 }]);
        assert_eq!(before.grown(&counts("y", 1, 0))[0].before, 0);
    }

    #[test]
    fn counts_that_shrink_in_time_are_not_leaks() {
        let after = std::cell::Cell::new(9);
        let now = || {
            after.set(after.get() - 1);
            counts("x", after.get(), 0)
        };
        assert!(counts("x", 5, 0).leaks(now).is_empty());
    }
}
