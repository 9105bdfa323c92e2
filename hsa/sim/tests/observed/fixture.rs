//! The simulation, configured as each of three versions of AMD's runtime.

use crate::setup::*;

pub const SIZE: usize = 4 * MIB;
/// A handle that no runtime returns.
pub const GARBAGE: u64 = 0xdead_beef_0000;

/// The configurations for 6.1.2, 6.4.3 and 7.2.4.
pub const VERSIONS: [&str; 3] = ["era=a,extension=4", "era=a,extension=7", "era=b,extension=15"];

/// A simulation of one version.
pub struct Version {
    pub setup: Setup,
    /// The index in [`VERSIONS`].
    pub index: usize,
}

/// The expected result: the same for all versions, or one for each.
pub trait Expected<T> {
    fn of(self, version: usize) -> T;
}
impl Expected<hsa_status_t> for hsa_status_t {
    fn of(self, _: usize) -> hsa_status_t {
        self
    }
}
impl<T: Copy> Expected<T> for [T; 3] {
    fn of(self, version: usize) -> T {
        self[version]
    }
}

impl Version {
    #[track_caller]
    pub fn check(&self, call: &str, got: hsa_status_t, expected: impl Expected<hsa_status_t>) {
        let expected = expected.of(self.index);
        assert_eq!(
            got, expected,
            "{call} ({}): {got:#x} instead of {expected:#x}",
            VERSIONS[self.index]
        );
    }

    /// Returns requests of read and write access for all agents.
    pub fn all(&self) -> [(hsa_agent_t, u32); 3] {
        [(self.setup.gpus[0], RW), (self.setup.gpus[1], RW), (self.setup.cpus[0], RW)]
    }

    pub fn gpu(&self, gpu: usize, permission: u32) -> [(hsa_agent_t, u32); 1] {
        [(self.setup.gpus[gpu], permission)]
    }

    pub fn cpu(&self, permission: u32) -> [(hsa_agent_t, u32); 1] {
        [(self.setup.cpus[0], permission)]
    }
}

/// Runs the calls on each version, in a separate process for each.
#[track_caller]
pub fn run_on_versions(calls: impl Fn(&Version)) {
    for (index, version) in VERSIONS.iter().enumerate() {
        let work = || {
            let setup = start(&format!("mi300x,gpus=2,vram=64g,{version}"));
            calls(&Version { setup, index });
        };
        assert_eq!(in_child(work), Ended::Exit(0), "{version}: see standard error");
    }
}

pub fn status<T>(result: Result<T, hsa_status_t>) -> hsa_status_t {
    result.map_or_else(|status| status, |_| OK)
}

/// Returns the permissions and the size in KiB of each line of `/proc/self/maps` in a range.
pub fn maps(start: usize, size: usize) -> Vec<(String, usize)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let from = usize::from_str_radix(from, 16).ok()?.max(start);
        let to = usize::from_str_radix(to, 16).ok()?.min(start + size);
        (from < to).then(|| (permissions.to_owned(), (to - from) / KIB))
    };
    text.lines().filter_map(line).collect()
}

/// Returns how many KiB of a range are mapped.
pub fn mapped_kib(start: usize, size: usize) -> usize {
    maps(start, size).iter().map(|(_, kib)| kib).sum()
}
