//! The options of an area (flags, device, host memory), and the kinds of memory that implement areas.

use crate::agent::{Agent, AgentId, AgentKind};
use crate::error::{Argument, ErrorKind, Feature, Problem, Value};
use crate::runtime::Runtime;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use derive_more::{Display, From};

bitflags::bitflags! {
    /// Flags that select the kind of memory of an area, with AML's names and numbers.
    ///
    /// Some of the sixteen combinations of flags select the same memory. [`UNIFIED`](Self::UNIFIED) overrides
    /// [`HOST`](Self::HOST) and [`MAPPED`](Self::MAPPED). Host memory is always mapped on the device, as in HIP on
    /// AMD; therefore `HOST` means `HOST | MAPPED`.
    ///
    /// ```
    /// use hsa_vmm::area::AreaFlags;
    /// assert_eq!((AreaFlags::HOST | AreaFlags::GLOBAL).to_string(), "host, global");
    /// assert!(AreaFlags::MAPPED.maps_existing_memory());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AreaFlags: u32 {
        /// Memory of the host (`AML_AREA_HIP_FLAG_ALLOC_HOST`, `hipHostMalloc`).
        const HOST = 1;
        /// One address for host and device (`AML_AREA_HIP_FLAG_ALLOC_UNIFIED`, `hipMallocManaged`).
        ///
        /// The memory does not migrate. If the device owns the memory, the host sees the stores of a kernel after
        /// the kernel has ended. The host's stores may need a flush to become visible to the device
        /// (`HSA_AMD_AGENT_INFO_HDP_FLUSH`). [`write`](crate::area::AreaMemory::write) needs no flush, because the
        /// device makes the copy.
        const UNIFIED = 1 << 1;
        /// Memory of the host, mapped on the device (`AML_AREA_HIP_FLAG_ALLOC_MAPPED`). With `HOST`, `mmap`
        /// allocates the memory (`hipHostMalloc`). Without `HOST`, the caller passes the memory to `mmap`
        /// (`hipHostRegister`). AMD's runtimes (6.1.2, 6.4.3 and 7.2.4) allow every GPU to access the caller's
        /// memory.
        const MAPPED = 1 << 2;
        /// Accessible to all GPUs instead of one (`AML_AREA_HIP_FLAG_ALLOC_GLOBAL`, `hipMemAttachGlobal`,
        /// `hipHostMallocPortable`). Applies to every kind of memory, whereas AML ignores this flag for memory of
        /// the device.
        const GLOBAL = 1 << 3;
    }
}

impl AreaFlags {
    /// Memory of the device, accessible only to the device (`AML_AREA_HIP_FLAG_DEFAULT`).
    pub const DEFAULT: Self = Self::empty();

    /// Returns whether each `mmap` maps host memory of the caller.
    pub fn maps_existing_memory(self) -> bool {
        self.contains(Self::MAPPED) && !self.intersects(Self::HOST | Self::UNIFIED)
    }

    pub(super) fn check_defined(self) -> Result<(), ErrorKind> {
        if self.undefined() == 0 {
            return Ok(());
        }
        let problem = Problem::UndefinedFlags(Self::all().bits().into());
        Err(ErrorKind::invalid(Argument::Flags, Value::Bytes(self.bits().into()), problem))
    }

    fn undefined(self) -> u32 {
        self.bits() & !Self::all().bits()
    }
}

impl fmt::Display for AreaFlags {
    /// Writes short words, such as `host, mapped`; `default` if no flag is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<_> = self.iter_names().map(|(name, _)| name.to_lowercase()).collect();
        if self.undefined() != 0 {
            words.push(format!("{:#x}", self.undefined()));
        }
        if words.is_empty() {
            words.push("default".to_owned());
        }
        f.write_str(&words.join(", "))
    }
}

/// The GPU of an area, or of one `mmap`.
///
/// ```
/// use hsa_vmm::area::Device;
/// assert_eq!(Device::from(1), Device::Number(1));
/// assert_eq!(Device::default().to_string(), "the current device");
/// ```
#[derive(Clone, Copy, Debug, Default, Display, Eq, Hash, PartialEq, From)]
#[non_exhaustive]
pub enum Device {
    /// The first GPU, because this library has no `hipSetDevice`. AML selects the current device with a negative
    /// number.
    #[default]
    #[display("the current device")]
    Current,
    /// The GPU with this number, counted from 0 in the order of [`Runtime::gpus`].
    #[display("GPU {_0}")]
    Number(usize),
    /// The GPU with this identifier.
    Agent(AgentId),
}

impl Device {
    pub(super) fn find(self, runtime: &Runtime) -> Result<&Agent, ErrorKind> {
        let invalid = |value, problem| ErrorKind::invalid(Argument::Device, value, problem);
        match self {
            Self::Current => runtime.gpus().next().ok_or(ErrorKind::NotSupported(Feature::Gpu)),
            Self::Number(number) => {
                let problem = Problem::OutOfRange(runtime.gpus().count());
                runtime.gpus().nth(number).ok_or(invalid(Value::Number(number as u64), problem))
            }
            Self::Agent(id) => runtime
                .agent(id)
                .filter(|agent| agent.kind() == AgentKind::Gpu)
                .ok_or(invalid(id.into(), Problem::NotAGpu)),
        }
    }
}

