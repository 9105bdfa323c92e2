//! Performs operations: resolves the selectors of objects, and makes the calls on library and model.

use super::calls::{CallResult, ImportedDescriptor};
use super::{Descriptor, Difference, DifferentialTest, Extent, Operation, Region, Span};
use crate::operations::HandleSelector;
use hsa_vmm::Access;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

impl DifferentialTest {
    /// Performs an operation on library and model. Returns whether the operation succeeded.
    pub(super) fn perform(&mut self, operation: &Operation) -> CallResult<bool> {
        match *operation {
            Operation::Reserve { size, alignment, hint, flags } => {
                let (size, hint) = (self.amount(size), self.hint(hint));
                let alignment = Self::alignment(alignment);
                Ok(self.reserve(size, alignment, hint, flags.into())?.is_some())
            }
            Operation::Free { span } => {
                let (address, size) = self.span(span);
                self.free(address, size)
            }
            Operation::Create { size, on, uncached, handle_types, flags } => {
                let properties = Self::creation_properties(self.agent(on), uncached, handle_types);
                let size = self.amount(size);
                Ok(self.create_with(size, &properties, flags.into())?.is_some())
            }
            Operation::Release { handle } => self.release(self.handle(handle)),
            Operation::Map { handle, span, extent, offset, flags } => {
                let offset = self.amount(offset);
                let (address, size) = self.map_range(handle, offset, span, extent);
                let handle = self.handle(handle);
                self.map(address, size, offset, handle, flags.into())
            }
            Operation::Unmap { span } => {
                let (address, size) = self.span(span);
                self.unmap(address, size)
            }
            Operation::SetAccess { span, ref grants } => {
                let (address, size) = self.span(span);
                let access = |bits: u8| Access::from_bits(bits.into()).unwrap_or_default();
                let grants: Vec<_> =
                    grants.iter().map(|&(agent, bits)| (self.agent(agent), access(bits))).collect();
                self.set_access(address, size, &grants)
            }
            Operation::GetAccess { agent, spot } => {
                self.get_access(self.agent(agent), self.spot(spot))
            }
            Operation::Revoke { span, ref agents } => {
                let (address, size) = self.span(span);
                let agents: Vec<_> = agents.iter().map(|&agent| self.agent(agent)).collect();
                self.revoke(address, size, &agents)
            }
            Operation::Retain { spot } => self.retain(self.spot(spot)),
            Operation::Export { handle, handle_type, flags } => {
                let (handle, kind) = (self.handle(handle), Self::handle_type(handle_type));
                self.export(handle, kind, flags.into())
            }
            Operation::Import { descriptor, handle_type } => {
                self.import_any(descriptor, handle_type)
            }
            Operation::Close { exported } => Ok(self.close(exported)),
            Operation::Properties { handle } => self.properties(self.handle(handle)),
            Operation::Write { spot, size, byte } => {
                // Consecutive values, so that bytes at a wrong offset are detected.
                let bytes: Vec<_> = (0..size).map(|offset| byte.wrapping_add(offset)).collect();
                self.write(self.spot(spot), &bytes)
            }
            Operation::Read { spot, size } => self.read(self.spot(spot), size.into()),
            Operation::Fill { span, value } => {
                let (address, size) = self.span(span);
                self.fill(address, value, size)
            }
            Operation::Copy { agent, to, from } => {
                let (destination, capacity) = self.span(to);
                let (source, size) = self.span(from);
                self.copy(self.agent(agent), destination, source, size.min(capacity))
            }
            Operation::Shutdown => self.reopen().map(|()| true),
        }
    }

    /// Returns the address and size of a mapping to create.
    fn map_range(
        &self,
        handle: HandleSelector,
        offset: usize,
        span: Span,
        extent: Extent,
    ) -> (usize, usize) {
        let (mut address, mut size) = self.span(span);
        let handle_size = self.model.properties(self.handle(handle)).map(|(_, size)| size);
        // If the offset is invalid, keep the size of the handle.
        let rest = |size: usize| size.checked_sub(offset).filter(|&rest| rest > 0).unwrap_or(size);
        let handle_size = handle_size.map(rest);
        match (extent, handle_size) {
            (Extent::Whole, Ok(handle_size)) => size = handle_size,
            (Extent::TooMuch, Ok(handle_size)) => size = handle_size + self.granule(),
            _ => return (address, size),
        }
        if let (Region::Gap(index, _), false) = (span.region, span.is_shifted()) {
            address = self.gap(index, size);
        }
        (address, size)
    }

    /// Imports a descriptor: of exported memory, or of something else, such as a socket.
    fn import_any(&mut self, descriptor: Descriptor, handle_type: u8) -> CallResult<bool> {
        let kind = Self::handle_type(handle_type);
        let failed = |error: std::io::Error| Difference::RuleViolation(error.to_string());
        let not_memory: OwnedFd = match descriptor {
            Descriptor::Exported(index) if !self.exported.is_empty() => {
                let index = usize::from(index) % self.exported.len();
                return self.import(ImportedDescriptor::Exported(index), kind);
            }
            // A runtime that does not check descriptors would accept the file as memory.
            Descriptor::File if self.model.machine().import_checks_descriptor => {
                File::open("/proc/self/exe").map_err(failed)?.into()
            }
            Descriptor::Socket => UnixDatagram::unbound().map_err(failed)?.into(),
            _ => File::open("/dev/null").map_err(failed)?.into(),
        };
        self.import(ImportedDescriptor::NotMemory(not_memory.as_fd()), kind)
    }

    /// Closes an exported descriptor. Other references keep the memory allocated.
    fn close(&mut self, exported: u8) -> bool {
        if self.exported.is_empty() {
            return false;
        }
        drop(self.exported.swap_remove(usize::from(exported) % self.exported.len()));
        true
    }
}
