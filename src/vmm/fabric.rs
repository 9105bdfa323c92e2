//! Fabric handles: physical memory as 64 bytes, for other machines of a fabric.

use super::ledger::HandleRecord;
use super::properties::{AllocationProperties, Location};
use super::{Handle, HandleType, Shared, Vmm};
use crate::error::{Argument, Error, ErrorKind, Feature, Operation, Problem};
use crate::native::{Native, NativeHandle, Status};
use core::fmt;

/// A fabric handle: 64 bytes that identify physical memory on all machines of a fabric
/// (`hipMemFabricHandle_t`).
///
/// The first 16 bytes are the runtime's handle (`hsa_fabric_handle_t`). This library stores the size of the
/// memory in the other bytes, because the runtime does not return the size of an import. A handle that HIP exported
/// has no size: add it with [`with_size`](Self::with_size).
///
/// The handle does not keep the memory alive. The memory lives until the exporting process releases it.
///
/// ```
/// use hsa_vmm::vmm::FabricHandle;
///
/// let handle = FabricHandle::from_bytes([7; FabricHandle::SIZE]);
/// assert_eq!(handle.size(), None);
/// assert_eq!(handle.with_size(2 << 20).size(), Some(2 << 20));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FabricHandle([u8; FabricHandle::SIZE]);

/// The size of the runtime's handle in bytes.
const NATIVE_SIZE: usize = 16;

/// The bytes that precede the size, in a handle with a size.
const MARK: [u8; 8] = *b"hsa-vmm\x01";

impl FabricHandle {
    /// The size of a fabric handle in bytes.
    pub const SIZE: usize = 64;

    /// Returns the handle with these bytes, which another process has exported. Does not check the bytes: the functions
    /// that take the handle check them.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, to be sent to another process.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        self.0
    }

    /// Returns the size of the memory in bytes, if the handle contains it.
    pub fn size(&self) -> Option<usize> {
        let (mark, rest) = self.0[NATIVE_SIZE..].split_first_chunk()?;
        let size = u64::from_le_bytes(*rest.first_chunk()?);
        (*mark == MARK).then_some(size)?.try_into().ok()
    }

    /// Returns the handle with the size of the memory in bytes.
    #[must_use]
    pub fn with_size(mut self, size: usize) -> Self {
        let size = (size as u64).to_le_bytes();
        let rest = MARK.into_iter().chain(size).chain(core::iter::repeat(0));
        self.0[NATIVE_SIZE..].iter_mut().zip(rest).for_each(|(byte, new)| *byte = new);
        self
    }

    fn new(native: [u8; NATIVE_SIZE], size: usize) -> Self {
        let mut bytes = [0; Self::SIZE];
        bytes[..NATIVE_SIZE].copy_from_slice(&native);
        Self(bytes).with_size(size)
    }

    fn native(&self) -> [u8; NATIVE_SIZE] {
        core::array::from_fn(|index| self.0[index])
    }
}

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let native = u128::from_be_bytes(self.native());
        write!(f, "FabricHandle({native:032x}, {:?} bytes)", self.size())
    }
}

