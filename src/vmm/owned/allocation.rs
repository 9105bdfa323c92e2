//! Physical memory that is released when nobody needs it any more.

use crate::Kept;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::vmm::{
    Address, AllocationProperties, Argument, Handle, HandleType, Operation, Problem, Refusal, Vmm,
    VmmError,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Physical memory. Cheap to clone; its reference is released when the last clone and the last
/// [`Mapping`](super::Mapping) of it are gone.
#[derive(Clone, Debug)]
pub struct Allocation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vmm: Vmm,
    handle: Handle,
    size: usize,
    properties: AllocationProperties,
    released: AtomicBool,
}

impl Allocation {
    /// Makes `size` bytes of physical memory, a multiple of the granule (`hipMemCreate`).
    ///
    /// # Errors
    /// As for [`Vmm::create`].
    pub fn create(
        vmm: &Vmm,
        size: usize,
        properties: &AllocationProperties,
    ) -> Result<Self, VmmError> {
        let handle = vmm.create(size, properties, 0)?;
        Self::of(vmm, handle)
    }

    /// Takes memory that another process exported (`hipMemImportFromShareableHandle`). The
    /// descriptor stays the caller's and may be closed at once.
    ///
    /// # Errors
    /// As for [`Vmm::import_from_shareable_handle`].
    pub fn import(vmm: &Vmm, descriptor: impl AsFd) -> Result<Self, VmmError> {
        let handle =
            vmm.import_from_shareable_handle(descriptor, HandleType::PosixFileDescriptor)?;
        Self::of(vmm, handle)
    }

    /// Takes a reference to what is mapped at an address (`hipMemRetainAllocationHandle`).
    ///
    /// # Errors
    /// As for [`Vmm::retain_allocation_handle`].
    pub fn at(vmm: &Vmm, address: Address) -> Result<Self, VmmError> {
        let handle = vmm.retain_allocation_handle(address)?;
        Self::of(vmm, handle)
    }

    /// Takes over one reference of a handle.
    fn of(vmm: &Vmm, handle: Handle) -> Result<Self, VmmError> {
        let size = vmm.allocation_size(handle)?;
        let properties = vmm.allocation_properties(handle)?;
        let (vmm, released) = (vmm.clone(), AtomicBool::new(false));
        Ok(Self { inner: Arc::new(Inner { vmm, handle, size, properties, released }) })
    }

    /// Names it in reports and logs; mappings without a name are called the same.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        // Only the child of a fork is refused.
        let _ = self.inner.vmm.name_handle(self.inner.handle, name);
        self
    }

    /// The handle, to be used with [`Vmm`]'s calls while this value lives.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.inner.handle
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// What it was made with.
    #[must_use]
    pub fn properties(&self) -> AllocationProperties {
        self.inner.properties
    }

    /// Makes a file descriptor of it (`hipMemExportToShareableHandle`). The properties must have
    /// asked for [`HandleType::PosixFileDescriptor`].
    ///
    /// # Errors
    /// As for [`Vmm::export_to_shareable_handle`].
    pub fn export(&self) -> Result<OwnedFd, VmmError> {
        let handle_type = HandleType::PosixFileDescriptor;
        self.inner.vmm.export_to_shareable_handle(self.inner.handle, handle_type, 0)
    }

    /// Releases it now, and says whether that worked (`hipMemRelease`). It fails while clones or
    /// mappings of it are there.
    ///
    /// # Errors
    /// As for [`Vmm::release`]; the allocation comes back with the error.
    pub fn release(self) -> Result<(), Kept<Self, VmmError>> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => {
                inner.release().map_err(|error| Kept::new(Self { inner: Arc::new(inner) }, error))
            }
            Err(inner) => {
                let refusal = Refusal::new(Argument::Handle, Problem::InUse);
                Err(Kept::new(Self { inner }, refusal.during(Operation::Release)))
            }
        }
    }

    /// The handle, if it is one of this `Vmm`.
    pub(super) fn handle_of(&self, operation: Operation, vmm: &Vmm) -> Result<Handle, VmmError> {
        if Arc::ptr_eq(&self.inner.vmm.shared, &vmm.shared) {
            return Ok(self.inner.handle);
        }
        Err(Refusal::new(Argument::Handle, Problem::ForeignHandle).during(operation))
    }
}

impl Inner {
    fn release(&self) -> Result<(), VmmError> {
        self.vmm.release(self.handle)?;
        self.released.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.released.load(Ordering::Relaxed)
            && !self.vmm.shared.runtime.has_forked()
            && let Err(error) = self.release()
        {
            crate::log::warning!(%error, handle = %self.handle, "physical memory was not released");
        }
    }
}
