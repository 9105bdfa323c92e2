//! The handle of 64 bytes that one process sends to another.

use super::table::while_exported;
use super::{own_namespace, unavailable};
use crate::error::UnavailableReason;
use crate::native::NativeIpc;
use crate::trust::{Process, Trust};
use bytemuck::{Pod, Zeroable};
use derive_more::Debug;
use rustix::process::Pid;

/// Identifies pool memory of another process. Has the layout of HIP's `hipIpcMemHandle_t`.
///
/// | bytes | HIP | content |
/// |---|---|---|
/// | 0–31 | `ipc_handle` | the runtime's own handle (`hsa_amd_ipc_memory_t`) |
/// | 32–39 | `psize` | the size of the whole allocation |
/// | 40–47 | `poffset` | the address for which the handle was created, as an offset from the start of the allocation |
/// | 48–51 | `owners_process_id` | the process that exported the memory |
/// | 52–55 | `owners_device_id` | the GPU that owns the memory, as an index of the exporter's [devices](crate::Ipc::with_devices); read only by HIP, from ROCm 7 on |
/// | 56–63 | `reserved` | HIP writes nothing here; this library writes the [registration](Self::is_registered): |
/// | 56–57 | | the slot in the exporter's table of exports |
/// | 58–59 | | the low bits of the inode number of the exporter's PID namespace |
/// | 60–61 | | a check value: the low bits of the CRC-32 (as in zlib) of the whole handle with zeros here, XOR the low bits of the export's generation, which the table contains |
/// | 62–63 | | the format, 0x9db5 |
///
/// All numbers are little-endian, like the machines that AMD's runtime supports. In a handle from HIP, the reserved
/// bytes contain what the caller's variable contained before. The format is a number that such bytes hardly ever
/// contain.
///
/// The check value detects a handle that was modified by accident, and a handle of an earlier export in the same slot.
/// The check value does not prevent forgery by a process that can read the exporter's table. Therefore the importer
/// accepts a handle only if it [trusts](crate::Ipc::with_trust) the exporter's user and if its runtime confirms the
/// memory. For a handle that is not registered, the exporter is not verified.
///
/// The program can send the bytes by any means. [`Ipc::open_mem_handle`](crate::Ipc::open_mem_handle) checks them.
///
/// ```
/// use hsa_vmm::ipc::IpcHandle;
///
/// let handle = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
/// assert_eq!((handle.allocation_size, handle.is_registered()), (0, false));
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Pod, Zeroable)]
#[debug("IpcHandle(process {process}, {allocation_size:#x} bytes, offset {offset:#x}, slot {})", u16::from_le_bytes(registration.slot))]
#[repr(C)]
#[non_exhaustive]
pub struct IpcHandle {
    pub(super) native: NativeIpc,
    /// The size of the whole allocation in bytes.
    pub allocation_size: u64,
    /// The address for which the handle was created, as an offset from the start of the allocation.
    pub offset: u64,
    /// The number of the process that exported the memory.
    pub process: i32,
    /// The GPU that owns the memory, as an index of the exporter's [devices](crate::Ipc::with_devices). HIP writes its
    /// own number of the GPU from ROCm 7 on, and nothing before.
    pub device: i32,
    pub(super) registration: Registration,
}

/// Identifies an export in its exporter's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Registration {
    pub slot: [u8; 2],
    /// The low bits of the inode number of the exporter's PID namespace. Namespaces with equal low bits are taken for
    /// one namespace.
    pub namespace: [u8; 2],
    pub check: [u8; 2],
    pub format: [u8; 2],
}

/// The format of the registration. HIP's handles contain any bytes there. Small numbers, addresses and text differ from
/// the format in more than one bit.
pub(super) const FORMAT: [u8; 2] = 0x9db5_u16.to_le_bytes();

impl IpcHandle {
    /// The size in bytes.
    pub const SIZE: usize = 64;

    /// Sets the check value of this handle for an export of this generation.
    pub(super) fn with_check(mut self, generation: u64) -> Self {
        self.registration.check = [0; 2];
        let check = crc32fast::hash(&self.to_bytes()) as u16 ^ generation as u16;
        self.registration.check = check.to_le_bytes();
        self
    }

    /// Returns whether the check value is that of an export of this generation.
    pub(super) fn matches_generation(&self, generation: u64) -> bool {
        *self == self.with_check(generation)
    }

