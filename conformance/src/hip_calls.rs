//! Calls with the arguments that HIP has and [`Vmm`] does not: `flags`, which must be 0, as the C interface checks them.
//! [`Vmm`] has no call for sparse arrays, so `map_array_async` only returns the errors. The C interface has a check of
//! its own, which `capi/tests` tests.

use hsa_vmm::error::{Argument, Feature, Operation, Problem, Value};
use hsa_vmm::{Address, AllocationProperties, Error, ErrorKind, Handle, HandleType, Vmm};
use std::os::fd::OwnedFd;

/// HIP's calls with all of their arguments.
pub(crate) trait HipCalls {
    /// `hipMemAddressReserve`
    fn reserve_with_flags(
        &self,
        size: usize,
        alignment: usize,
        hint: Option<Address>,
        flags: u64,
    ) -> Result<Address, Error>;
    /// `hipMemCreate`
    fn create_with_flags(
        &self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> Result<Handle, Error>;
    /// `hipMemMap`
    fn map_with_flags(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> Result<(), Error>;
    /// `hipMemExportToShareableHandle`
    fn export_with_flags(
        &self,
        handle: Handle,
        handle_type: HandleType,
        flags: u64,
    ) -> Result<OwnedFd, Error>;
    /// `hipMemMapArrayAsync`
    fn map_array_async(&self, entries: usize) -> Result<(), Error>;
}

impl HipCalls for Vmm {
    fn reserve_with_flags(
        &self,
        size: usize,
        alignment: usize,
        hint: Option<Address>,
        flags: u64,
    ) -> Result<Address, Error> {
        Operation::AddressReserve.check_flags(flags)?;
        self.address_reserve(size, alignment, hint)
    }

    fn create_with_flags(
        &self,
        size: usize,
        properties: &AllocationProperties,
        flags: u64,
    ) -> Result<Handle, Error> {
        Operation::Create.check_flags(flags)?;
        self.create(size, properties)
    }

    fn map_with_flags(
        &self,
        address: Address,
        size: usize,
        offset: usize,
        handle: Handle,
        flags: u64,
    ) -> Result<(), Error> {
        Operation::Map.check_flags(flags)?;
        self.map(address, size, offset, handle)
    }

    fn export_with_flags(
        &self,
        handle: Handle,
        handle_type: HandleType,
        flags: u64,
    ) -> Result<OwnedFd, Error> {
        Operation::ExportToShareableHandle.check_flags(flags)?;
        self.export_to_shareable_handle(handle, handle_type)
    }

    fn map_array_async(&self, entries: usize) -> Result<(), Error> {
        let kind = if entries == 0 {
            let (argument, problem) = (Argument::List, Problem::Empty);
            ErrorKind::InvalidArgument { argument, value: Value::None, problem }
        } else {
            ErrorKind::NotSupported(Feature::SparseArrays)
        };
        Err(Error::new(Operation::MapArrayAsync, kind))
    }
}
