//! Memory pools: the memory of an agent, and its granules.

use crate::native::NativePool;
use derive_more::{Debug, Display};
use hsa_sys::hsa_amd_memory_pool_t;

bitflags::bitflags! {
    /// The kinds of memory of a global pool (`HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PoolFlags: u32 {
        /// For kernel arguments.
        const KERNARG = hsa_sys::HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;
        /// Coherent between agents while they run.
        const FINE_GRAINED = hsa_sys::HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
        /// Coherent for one agent at a time. The memory of [handles](crate::Handle) comes from
        /// coarse-grained pools.
        const COARSE_GRAINED = hsa_sys::HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
        /// Fine-grained; device-scope atomics act as system-scope atomics.
        const EXTENDED_FINE_GRAINED =
            hsa_sys::HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED;
        const _ = !0;
    }
}

impl PoolFlags {
    /// Returns a short name for each flag that is set: `coarse`, `fine`, `extended`, `kernarg`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (Self::COARSE_GRAINED, "coarse"),
            (Self::FINE_GRAINED, "fine"),
            (Self::EXTENDED_FINE_GRAINED, "extended"),
            (Self::KERNARG, "kernarg"),
        ]
        .into_iter()
        .filter_map(move |(flag, name)| self.contains(flag).then_some(name))
    }
}

/// The segment of a pool (`HSA_AMD_MEMORY_POOL_INFO_SEGMENT`).
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Segment {
    /// Memory that all agents can be granted access to.
    #[display("global")]
    Global,
    /// Memory that kernels can only read.
    #[display("read-only")]
    ReadOnly,
    /// A work-item's own memory.
    #[display("private")]
    Private,
    /// A work-group's own memory (LDS).
    #[display("group")]
    Group,
    /// A segment that this version does not know.
    #[display("segment {_0}")]
    Other(u32),
}

/// A memory pool of an agent. Sizes are in bytes.
///
/// ```
/// # use hsa_vmm::{Runtime, simulation::Config};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(Config::mi300x(1))?;
/// let pool = runtime.gpus().next().and_then(|gpu| gpu.vmem_pool()).ok_or("no pool")?;
/// assert!(pool.size.is_multiple_of(pool.granule));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Pool({segment}, {:?}, {size:#x} bytes)", flags.names().collect::<Vec<_>>())]
#[non_exhaustive]
pub struct Pool {
    pub(crate) native: NativePool,
    /// The segment.
    pub segment: Segment,
    /// The kind of memory, for a pool of the global segment.
    pub flags: PoolFlags,
    /// The size of the pool, including the allocated part.
    pub size: usize,
    /// Whether programs can allocate from the pool.
    pub allocatable: bool,
    /// The granule: sizes and addresses are multiples of it.
    pub granule: usize,
    /// The granule that gives the best performance.
    pub recommended_granule: usize,
    /// The alignment of allocations.
    pub alignment: usize,
    /// The size of the largest single allocation.
    pub largest_allocation: usize,
    /// Whether every agent can be granted access to the memory.
    pub accessible_by_all: bool,
    /// Whether the memory is on the GPU, and not system memory (`HSA_AMD_MEMORY_POOL_INFO_LOCATION`).
    pub on_gpu: bool,
}

impl Pool {
    /// Returns the runtime's own handle of this pool, for HSA calls that the caller makes itself
    /// ([`Runtime::table`](crate::Runtime::table)).
    ///
    /// ```
    /// use hsa_vmm::{Runtime, hsa_sys};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// let pool = runtime.gpus().next().and_then(|gpu| gpu.vmem_pool()).ok_or("no pool")?;
    /// let hsa = &runtime.table().core;
    /// let functions = hsa.hsa_amd_memory_pool_allocate.zip(hsa.hsa_amd_memory_pool_free);
    /// let (allocate, free) = functions.ok_or("no pool memory")?;
    /// let mut memory = std::ptr::null_mut();
    /// // SAFETY: the pool is of this runtime, and `memory` is writable.
    /// let status = unsafe { allocate(pool.hsa_pool(), pool.granule, 0, &mut memory) };
    /// assert_eq!(status, hsa_sys::HSA_STATUS_SUCCESS);
    /// // SAFETY: nothing uses the memory.
    /// unsafe { free(memory) };
    /// # Ok(())
    /// # }
    /// ```
    pub fn hsa_pool(&self) -> hsa_amd_memory_pool_t {
        self.native.raw()
    }
    /// Returns whether [handles](crate::Handle) of the pool's memory can be created.
    pub fn supports_handles(&self) -> bool {
        self.segment == Segment::Global
            && self.allocatable
            && self.granule > 0
            && self.on_gpu
            && self.flags.contains(PoolFlags::COARSE_GRAINED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_names() {
        let names = |flags: PoolFlags| flags.names().collect::<Vec<_>>();
        assert_eq!(names(PoolFlags::COARSE_GRAINED), ["coarse"]);
        assert_eq!(names(PoolFlags::FINE_GRAINED | PoolFlags::KERNARG), ["fine", "kernarg"]);
        assert_eq!(names(PoolFlags::EXTENDED_FINE_GRAINED), ["extended"]);
    }

    #[cfg(feature = "simulation")]
    #[test]
    fn handles_come_from_allocatable_coarse_gpu_memory() {
        let config = crate::simulation::Config::mi300x(1);
        let runtime = crate::Runtime::simulated(config).unwrap();
        let pool = runtime.gpus().next().and_then(crate::Agent::vmem_pool).unwrap().clone();
        assert!(pool.supports_handles());
        let others = [
            Pool { segment: Segment::Group, ..pool.clone() },
            Pool { flags: PoolFlags::FINE_GRAINED, ..pool.clone() },
            Pool { allocatable: false, ..pool.clone() },
            // The runtime does not report the granule.
            Pool { granule: 0, ..pool.clone() },
            Pool { on_gpu: false, ..pool },
        ];
        assert!(others.iter().all(|other| !other.supports_handles()));
    }

    #[test]
    fn segments_have_names() {
        for (segment, name) in [
            (Segment::Global, "global"),
            (Segment::ReadOnly, "read-only"),
            (Segment::Private, "private"),
            (Segment::Group, "group"),
            (Segment::Other(7), "segment 7"),
        ] {
            assert_eq!(segment.to_string(), name);
        }
    }
}