    /// Returns the bytes, in HIP's layout.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        bytemuck::cast(*self)
    }

    /// Creates a handle from any bytes.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        bytemuck::cast(*bytes)
    }

    /// Returns whether the handle contains a registration, which identifies its entry in the exporter's table. Every
    /// handle of this library has a registration, also if one bit of the handle was changed.
    ///
    /// A registered handle is rejected after its memory was freed, even if the address is in use again. For HIP's own
    /// handles, the library cannot detect that the memory was freed.
    pub fn is_registered(&self) -> bool {
        let differing = u16::from_le_bytes(self.registration.format) ^ u16::from_le_bytes(FORMAT);
        differing.count_ones() <= 1
    }

    /// Returns whether the exporter's table does not contain this handle: the memory was freed, the exporter has ended,
    /// or the handle was modified.
    ///
    /// Waits up to 15 seconds while another process changes the entry. Returns `false` if the exporter belongs to another
    /// user or this process may not read its table, or if the handle is from another PID namespace. Also returns `false`
    /// for HIP's own handles, which have no table.
    ///
    /// ```
    /// # use hsa_vmm::{Ipc, PoolMemory, Runtime};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    /// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// let memory = PoolMemory::allocate(&runtime, gpu, 4096)?;
    /// let handle = Ipc::on(&runtime, gpu)?.get_mem_handle(memory.address())?;
    /// assert!(!handle.is_freed());
    /// memory.free()?;
    /// assert!(handle.is_freed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_freed(&self) -> bool {
        let freed = unavailable(self.process, UnavailableReason::Freed);
        // In another namespace, another process can have the exporter's number.
        let is_same_namespace = own_namespace(self.process) == Ok(self.registration.namespace);
        // Another user's process could put files in the place of its table whose opening or closing blocks.
        let is_trusted = || match Pid::from_raw(self.process.max(0)).map(Process::find) {
            Some(Ok(Some(exporter))) => Trust::SameUser.check_all(exporter.users).is_ok(),
            Some(Err(_)) => false,
            // The process has ended.
            Some(Ok(None)) | None => true,
        };
        let is_freed = || while_exported(self, |_| Ok(())) == Err(freed);
        self.is_registered() && is_same_namespace && is_trusted() && is_freed()
    }

    /// Returns whether the offset is less than the size, and the size is at most [`isize::MAX`]. Bytes that are not a
    /// handle usually fail this check.
    pub fn is_plausible(&self) -> bool {
        self.offset < self.allocation_size && isize::try_from(self.allocation_size).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: u64 = 0x0123_4567_89ab_cdef;

    fn example() -> IpcHandle {
        let registration = Registration {
            slot: [0x34, 0x12],
            namespace: [0x78, 9],
            check: [0; 2],
            format: FORMAT,
        };
        IpcHandle {
            native: core::array::from_fn(|index| 0x0101_0101 * index as u32),
            allocation_size: 0x1122_3344,
            offset: 0x55,
            process: 0x66,
            device: 7,
            registration,
        }
        .with_check(GENERATION)
    }

    #[test]
    fn layout_matches_hip() {
        let handle = example();
        let bytes = handle.to_bytes();
        assert_eq!(&bytes[28..36], &[7, 7, 7, 7, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!((bytes[40], bytes[48], bytes[52..56].to_vec()), (0x55, 0x66, vec![7, 0, 0, 0]));
        assert_eq!((&bytes[56..60], &bytes[62..]), (&[0x34, 0x12, 0x78, 9][..], &FORMAT[..]));
        assert!(
            handle.matches_generation(GENERATION) && !handle.matches_generation(GENERATION + 1)
        );
        assert_eq!(IpcHandle::from_bytes(&bytes), handle);
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let handle = example();
        for bit in 0..8 * IpcHandle::SIZE {
            let mut bytes = handle.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = IpcHandle::from_bytes(&bytes);
            assert!(
                changed.is_registered() && !changed.matches_generation(GENERATION),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn debug_omits_the_runtimes_part() {
        let handle = IpcHandle { process: 77, allocation_size: 4096, offset: 16, ..example() };
        let text = format!("{handle:?}");
        assert_eq!(text, "IpcHandle(process 77, 0x1000 bytes, offset 0x10, slot 4660)");
    }

    #[test]
    fn impossible_sizes_and_offsets_are_not_plausible() {
        let handle = |allocation_size, offset| IpcHandle { allocation_size, offset, ..example() };
        assert!(handle(4096, 4095).is_plausible() && handle(1 << 62, 0).is_plausible());
        for (size, offset) in [(4096, 4096), (0, 0), (1 << 63, 0), (u64::MAX, 1)] {
            assert!(!handle(size, offset).is_plausible(), "{size} {offset}");
        }
        assert!(!IpcHandle::from_bytes(&[0x5a; 64]).is_plausible());
    }

    #[test]
    fn to_bytes_inverts_from_bytes() {
        let bytes: [u8; 64] = core::array::from_fn(|index| (index * 37 + 11) as u8);
        assert_eq!(IpcHandle::from_bytes(&bytes).to_bytes(), bytes);
    }

    /// HIP does not write the reserved bytes. They contain what the caller's variable contained before.
    #[test]
    fn reserved_bytes_of_hip_are_not_a_registration() {
        let words = [0, 1, u64::MAX, 0x7fff_1234_5678_9abc, 0x5555_5555_0000, 1.5f64.to_bits()];
        let texts = [*b"12345678", *b"........", [0xcc; 8], [0xcd; 8], [0xaa; 8], [0xbe; 8]];
        for reserved in words.map(u64::to_le_bytes).into_iter().chain(texts) {
            let mut bytes = example().to_bytes();
            bytes[56..].copy_from_slice(&reserved);
            let handle = IpcHandle::from_bytes(&bytes);
            assert!(!handle.is_registered() && !handle.is_freed(), "{reserved:x?}");
        }
    }

    #[test]
    fn handle_of_another_namespace_is_not_freed() {
        let process = std::process::id() as i32;
        let own = own_namespace(process).unwrap();
        let with = |namespace: [u8; 2]| {
            let registration = Registration { namespace, ..example().registration };
            IpcHandle { process, registration, ..example() }.with_check(GENERATION)
        };
        assert!(with(own).is_freed());
        assert!(!with([own[0] ^ 1, own[1]]).is_freed());
        assert!(!with([own[0], own[1] ^ 1]).is_freed());
    }
}
