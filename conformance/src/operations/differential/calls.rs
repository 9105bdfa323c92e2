//! Makes each call on the library, then on the model, and compares the results.

use super::agreement::{expect_agreement, expect_bytes};
use super::describe::{Describe, list};
use super::{Difference, DifferentialTest, address_space, expect_equal};
use crate::hip_calls::HipCalls as _;
use hsa_vmm::vmm::AllocationKind;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Handle, HandleType,
};
use rustix::io::{FdFlags, fcntl_getfd};
use std::os::fd::BorrowedFd;

/// The result of a call on which library and model agree. The value is `None` or `false` if library and model rejected
/// the call, or if a planned fault made the call fail.
pub(super) type CallResult<T> = Result<T, Difference>;

pub(super) enum ImportedDescriptor<'a> {
    /// The exported descriptor with this index.
    Exported(usize),
    /// A descriptor that is not memory.
    NotMemory(BorrowedFd<'a>),
}

impl DifferentialTest {
    pub(super) fn reserve(
        &mut self,
        size: usize,
        alignment: usize,
        hint: Option<usize>,
        flags: u64,
    ) -> CallResult<Option<usize>> {
        let expected_base = hint.filter(|&hint| self.is_available(hint, size, alignment));
        let hint = hint.map(Address::new);
        let faults_seen = self.faults_seen.clone();
        let returned = self.vmm.reserve_with_flags(size, alignment, hint, flags);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(None) };
        let expected = self.model.check_reserve(size, alignment, flags);
        let Some(((), address)) = expect_agreement(
            format_args!(
                "address_reserve({size:#x}, {alignment:#x}, {}, {flags})",
                hint.describe()
            ),
            expected,
            returned,
        )?
        else {
            return Ok(None);
        };
        let base = address.get();
        self.model.record_reservation(base, size, alignment).map_err(Difference::RuleViolation)?;
        // If the call with the hint fails, the library repeats it without the hint.
        if let Some(expected) = expected_base
            && self.faults_seen == faults_seen
        {
            expect_equal("address for a free and aligned hint", &expected, &base)?;
        }
        Ok(Some(base))
    }

    /// Returns whether the range at a hint is free, aligned and inside the address space of a process.
    fn is_available(&self, hint: usize, size: usize, alignment: usize) -> bool {
        // Addresses have 47 bits. The kernel may reject low addresses (`vm.mmap_min_addr`).
        let end = hint.checked_add(size).filter(|&end| end < 1 << 47);
        let is_aligned = hint.is_multiple_of(alignment.max(self.granule()));
        is_aligned && end.is_some_and(|end| hint >= 1 << 20 && address_space::is_free(&(hint..end)))
    }

    pub(super) fn free(&mut self, address: usize, size: usize) -> CallResult<bool> {
        let returned = self.vmm.address_free(Address::new(address), size);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.free(address, size);
        let is_freed = expect_agreement(
            format_args!("address_free({address:#x}, {size:#x})"),
            expected,
            returned,
        )?
        .is_some();
        if is_freed {
            let range = address..address + size;
            expect_equal(
                format_args!("{} still reserved", range.describe()),
                &false,
                &address_space::is_reserved(&range),
            )?;
            self.freed.push((address, size));
        }
        Ok(is_freed)
    }

    /// Creates shareable memory.
    pub(super) fn create(&mut self, size: usize, owner: AgentId) -> CallResult<Option<Handle>> {
        let kind = HandleType::POSIX_FILE_DESCRIPTOR;
        self.create_with(size, &AllocationProperties::on(owner).shareable_as(kind), 0)
    }

    pub(super) fn create_with(
        &mut self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> CallResult<Option<Handle>> {
        let returned = self.vmm.create_with_flags(size, properties, flags);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(None) };
        let expected = self.model.check_create(size, properties, flags);
        let Some(((), handle)) = expect_agreement(
            format_args!("create({size:#x}, {}, {flags})", properties.describe()),
            expected,
            returned,
        )?
        else {
            return Ok(None);
        };
        self.record_returned(handle)?;
        self.model.record_memory(handle, size, properties).map_err(Difference::RuleViolation)?;
        Ok(Some(handle))
    }

    /// Records a returned handle. Fails if the library has returned the handle before.
    fn record_returned(&mut self, handle: Handle) -> Result<(), Difference> {
        if self.returned_handles.contains(&handle) {
            return Err(Difference::RuleViolation(format!("handle {handle} was returned before")));
        }
        self.returned_handles.push(handle);
        Ok(())
    }

    pub(super) fn release(&mut self, handle: Handle) -> CallResult<bool> {
        let returned = self.vmm.release(handle);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.release(handle);
        Ok(expect_agreement(format_args!("release({handle})"), expected, returned)?.is_some())
    }

    pub(super) fn map(
        &mut self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> CallResult<bool> {
        let returned = self.vmm.map_with_flags(Address::new(address), size, offset, handle, flags);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.map(address, size, offset, handle, flags);
        Ok(expect_agreement(
            format_args!("map({address:#x}, {size:#x}, {offset:#x}, {handle}, {flags})"),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn unmap(&mut self, address: usize, size: usize) -> CallResult<bool> {
        let returned = self.vmm.unmap(Address::new(address), size);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.unmap(address, size);
        Ok(expect_agreement(format_args!("unmap({address:#x}, {size:#x})"), expected, returned)?
            .is_some())
    }

    pub(super) fn set_access(
        &mut self,
        address: usize,
        size: usize,
        grants: &[(AgentId, Access)],
    ) -> CallResult<bool> {
        let descriptors: Vec<_> =
            grants.iter().map(|&(agent, access)| AccessDescriptor { agent, access }).collect();
        let returned = self.vmm.set_access(Address::new(address), size, &descriptors);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.set_access(address, size, grants);
        Ok(expect_agreement(
            format_args!("set_access({address:#x}, {size:#x}, {})", list(grants)),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn get_access(&self, agent: AgentId, address: usize) -> CallResult<bool> {
        let returned = self.vmm.get_access(agent, Address::new(address));
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.get_access(agent, address);
        let Some((expected, found)) = expect_agreement(
            format_args!("get_access({agent}, {address:#x})"),
            expected,
            returned,
        )?
        else {
            return Ok(false);
        };
        expect_equal(format_args!("access of {agent} at {address:#x}"), &expected, &found)?;
        Ok(true)
    }

    pub(super) fn revoke(
        &mut self,
        address: usize,
        size: usize,
        agents: &[AgentId],
    ) -> CallResult<bool> {
        let returned = self.vmm.revoke(Address::new(address), size, agents);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.revoke(address, size, agents);
        Ok(expect_agreement(
            format_args!("revoke({address:#x}, {size:#x}, {})", list(agents)),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn retain(&mut self, address: usize) -> CallResult<bool> {
        let returned = self.vmm.retain_allocation_handle(Address::new(address));
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.retain(address);
        let Some((expected, found)) = expect_agreement(
            format_args!("retain_allocation_handle({address:#x})"),
            expected,
            returned,
        )?
        else {
            return Ok(false);
        };
        expect_equal(format_args!("handle at {address:#x}"), &expected, &found)?;
        Ok(true)
    }

    pub(super) fn export(
        &mut self,
        handle: Handle,
        kind: HandleType,
        flags: u64,
    ) -> CallResult<bool> {
        let returned = self.vmm.export_with_flags(handle, kind, flags);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.export(handle, kind, flags);
        let Some((memory, descriptor)) = expect_agreement(
            format_args!("export_to_shareable_handle({handle}, {}, {flags})", kind.describe()),
            expected,
            returned,
        )?
        else {
            return Ok(false);
        };
        if !fcntl_getfd(&descriptor).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)) {
            return Err(Difference::RuleViolation(
                "an exported descriptor is not close-on-exec".to_owned(),
            ));
        }
        self.exported.push((descriptor, memory));
        Ok(true)
    }

    pub(super) fn import(
        &mut self,
        descriptor: ImportedDescriptor<'_>,
        kind: HandleType,
    ) -> CallResult<bool> {
        let returned = match descriptor {
            ImportedDescriptor::Exported(index) => {
                self.vmm.import_from_shareable_handle(&self.exported[index].0, kind)
            }
            ImportedDescriptor::NotMemory(descriptor) => {
                self.vmm.import_from_shareable_handle(descriptor, kind)
            }
        };
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let (memory, descriptor) = match descriptor {
            ImportedDescriptor::Exported(index) => {
                (Some(self.exported[index].1.clone()), format!("exported descriptor {index}"))
            }
            ImportedDescriptor::NotMemory(_) => (None, "descriptor without memory".to_owned()),
        };
        let expected = self.model.check_import(memory.as_ref(), kind);
        let (Some(((), handle)), Some(memory)) = (
            expect_agreement(
                format_args!("import_from_shareable_handle({descriptor}, {})", kind.describe()),
                expected,
                returned,
            )?,
            memory,
        ) else {
            return Ok(false);
        };
        self.record_returned(handle)?;
        let properties = self.vmm.allocation_properties(handle);
        let location =
            properties.map_err(|error| Difference::RuleViolation(error.to_string()))?.location;
        self.model.record_import(handle, &memory, location).map_err(Difference::RuleViolation)?;
        Ok(true)
    }

    pub(super) fn properties(&self, handle: Handle) -> CallResult<bool> {
        let size = self.vmm.allocation_size(handle);
        let returned = self.vmm.allocation_properties(handle).and_then(|it| Ok((it, size?)));
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.properties(handle);
        let Some((expected, found)) =
            expect_agreement(format_args!("allocation_properties({handle})"), expected, returned)?
        else {
            return Ok(false);
        };
        expect_equal(format_args!("properties of {handle}"), &expected, &found)?;
        Ok(true)
    }

    pub(super) fn write(&self, address: usize, bytes: &[u8]) -> CallResult<bool> {
        let returned = self.vmm.write(Address::new(address), bytes);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.write(address, bytes);
        Ok(expect_agreement(
            format_args!("write({address:#x}, {} bytes)", bytes.len()),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn read(&self, address: usize, size: usize) -> CallResult<bool> {
        let mut found = vec![0; size];
        let returned = self.vmm.read(Address::new(address), &mut found);
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.read(address, size);
        let Some((expected, ())) =
            expect_agreement(format_args!("read({address:#x}, {size:#x})"), expected, returned)?
        else {
            return Ok(false);
        };
        expect_bytes(address, &expected, &found)?;
        Ok(true)
    }

    pub(super) fn copy_from_host(
        &self,
        agent: AgentId,
        address: usize,
        bytes: &[u8],
    ) -> CallResult<bool> {
        let returned = self.vmm.copy_from_host(agent, Address::new(address), bytes);
        let Some(returned) = self.unless_planned_fault(returned) else {
            self.model.forget(address, bytes.len());
            return Ok(false);
        };
        let expected = self.model.copy_from_host(agent, address, bytes);
        Ok(expect_agreement(
            format_args!("copy_from_host({agent}, {address:#x}, {} bytes)", bytes.len()),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn copy_to_host(
        &self,
        agent: AgentId,
        address: usize,
        size: usize,
    ) -> CallResult<bool> {
        let mut found = vec![0; size];
        let returned = self.vmm.copy_to_host(agent, &mut found, Address::new(address));
        let Some(returned) = self.unless_planned_fault(returned) else { return Ok(false) };
        let expected = self.model.copy_to_host(agent, address, size);
        let Some((expected, ())) = expect_agreement(
            format_args!("copy_to_host({agent}, {address:#x}, {size:#x})"),
            expected,
            returned,
        )?
        else {
            return Ok(false);
        };
        expect_bytes(address, &expected, &found)?;
        Ok(true)
    }

    pub(super) fn fill(&self, address: usize, value: u32, size: usize) -> CallResult<bool> {
        let returned = self.vmm.fill(Address::new(address), value, size);
        let Some(returned) = self.unless_planned_fault(returned) else {
            self.model.forget(address, size);
            return Ok(false);
        };
        let expected = self.model.fill(address, value, size);
        Ok(expect_agreement(
            format_args!("fill({address:#x}, {value:#x}, {size:#x})"),
            expected,
            returned,
        )?
        .is_some())
    }

    pub(super) fn copy(
        &self,
        agent: AgentId,
        destination: usize,
        source: usize,
        size: usize,
    ) -> CallResult<bool> {
        let returned = self.vmm.copy(agent, Address::new(destination), Address::new(source), size);
        let Some(returned) = self.unless_planned_fault(returned) else {
            self.model.forget(destination, size);
            return Ok(false);
        };
        let expected = self.model.copy(agent, destination, source, size);
        Ok(expect_agreement(
            format_args!("copy({agent}, {destination:#x}, {source:#x}, {size:#x})"),
            expected,
            returned,
        )?
        .is_some())
    }

    /// Returns the properties of the memory that an operation creates. `types` are the bits of the handle types.
    pub(super) fn creation_properties(
        owner: AgentId,
        uncached: bool,
        types: u8,
    ) -> AllocationProperties {
        let kind = if uncached { AllocationKind::Uncached } else { AllocationKind::Pinned };
        let mut properties = AllocationProperties::on(owner).of_kind(kind);
        properties.handle_types = HandleType::from_bits_retain(types.into());
        properties
    }
}
