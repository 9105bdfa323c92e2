//! Keeping the contents in this process's own memory meanwhile.

use super::PausableBuffer;
use crate::Errno;
use crate::vmm::{Access, Address, Allocation, Operation, Reservation, VmmError};

impl PausableBuffer {
    pub(super) fn save(&self, memory: &Allocation) -> Result<Vec<u8>, VmmError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.size).map_err(|_| VmmError::System {
            operation: Operation::CopyToHost,
            call: "malloc",
            errno: Errno::of(rustix::io::Errno::NOMEM),
        })?;
        bytes.resize(self.size, 0);
        self.through_a_window(memory, Access::Read, |window| {
            self.vmm.copy_to_host(self.owner, &mut bytes, window)
        })?;
        Ok(bytes)
    }

    pub(super) fn restore(&self, memory: &Allocation, bytes: &[u8]) -> Result<(), VmmError> {
        self.through_a_window(memory, Access::ReadWrite, |window| {
            self.vmm.copy_from_host(self.owner, window, bytes)
        })
    }

    /// Lets the owner at the memory for a while, at addresses of its own: it may not be allowed to
    /// use the buffer's.
    fn through_a_window(
        &self,
        memory: &Allocation,
        access: Access,
        act: impl FnOnce(Address) -> Result<(), VmmError>,
    ) -> Result<(), VmmError> {
        let reservation = Reservation::of(self.extent).reserve(&self.vmm)?;
        let window = reservation.map(0, memory)?;
        window.grant(&[self.owner], access)?;
        act(window.address())?;
        window.unmap()?;
        Ok(reservation.free()?)
    }
}
