//! Checks that the driver writes page-table entries as requested: the levels "offset" and "permission".
//!
//! AMD's runtime requests entries with full access that refer to the start of the memory. These levels replace those
//! entries through the copy of libdrm that the runtime has loaded.

use super::host_buffer::{GRANT, HostBuffer, OtherContents, with_host};
use super::hsa::{Address, AddressSpace, Agent, COPY, Hsa, Named, REPLACE};
use super::recorder::AlreadyReported;
use super::run_level::{Resources, with_mapping};
use hsa_sys::driver as abi;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the consecutive numbers in the memory.
const FIRST: u32 = 0x0ff5_0001;
/// The first of the numbers that the GPU has no permission to write.
const FORBIDDEN: u32 = 0x0bad_0001;

/// How messages describe memory of which a GPU reads the wrong half, also some time after the entries were replaced.
pub const WRONG_HALF: &str = "does not read the";
/// How messages describe memory of which a GPU first read the wrong half.
pub const LATE_ENTRY: &str = "only some time after the entries were replaced";
/// How messages describe entries of the two operations that do not agree.
pub const DIFFERENT_PAGES: &str = "refer to different pages of the memory";
/// The message if a copy to memory without write permission ends without a fault, and has not changed the memory.
const NEITHER_WROTE_NOR_FAULTED: &str = "the copy neither wrote nor faulted";

/// The advice if the operations MAP and REPLACE do not agree.
pub const ADVICE_ON_DIFFERENT_PAGES: &str = "REPLACE has an effect: after a second REPLACE, for the whole memory, the GPU \
     reads other contents in both halves. So neither the TLB nor a late entry is the cause. The operations MAP and \
     REPLACE of amdgpu_gem_va_ioctl refer to different pages for the same offset: compare how each computes the pages from \
     offset_in_bo. If the found numbers are not those of this level (0x0ff50001 and later), the memory can also have lost \
     its contents: suspect a move of the memory";

/// Replaces the entries of the first half of a mapping by entries for the second half of the memory. Checks that the
/// GPU then reads the second half.
pub fn check_offset(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size) = (&resources.gpus[0], resources.size);
    let half = Named::new("size / 2", size / 2);
    with_host(hsa, resources, |host| {
        let space = AddressSpace::open(hsa, gpu)?;
        with_mapping(hsa, resources, |va, memory| {
            hsa.grant(va, size, &[gpu])?;
            host.write_and_read(gpu, va, FIRST)?;
            let dmabuf = hsa.export(memory)?;
            let permissions = space.all_permissions();
            let replace = |size: &Named<usize>, offset: &Named<usize>| {
                space.replace(&dmabuf, va, size, offset, permissions)?;
                hsa.wait_for_page_tables()
            };
            // Restores the entries of the whole mapping. Otherwise, a part of the mapping would outlive the unmap.
            let restore = || replace(&host.size, &Named::new("0", 0));
            replace(&half, &half)?;
            let second = FIRST + (half.value / 4) as u32;
            host.check_part_kept(gpu, va, &half, second, |contents| {
                if !contents.is_late {
                    restore()?;
                    if reads_other_pages(host, gpu, va)? {
                        // The level "data" has checked the operation MAP if the CPU can access the memory.
                        let is_checked = hsa.can_access(&resources.cpu, &resources.pool)?;
                        let call = if is_checked { REPLACE } else { GRANT };
                        let what =
                            format!("the entries of {GRANT} and {REPLACE} {DIFFERENT_PAGES}");
                        return Ok((call, what));
                    }
                }
                Ok((REPLACE, wrong_half(contents, gpu, "second")))
            })?;
            restore()?;
            host.check_kept(gpu, va, FIRST, |contents| {
                Ok((REPLACE, wrong_half(contents, gpu, "restored first")))
            })?;
            hsa.close(dmabuf)
        })
    })?;
    hsa.recorder.record_fact("the second half, through a replaced entry");
    Ok(())
}

/// Returns whether a GPU reads other contents at both ends of the mapping, after the entries were restored. The GPU
/// then uses the restored entries, and the entries of the first mapping referred to other pages. An entry of the first half
/// that takes effect late changes only this half.
fn reads_other_pages(host: &HostBuffer<'_>, gpu: &Agent, va: &Address) -> Result<bool> {
    let difference = host.difference(gpu, va, FIRST)?;
    Ok(difference.is_some_and(|it| it.is_of_other_contents() && it.covers_both_ends()))
}

/// Describes a GPU that reads other contents than those of a half to which replaced entries refer.
fn wrong_half(contents: OtherContents, gpu: &Agent, half: &str) -> String {
    let gpu = &gpu.c_expression;
    match contents.is_late {
        true => format!("{gpu} reads the {half} half {LATE_ENTRY}"),
        false => format!("{gpu} {WRONG_HALF} {half} half"),
    }
}

/// Removes the write permission from a mapping's entries. Checks that the GPU can then read, but faults when it writes.
pub fn check_permission(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size) = (&resources.gpus[0], Named::new("size", resources.size));
    hsa.note_faults()?;
    with_host(hsa, resources, |host| {
        let space = AddressSpace::open(hsa, gpu)?;
        let (va, memory) =
            (hsa.reserve(size.value, "va")?, hsa.create(&resources.pool, size.value, "memory")?);
        hsa.map(&va, size.value, &memory)?;
        hsa.grant(&va, size.value, &[gpu])?;
        host.write_by(gpu, &va, FIRST)?;
        let dmabuf = hsa.export(&memory)?;
        let read_only = Named::new("AMDGPU_VM_PAGE_READABLE", abi::AMDGPU_VM_PAGE_READABLE.into());
        space.replace(&dmabuf, &va, &size, &Named::new("0", 0), &read_only)?;
        hsa.wait_for_page_tables()?;
        host.read_by(gpu, &va, FIRST, &hsa.describe_copier(gpu))?;
        if !host.write_faults(gpu, &va, FORBIDDEN)? {
            if host.difference(gpu, &va, FIRST)?.is_none() {
                let va = &va.c_expression;
                return Err(hsa.recorder.fail_in_call_on(COPY, va, NEITHER_WROTE_NOR_FAULTED));
            }
            let message = format!("{} writes memory without permission", gpu.c_expression);
            return Err(hsa.recorder.fail_in(REPLACE, message));
        }
        hsa.recorder.record_fact("reads, and faults when it writes");
        // End the process, because the GPU's queue does not work after a fault.
        hsa.recorder.send(&super::record::Record::Reached);
        std::process::exit(0)
    })
}
