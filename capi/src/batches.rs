//! Batches (`hsavmm_map_many` and related functions).

use crate::pointers::{address, read_each};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::{hipError_t, hipMemAccessDesc, hipMemGenericAllocationHandle_t};
use crate::virtual_memory::{access_list, handle};
use core::ffi::c_void;
use hsa_vmm::error::Argument;
use hsa_vmm::vmm::NewMapping;
use hsa_vmm::{Address, Error, ErrorKind};

/// `hsavmm_mapping`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    ptr: *mut c_void,
    size: usize,
    handle: hipMemGenericAllocationHandle_t,
}

/// `hsavmm_part`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Part {
    ptr: *mut c_void,
    size: usize,
    offset: usize,
    handle: hipMemGenericAllocationHandle_t,
}

/// `hsavmm_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    ptr: *mut c_void,
    size: usize,
}

/// Converts the error of a batch. `argument` is the name of the list in C.
fn failure(error: Error, argument: &str) -> Failure {
    let is_about_list =
        matches!(error.kind(), ErrorKind::InvalidArgument { argument: Argument::List, .. });
    let Failure { code, message } = Failure::from(error);
    let message = match is_about_list {
        true => message.replacen(": list ", &format!(": {argument} "), 1),
        false => message,
    };
    Failure { code, message }
}

/// Reads an array of ranges.
///
/// # Safety
/// `ranges` is null or points to `count` readable ranges.
unsafe fn to_ranges(ranges: *const Range, count: usize) -> Result<Vec<(Address, usize)>, Failure> {
    // SAFETY: the caller guarantees `count` ranges.
    let ranges = unsafe { read_each("ranges", ranges, count) }?;
    Ok(ranges.into_iter().map(|range| (address(range.ptr), range.size)).collect())
}

/// Creates mappings, and sets the access to all of them.
///
/// # Safety
/// `desc` is null or points to `desc_count` readable descriptors.
unsafe fn map_many(
    (mappings, argument): (&[NewMapping], &str),
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> Result<(), Failure> {
    let process = process()?;
    let vmm = process.vmm()?;
    let access = match desc_count {
        0 => Vec::new(),
        // SAFETY: the caller guarantees `desc_count` descriptors.
        count => unsafe { access_list(&process, desc, count) }?,
    };
    vmm.map_many(mappings, &access).map_err(|error| failure(error, argument))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_map_many(
    mappings: *const Mapping,
    count: usize,
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> hipError_t {
    run("hsavmm_map_many", || {
        // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
        let mappings = unsafe { read_each("mappings", mappings, count) }?;
        let convert = |mapping: Mapping| NewMapping {
            address: address(mapping.ptr),
            size: mapping.size,
            offset: 0,
            handle: handle(mapping.handle),
        };
        let mappings: Vec<_> = mappings.into_iter().map(convert).collect();
        // SAFETY: the C caller passes null or `desc_count` readable elements (lib.rs).
        unsafe { map_many((&mappings, "mappings"), desc, desc_count) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_map_parts(
    parts: *const Part,
    count: usize,
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> hipError_t {
    run("hsavmm_map_parts", || {
        // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
        let parts = unsafe { read_each("parts", parts, count) }?;
        let convert = |part: Part| NewMapping {
            address: address(part.ptr),
            size: part.size,
            offset: part.offset,
            handle: handle(part.handle),
        };
        let mappings: Vec<_> = parts.into_iter().map(convert).collect();
        // SAFETY: the C caller passes null or `desc_count` readable elements (lib.rs).
        unsafe { map_many((&mappings, "parts"), desc, desc_count) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_set_access_many(
    ranges: *const Range,
    count: usize,
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> hipError_t {
    run("hsavmm_set_access_many", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: the C caller passes null or `count` and `desc_count` readable elements (lib.rs).
        let (ranges, access) =
            unsafe { (to_ranges(ranges, count)?, access_list(&process, desc, desc_count)?) };
        let changes: Vec<_> = ranges.iter().map(|range| (range.0, range.1, &access[..])).collect();
        vmm.set_access_many(&changes).map_err(|error| failure(error, "ranges"))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_unmap_many(ranges: *const Range, count: usize) -> hipError_t {
    run("hsavmm_unmap_many", || {
        // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
        let ranges = unsafe { to_ranges(ranges, count) }?;
        process()?.vmm()?.unmap_many(&ranges).map_err(|error| failure(error, "ranges"))
    })
}
