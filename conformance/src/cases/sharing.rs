//! Setup shared by the cases of export and import.

use crate::Context;
use crate::case::TestResult;
use hsa_vmm::{Access, Address, Handle, HandleType};
use std::os::fd::OwnedFd;

/// The handle type of all exports and imports.
pub(super) const FD: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

pub(super) fn export(context: &Context, handle: Handle) -> TestResult<OwnedFd> {
    Ok(context.vmm().export_to_shareable_handle(handle, FD)?)
}

/// Imports a descriptor. The handle is released when the case ends.
pub(super) fn import(context: &Context, descriptor: &OwnedFd) -> TestResult<Handle> {
    Ok(context.release_at_end(context.vmm().import_from_shareable_handle(descriptor, FD)?))
}

/// Maps a handle of `granules` granules in a new reservation, and grants the default agents access.
pub(super) fn map_for_default_agents(
    context: &Context,
    handle: Handle,
    granules: usize,
) -> TestResult<Address> {
    let at = context.reserve(granules)?;
    context.map(at, granules, handle)?;
    context.set_access(at, granules, &context.default_agents(), Access::ReadWrite)?;
    Ok(at)
}

/// Creates, maps and fills shareable memory.
pub(super) fn create_filled(
    context: &Context,
    granules: usize,
    value: u32,
) -> TestResult<(Address, Handle)> {
    let handle = context.create_shareable(granules)?;
    let at = map_for_default_agents(context, handle, granules)?;
    context.fill(at, granules, value)?;
    Ok((at, handle))
}
