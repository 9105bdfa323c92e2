//! Batches (`hsavmm_map_many` and related functions).

use crate::answer::{Refusal, answer};
use crate::pointers::{address, take_each};
use crate::process::process;
use crate::types::{hipError_t, hipMemAccessDesc, hipMemGenericAllocationHandle_t};
use crate::virtual_memory::{access_list, handle};
use core::ffi::c_void;
use hsa_vmm::Address;
use hsa_vmm::vmm::NewMapping;

/// `hsavmm_mapping`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    ptr: *mut c_void,
    size: usize,
    handle: hipMemGenericAllocationHandle_t,
}

/// `hsavmm_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    ptr: *mut c_void,
    size: usize,
}

/// Reads an array of ranges.
///
/// # Safety
/// `ranges` is null or points at `count` readable ranges.
unsafe fn runs(ranges: *const Range, count: usize) -> Result<Vec<(Address, usize)>, Refusal> {
    // SAFETY: as the caller says.
    let ranges = unsafe { take_each("ranges", ranges, count) }?;
    Ok(ranges.into_iter().map(|range| (address(range.ptr), range.size)).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_map_many(
    mappings: *const Mapping,
    count: usize,
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> hipError_t {
    answer("hsavmm_map_many", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: C promises `count` of them.
        let mappings = unsafe { take_each("mappings", mappings, count) }?;
        let new = |one: Mapping| NewMapping {
            address: address(one.ptr),
            size: one.size,
            handle: handle(one.handle),
        };
        let mappings: Vec<NewMapping> = mappings.into_iter().map(new).collect();
        let access = match desc_count {
            0 => Vec::new(),
            // SAFETY: C promises `desc_count` of them.
            count => unsafe { access_list(&process, desc, count) }?,
        };
        Ok(vmm.map_many(&mappings, &access)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_set_access_many(
    ranges: *const Range,
    count: usize,
    desc: *const hipMemAccessDesc,
    desc_count: usize,
) -> hipError_t {
    answer("hsavmm_set_access_many", || {
        let process = process()?;
        let vmm = process.vmm()?;
        // SAFETY: C promises `count` and `desc_count` of them.
        let (runs, access) =
            unsafe { (runs(ranges, count)?, access_list(&process, desc, desc_count)?) };
        Ok(vmm.set_access_many(&runs, &access)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_unmap_many(ranges: *const Range, count: usize) -> hipError_t {
    answer("hsavmm_unmap_many", || {
        // SAFETY: C promises `count` of them.
        let runs = unsafe { runs(ranges, count) }?;
        Ok(process()?.vmm()?.unmap_many(&runs)?)
    })
}
