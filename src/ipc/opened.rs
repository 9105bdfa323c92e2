//! Memory of another process that closes itself.

use super::{Ipc, IpcError, IpcHandle};
use crate::Kept;
use crate::memory::{MemoryError, Span};
use crate::runtime::Runtime;
use crate::vmm::Address;

/// Memory of another process, which is closed when this value goes.
#[derive(Debug)]
pub struct OpenedMemory {
    ipc: Ipc,
    span: Span,
    closed: bool,
}

impl OpenedMemory {
    /// Opens a handle (`hipIpcOpenMemHandle`).
    ///
    /// The memory begins where the handle says, and ends where the other process's allocation
    /// ends. It stays valid when the exporter frees it or ends.
    ///
    /// # Errors
    /// As for [`Ipc::open_mem_handle`].
    pub fn open(ipc: &Ipc, handle: &IpcHandle) -> Result<Self, IpcError> {
        let start = ipc.open_mem_handle(handle, 0)?.get();
        // Opening has checked that the offset is inside.
        let size = (handle.size - handle.offset) as usize;
        let span = Span { runtime: ipc.runtime().clone(), start, size, agent: ipc.agents()[0] };
        Ok(Self { ipc: ipc.clone(), span, closed: false })
    }

    /// Where it begins, for this process and for the agents it was opened for.
    #[must_use]
    pub fn address(&self) -> Address {
        self.span.address()
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.span.size
    }

    /// The runtime it was opened on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.span.runtime
    }

    /// Copies from the memory, by the first agent it was opened for.
    ///
    /// # Errors
    /// As for [`PoolMemory::read`](crate::PoolMemory::read).
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.span.read(offset, bytes)
    }

    /// Copies to the memory.
    ///
    /// # Errors
    /// As for [`PoolMemory::read`](crate::PoolMemory::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        self.span.write(offset, bytes)
    }

    /// Fills a part with a 32-bit value. `size` is in bytes.
    ///
    /// # Errors
    /// As for [`PoolMemory::fill`](crate::PoolMemory::fill).
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), MemoryError> {
        self.span.fill(offset, value, size)
    }

    /// Closes the memory now, and says whether that worked (`hipIpcCloseMemHandle`).
    ///
    /// # Errors
    /// As for [`Ipc::close_mem_handle`]; the memory comes back with the error.
    pub fn close(mut self) -> Result<(), Kept<Self, IpcError>> {
        match self.ipc.close_mem_handle(self.address()) {
            Ok(()) => {
                self.closed = true;
                Ok(())
            }
            Err(error) => Err(Kept::new(self, error)),
        }
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        if !self.closed
            && !self.span.runtime.has_forked()
            && let Err(error) = self.ipc.close_mem_handle(self.address())
        {
            tracing::warn!(%error, address = %self.address(), "opened memory was not closed");
        }
    }
}
