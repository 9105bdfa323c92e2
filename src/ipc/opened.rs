//! Memory of another process that closes itself.

use super::imports::Holder;
use super::{Ipc, IpcError, IpcHandle, Operation, Problem};
use crate::Kept;
use crate::error::Error;
use crate::memory::Span;
use crate::runtime::Runtime;
use crate::vmm::Address;

/// Memory of another process, which is closed when this value is dropped.
///
/// The value owns its open: [`Ipc::close_mem_handle`] refuses to close it.
#[derive(Debug)]
pub struct OpenedMemory {
    ipc: Ipc,
    span: Span,
    /// Where the whole allocation begins.
    base: usize,
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
        let base = ipc.open_as(Holder::Value, handle, 0)?;
        // Opening has checked that the offset is inside.
        let (start, size) = (base + handle.offset as usize, (handle.size - handle.offset) as usize);
        let agent = ipc.runtime().agent(ipc.agents()[0]);
        let agent = agent.ok_or(IpcError::refused(Operation::OpenMemHandle, Problem::NotAGpu))?;
        // SAFETY: the runtime has mapped it for this agent, and it is closed only when the new value is
        // consumed or dropped.
        let span = unsafe { Span::new(ipc.runtime(), agent, start, size) };
        Ok(Self { ipc: ipc.clone(), span, base, closed: false })
    }

    /// Where it begins, for this process and for the agents it was opened for.
    #[must_use]
    pub fn address(&self) -> Address {
        self.span.address()
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.span.size()
    }

    /// The runtime it was opened on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        self.span.runtime()
    }

    /// Copies from the memory, by the first agent it was opened for.
    ///
    /// # Errors
    /// As for [`PoolMemory::read`](crate::PoolMemory::read).
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.span.read(offset, bytes)
    }

    /// Copies to the memory.
    ///
    /// # Errors
    /// As for [`PoolMemory::read`](crate::PoolMemory::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.span.write(offset, bytes)
    }

    /// Fills a part with a 32-bit value. `size` is in bytes.
    ///
    /// # Errors
    /// As for [`PoolMemory::fill`](crate::PoolMemory::fill).
    pub fn fill(&self, offset: usize, value: u32, size: usize) -> Result<(), Error> {
        self.span.fill(offset, value, size)
    }

    /// Closes the memory now, and says whether that worked (`hipIpcCloseMemHandle`).
    ///
    /// # Errors
    /// [`IpcError::Forked`], [`IpcError::Runtime`]; the memory comes back with the error.
    pub fn close(mut self) -> Result<(), Kept<Self, IpcError>> {
        match self.ipc.close_owned(self.base) {
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
            && !self.span.runtime().has_forked()
            && let Err(error) = self.ipc.close_owned(self.base)
        {
            crate::log::warning!(%error, address = %self.address(), "opened memory was not closed");
        }
    }
}
