//! What one `mmap` may be told besides the size.

use super::Device;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// What one [`mmap`](super::Area::mmap) may be told besides the size: another device than the
/// area's, and for areas that map it the memory of the host (`struct aml_area_hip_mmap_options`).
#[derive(Default)]
pub struct MmapOptions<'a> {
    pub(super) device: Option<Device>,
    pub(super) host: Option<HostMemory<'a>>,
}

/// Memory that is there already.
pub(super) struct HostMemory<'a> {
    pub start: usize,
    /// None if only the caller of `mmap` knows.
    pub size: Option<usize>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> MmapOptions<'a> {
    /// The area's own device, and no memory of the host.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For this device, whatever the area's is.
    #[must_use]
    pub fn on(mut self, device: impl Into<Device>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Maps these bytes. They are borrowed until the memory is unmapped; until then they are read
    /// and written by way of [`AreaMemory`](super::AreaMemory).
    #[must_use]
    pub fn mapping(mut self, bytes: &'a mut [u8]) -> Self {
        let (start, size) = (bytes.as_mut_ptr() as usize, Some(bytes.len()));
        self.host = Some(HostMemory { start, size, borrowed: PhantomData });
        self
    }

    /// Maps memory that begins here, as much as `mmap` is told: for memory that cannot be
    /// borrowed, such as that of a C program.
    ///
    /// # Safety
    /// Until it is unmapped the memory must be this process's own, readable and writable, for as
    /// many bytes as `mmap` is told, and no reference to any of it may be used while
    /// [`AreaMemory`](super::AreaMemory) reads or writes it or a device does.
    #[must_use]
    #[allow(unsafe_code, reason = "a promise of the caller's that the compiler cannot check")]
    pub unsafe fn mapping_pointer(mut self, pointer: NonNull<u8>) -> Self {
        let start = pointer.as_ptr() as usize;
        self.host = Some(HostMemory { start, size: None, borrowed: PhantomData });
        self
    }
}

impl fmt::Debug for MmapOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_ref().map(|host| host.start as *const u8);
        f.debug_struct("MmapOptions").field("device", &self.device).field("host", &host).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_hosts_memory_is_not_shown() {
        let mut bytes = [0xab_u8; 3];
        let expected = format!("MmapOptions {{ device: None, host: Some({:p}) }}", bytes.as_ptr());
        assert_eq!(format!("{:?}", MmapOptions::new().mapping(&mut bytes)), expected);
    }
}
