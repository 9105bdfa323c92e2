//! Physical memory that is released when its last owner is dropped.

use crate::error::{Argument, Error, ErrorKind, Operation, Problem, Rejected};
use crate::vmm::ledger::HandleRecord;
use crate::vmm::{Address, AllocationProperties, Handle, HandleType, Vmm};
use derive_more::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Physical memory. The value owns one reference to a handle. Clones share this reference, and are cheap. The memory is
/// released when all clones and all [`Mapping`](super::Mapping)s of it have been dropped. If the runtime fails to
/// release the memory in a drop, the library logs a warning, and the memory stays allocated until the last clone of
/// this [`Vmm`] is dropped.
///
/// ```
/// use hsa_vmm::{Allocation, AllocationProperties, Runtime, Vmm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// let vmm = Vmm::open(&runtime)?;
/// let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let allocation = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu))?;
/// assert_eq!(allocation.size(), 2 << 20);
/// allocation.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[debug("Allocation({:#x} bytes, {:?})", inner.size, inner.handle)]
pub struct Allocation {
    inner: Arc<Inner>,
}

struct Inner {
    vmm: Vmm,
    handle: Handle,
    size: usize,
    properties: AllocationProperties,
    released: bool,
}

impl Allocation {
    /// Creates `size` bytes of physical memory, a multiple of the granule (`hipMemCreate`).
    ///
    /// # Errors
    /// As for [`Vmm::create`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, Error> {
        let handle = vmm.create(size, properties)?;
        Self::of(vmm, handle)
    }

    /// Imports memory that another process exported (`hipMemImportFromShareableHandle`). The caller keeps the
    /// descriptor, and may close it immediately.
    ///
    /// # Errors
    /// As for [`Vmm::import_from_shareable_handle`].
    pub fn import(vmm: &Vmm, descriptor: impl AsFd) -> Result<Self, Error> {
        let handle =
            vmm.import_from_shareable_handle(descriptor, HandleType::POSIX_FILE_DESCRIPTOR)?;
        Self::of(vmm, handle)
    }

    /// Takes a reference to the memory that is mapped at an address (`hipMemRetainAllocationHandle`).
    ///
    /// # Errors
    /// As for [`Vmm::retain_allocation_handle`].
    pub fn at(vmm: &Vmm, address: Address) -> Result<Self, Error> {
        let handle = vmm.retain_allocation_handle(address)?;
        Self::of(vmm, handle)
    }

    /// Takes ownership of one reference of a handle.
    fn of(vmm: &Vmm, handle: Handle) -> Result<Self, Error> {
        let size = vmm.allocation_size(handle)?;
        let properties = vmm.allocation_properties(handle)?;
        let vmm = vmm.clone();
        Ok(Self { inner: Arc::new(Inner { vmm, handle, size, properties, released: false }) })
    }

    /// Names the memory in reports and logs. Mappings without a name have this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        // Fails only in a forked child, or if the caller has released the handle.
        let _ = self.inner.vmm.name_handle(self.inner.handle, name);
        self
    }

    /// Returns the handle, which [`Vmm`]'s calls accept while this value lives.
    ///
    /// Do not pass the handle to [`Vmm::release`]: that drops the reference that this value owns. Calls on this value
    /// then return [`Problem::Released`], unless the memory has another reference, for example from
    /// [`Vmm::retain_allocation_handle`]. In that case the calls succeed, and dropping this value drops the other
    /// reference. The calls never reach other memory, because handle values are not reused.
    pub fn handle(&self) -> Handle {
        self.inner.handle
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Returns the properties with which the memory was created.
    pub fn properties(&self) -> AllocationProperties {
        self.inner.properties
    }

    /// Exports the memory as a file descriptor (`hipMemExportToShareableHandle`). The memory's properties must
    /// contain [`HandleType::POSIX_FILE_DESCRIPTOR`].
    ///
    /// # Errors
    /// As for [`Vmm::export_to_shareable_handle`].
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let handle_type = HandleType::POSIX_FILE_DESCRIPTOR;
        self.inner.vmm.export_to_shareable_handle(self.inner.handle, handle_type)
    }

    /// Releases the memory now (`hipMemRelease`). Fails while clones of this value, or owned
    /// [`Mapping`](super::Mapping)s that were made from this value or a clone, exist. Other references, such as another
    /// value from [`at`](Self::at), and mappings by address ([`Vmm::map`]) keep the memory allocated.
    ///
    /// # Errors
    /// As for [`Vmm::release`]; the error contains the allocation.
    pub fn release(mut self) -> Result<(), Rejected<Self>> {
        let in_use = ErrorKind::invalid(Argument::Handle, self.handle(), Problem::InUse);
        let released = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.release(),
            None => Err(Error::new(Operation::Release, in_use)),
        };
        released.map_err(|error| Rejected { value: self, error })
    }

    pub(crate) fn vmm(&self) -> &Vmm {
        &self.inner.vmm
    }

    /// Records that the memory is the zero page of a buffer. Messages then say that the caller must map the page.
    pub(crate) fn mark_as_zero_page(&self) {
        self.inner.with_record(|record| record.is_zero_page = true);
    }

    /// Returns the number of mappings of the memory, including those that are being created.
    pub(crate) fn mapping_count(&self) -> usize {
        self.inner.with_record(|record| record.mappings as usize).unwrap_or_default()
    }

    /// Returns the value if nothing else uses the memory: the memory was never exported, and no clones, other
    /// references, mappings or operations use it. The memory loses its name, and its handle changes. Otherwise drops the
    /// value; the last user releases the memory.
    pub(crate) fn into_unused(mut self) -> Option<Self> {
        let inner = Arc::get_mut(&mut self.inner)?;
        inner.handle = inner.vmm.shared.ledger.handles.renew(inner.handle)?;
        Some(self)
    }

    /// Returns the handle, if it belongs to this `Vmm`.
    pub(in crate::vmm) fn handle_of(&self, vmm: &Vmm) -> Result<Handle, ErrorKind> {
        let handle = self.inner.handle;
        match self.inner.vmm.is_same(vmm) {
            true => Ok(handle),
            false => Err(ErrorKind::invalid(Argument::Handle, handle, Problem::ForeignHandle)),
        }
    }
}

impl Inner {
    fn with_record<T>(&self, act: impl FnOnce(&mut HandleRecord) -> T) -> Option<T> {
        self.vmm.shared.ledger.handles.with_live(self.handle, act)
    }

    fn release(&mut self) -> Result<(), Error> {
        self.vmm.release(self.handle)?;
        self.released = true;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.released
            && !self.vmm.shared.runtime.has_forked()
            // Tries twice, as a dropped mapping does: the first wait for GPUs may fail.
            && let Err(error) = self.release().or_else(|_| self.release())
        {
            crate::log::event!(WARN, %error, handle = %self.handle, "physical memory was not released");
        }
    }
}