impl Vmm {
    /// Exports physical memory as a fabric handle, for other processes and machines
    /// (`hipMemExportToShareableHandle` with `hipMemHandleTypeFabric`, `hsa_amd_vmem_export_fabric_handle`).
    ///
    /// Keep the memory alive until every importer has released it: the fabric handle does not keep the memory alive.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an invalid handle, or if [`HandleType::FABRIC`] was not requested when the
    /// memory was created. Without a fabric, [`create`](Vmm::create) with this type fails with
    /// [`ErrorKind::NotSupported`].
    ///
    /// # Examples
    /// ```
    /// use hsa_vmm::simulation::{Config, Generation};
    /// use hsa_vmm::{AllocationProperties, HandleType, Runtime, Vmm};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // ROCm generation D is ROCm 10, which has fabric handles.
    /// let runtime = Runtime::simulated(Config::mi300x(1).with_generation(Generation::D))?;
    /// let vmm = Vmm::open(&runtime)?;
    /// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
    /// let properties = AllocationProperties::on(gpu).shareable_as(HandleType::FABRIC);
    /// let handle = vmm.create(2 << 20, &properties)?;
    /// let exported = vmm.export_to_fabric_handle(handle)?;
    ///
    /// // Usually, in another process.
    /// let imported = vmm.import_from_fabric_handle(&exported)?;
    /// assert_eq!(vmm.allocation_size(imported)?, 2 << 20);
    /// # vmm.release(imported)?;
    /// # vmm.release(handle)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn export_to_fabric_handle(&self, handle: Handle) -> Result<FabricHandle, Error> {
        self.run(Operation::ExportToShareableHandle, |shared| {
            let read = |record: &HandleRecord| (record.native, record.size);
            shared.while_exporting(handle, HandleType::FABRIC, read, |(native, size)| {
                // SAFETY: the handle is alive during the call.
                let export = |runtime: &Native| unsafe { runtime.export_fabric(native) };
                let exported = shared.call_exclusive(export);
                let fabric = exported.map_err(|failure| ErrorKind::of_call(failure, size))?;
                Ok(FabricHandle::new(fabric, size))
            })
        })
    }

    /// Imports memory that another process exported as a fabric handle (`hipMemImportFromShareableHandle` with
    /// `hipMemHandleTypeFabric`, `hsa_amd_vmem_import_fabric_handle`).
    ///
    /// The location of the memory is [`Location::Unknown`], because the memory can be on another machine. The runtime
    /// may accept an invalid handle. In that case, [`set_access`](Vmm::set_access) fails.
    ///
    /// No call of the runtime returns the memory's size, so the size in the handle is not verified. Import handles only
    /// from processes that you trust. If the size is too large, a GPU's access beyond the memory faults, and the fault
    /// ends the process.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a handle without a valid size, or a handle that the runtime rejects;
    /// [`ErrorKind::NotSupported`] if the runtime, the driver or the GPUs support no fabric, or if the `Vmm` controls
    /// the page table of a GPU ([`VmmOptions::with_page_tables`](crate::vmm::VmmOptions::with_page_tables)).
    pub fn import_from_fabric_handle(&self, fabric: &FabricHandle) -> Result<Handle, Error> {
        self.run(Operation::ImportFromShareableHandle, |shared| shared.import_fabric(fabric))
    }
}

impl Shared {
    /// Fails unless the runtime and its GPUs support fabric handles.
    pub(super) fn check_fabric(&self) -> Result<(), ErrorKind> {
        if let Some(function) = self.native().missing_fabric_function() {
            return Err(Feature::Function(function).into());
        }
        match self.runtime.info().fabric {
            true => Ok(()),
            false => Err(Feature::Fabric.into()),
        }
    }

    fn import_fabric(&self, fabric: &FabricHandle) -> Result<Handle, ErrorKind> {
        self.check_fabric()?;
        if !self.page_tables.controlled.is_empty() {
            return Err(Feature::FabricImportWithPageTables.into());
        }
        let size = fabric.size();
        let size = size.ok_or(ErrorKind::without_value(Argument::FabricHandle, Problem::NoSize))?;
        Argument::Size.check_not_zero(size)?;
        Argument::Size.check_multiple(size, self.granule)?;
        let imported = self.call_exclusive(|runtime| runtime.import_fabric(fabric.native()));
        let native: NativeHandle = imported.map_err(|failure| match failure.status {
            Status::INVALID_ARGUMENT
            | Status::INVALID_ALLOCATION
            | Status::INCOMPATIBLE_ARGUMENTS => {
                ErrorKind::without_value(Argument::FabricHandle, Problem::UnknownFabricMemory)
            }
            _ => ErrorKind::of_call(failure, size),
        })?;
        let properties =
            AllocationProperties::at(Location::Unknown).shareable_as(HandleType::FABRIC);
        let created = HandleRecord::new(size, self.granule, properties, native);
        Ok(self.ledger.handles.insert(HandleRecord { imported: true, ..created }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_contain_runtime_handle_and_size() {
        assert_eq!(size_of::<FabricHandle>(), 64);
        let handle = FabricHandle::new([9; 16], 0x20_0000);
        let bytes = handle.to_bytes();
        assert_eq!(bytes[..16], [9; 16]);
        assert_eq!(bytes[16..32], *b"hsa-vmm\x01\0\0\x20\0\0\0\0\0");
        assert_eq!(bytes[32..], [0; 32]);
        assert_eq!(FabricHandle::from_bytes(bytes), handle);
        assert_eq!(handle.native(), [9; 16]);
    }

    #[test]
    fn size_is_absent_in_foreign_handles() {
        for byte in [0, 1, 255] {
            assert_eq!(FabricHandle::from_bytes([byte; 64]).size(), None);
        }
        let debug = format!("{:?}", FabricHandle::from_bytes([0xab; 64]).with_size(4096));
        assert_eq!(debug, format!("FabricHandle({}, Some(4096) bytes)", "ab".repeat(16)));
    }
}