/// The implementation of an area's memory.
///
/// ```
/// # use hsa_vmm::area::AreaFlags;
/// # use hsa_vmm::{Area, Runtime, Vmm};
/// use hsa_vmm::area::Backing;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// assert_eq!(Area::new(&vmm, 0, AreaFlags::DEFAULT)?.backing()?, Backing::Virtual);
/// assert_eq!(Area::new(&vmm, 0, AreaFlags::HOST)?.backing()?, Backing::Pool);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Display, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Backing {
    /// Physical memory of the device, mapped at reserved addresses (`hsa_amd_vmem_*`).
    #[display("virtual memory")]
    Virtual,
    /// Memory of a pool (`hsa_amd_memory_pool_allocate`, `hsa_amd_agents_allow_access`). Host memory that an area
    /// allocates is always pool memory, because AMD's runtimes before ROCm 10 have no virtual memory of the host.
    /// An area without a [`Vmm`](crate::Vmm) also uses pool memory for the device.
    #[display("pool memory")]
    Pool,
    /// The caller's memory, locked for agents (`hsa_amd_memory_lock`).
    #[display("locked memory")]
    Locked,
}

/// Options of one [`mmap`](super::Area::mmap): a device instead of the area's device, and the host memory to map
/// (`struct aml_area_hip_mmap_options`).
///
/// ```
/// use hsa_vmm::area::MmapOptions;
/// let mut bytes = [0; 64];
/// let options = MmapOptions::new().with_device(1).with_host_memory(&mut bytes);
/// # drop(options);
/// ```
#[derive(Debug, Default)]
pub struct MmapOptions<'a> {
    pub(super) device: Option<Device>,
    /// The start address and the size in bytes of host memory of the caller. The size is `usize::MAX` if only a pointer
    /// was passed.
    pub(super) host: Option<(usize, usize)>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> MmapOptions<'a> {
    /// Creates options that keep the area's device and pass no host memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses this device instead of the area's device.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<Device>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Maps these bytes, and borrows them until the memory is unmapped. Meanwhile, the caller reads and writes the
    /// bytes through [`AreaMemory`](super::AreaMemory).
    ///
    /// If the `AreaMemory` is forgotten ([`core::mem::forget`]), or if unlocking fails when it is dropped, the borrow
    /// ends, but the bytes stay locked. Agents can then still access them at
    /// [`device_address`](super::AreaMemory::device_address), and no area can map these addresses again
    /// ([`ErrorKind::HostMemoryMapped`](crate::error::ErrorKind::HostMemoryMapped)).
    ///
    /// The borrow lasts until the `AreaMemory` is dropped:
    ///
    /// ```compile_fail,E0505
    /// # use hsa_vmm::{Area, Error, area::MmapOptions};
    /// # fn map(area: &Area) -> Result<(), Error> {
    /// let mut bytes = vec![0; 4096];
    /// let memory = area.mmap(4096, MmapOptions::new().with_host_memory(&mut bytes))?;
    /// drop(bytes);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_host_memory(mut self, bytes: &'a mut [u8]) -> Self {
        self.host = Some((bytes.as_mut_ptr() as usize, bytes.len()));
        self
    }

    /// Maps the host memory at `pointer`, of the size that is passed to `mmap`. This method is for memory that Rust
    /// cannot borrow, such as the memory of a C program.
    ///
    /// # Safety
    /// Until the memory is unmapped, all bytes of the size passed to `mmap` must be allocated for this process,
    /// readable and writable. They must not belong to memory of this library, such as [`PoolMemory`](crate::PoolMemory)
    /// or a mapping: the runtime would lock the memory again, and release it at the wrong time. No reference to these
    /// bytes may be used while [`AreaMemory`](super::AreaMemory) or a device reads or writes them.
    #[must_use]
    pub unsafe fn with_host_pointer(mut self, pointer: NonNull<u8>) -> Self {
        self.host = Some((pointer.as_ptr() as usize, usize::MAX));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AML's `fprintf` reads past the end of its table for some combinations.
    #[test]
    fn every_combination_of_flags_is_displayed() {
        let mut seen = std::collections::HashSet::new();
        for bits in 0..16 {
            let flags = AreaFlags::from_bits_retain(bits);
            let text = flags.to_string();
            let words = text.split(", ").filter(|word| *word != "default").count();
            assert_eq!(words, bits.count_ones() as usize, "{text}");
            assert!(seen.insert(text));
        }
        assert_eq!(AreaFlags::from_bits_retain(0x11).to_string(), "host, 0x10");
        assert_eq!(AreaFlags::from_bits_retain(0x10).to_string(), "0x10");
    }

    #[test]
    fn mapped_alone_maps_existing_memory() {
        for bits in 0..16 {
            let flags = AreaFlags::from_bits_retain(bits);
            let allocates = flags.intersects(AreaFlags::HOST | AreaFlags::UNIFIED);
            let existing = flags.contains(AreaFlags::MAPPED) && !allocates;
            assert_eq!(flags.maps_existing_memory(), existing, "{flags}");
            assert_eq!(AreaFlags::from_bits_retain(bits | 0x30).undefined(), 0x30, "{flags}");
        }
    }

    #[test]
    fn flag_numbers_match_aml() {
        let numbers = [AreaFlags::HOST, AreaFlags::UNIFIED, AreaFlags::MAPPED, AreaFlags::GLOBAL];
        assert_eq!(numbers.map(|flag| flag.bits()), [1, 2, 4, 8]);
    }

    #[test]
    fn debug_of_options_omits_bytes_of_host_memory() {
        let mut bytes = [0xab_u8; 3];
        let address = bytes.as_ptr() as usize;
        let borrowed = "borrowed: PhantomData<&mut [u8]>";
        let expected =
            format!("MmapOptions {{ device: None, host: Some(({address}, 3)), {borrowed} }}");
        let options = MmapOptions::new().with_host_memory(&mut bytes);
        assert_eq!(format!("{options:?}"), expected);
    }
}
