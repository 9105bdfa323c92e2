//! Keeping the contents in this process's own memory meanwhile.

use super::PausableBuffer;
use crate::Errno;
use crate::vmm::{Access, Allocation, Mapping, Operation, Reservation, VmmError};

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
            let only = [window.serial()];
            self.vmm.only(&only).copy_to_host(self.owner, &mut bytes, window.address())
        })?;
        Ok(bytes)
    }

    pub(super) fn restore(&self, memory: &Allocation, bytes: &[u8]) -> Result<(), VmmError> {
        self.through_a_window(memory, Access::ReadWrite, |window| {
            let only = [window.serial()];
            self.vmm.only(&only).copy_from_host(self.owner, window.address(), bytes)
        })
    }

    /// Lets the owner at the memory for a while, at addresses of its own: it may not be allowed to
    /// use the buffer's.
    fn through_a_window(
        &self,
        memory: &Allocation,
        access: Access,
        act: impl FnOnce(&Mapping) -> Result<(), VmmError>,
    ) -> Result<(), VmmError> {
        let reservation = Reservation::of(self.extent).reserve(&self.vmm)?;
        let window = reservation.map(0, memory)?;
        window.grant(&[self.owner], access)?;
        act(&window)?;
        window.unmap()?;
        Ok(reservation.free()?)
    }
}
