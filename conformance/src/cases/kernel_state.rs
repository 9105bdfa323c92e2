//! Compares the calls' results with the kernel's records and the GPUs' page tables.

use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::kernel_configuration::{KernelConfiguration, MOVE_NOTIFY, P2PDMA};
use crate::memory_placement::Placement;
use crate::page_table::{PageTable, PageTableEntry};
use crate::{Context, NotPassed, memory_placement, process_maps};
use hsa_vmm::agent::Enforcement;
use hsa_vmm::simulation::GpuPermissions;
use hsa_vmm::{Access, Address, AgentId, Handle};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "create.memory.is_counted",
        "HIP: hipMemGetInfo",
        "each GPU's available memory is at most the size of its pool, and decreases while memory is allocated",
        available_memory_is_counted,
    ),
    Case::new(
        "release.memory.comes_back",
        "HIP: hipMemRelease, hipMemGetInfo",
        "released and unmapped memory is available again",
        memory_is_freed,
    ),
    Case::new(
        "reserve.free.gives_the_addresses_back",
        "HIP: hipMemAddressFree",
        "freed addresses are available to the process, according to the kernel",
        addresses_are_freed,
    ),
    Case::new(
        "access.cpu.as_the_kernel_has_it",
        "HIP: hipMemSetAccess; Linux: proc_pid_maps(5)",
        "the kernel's page permissions for the CPU are exactly those granted",
        kernel_has_granted_cpu_permissions,
    ),
    Case::new(
        "access.gpu.as_its_page_table_has_it",
        "HIP: hipMemSetAccess; amdgpu: amdgpu_vm_info",
        "a GPU's page table has no entry for mapped memory until the GPU is granted access, and then permits this access",
        page_table_matches_granted_access,
    ),
    Case::new(
        "access.gpus.memory_stays_in_vram",
        "HIP: hipMemAllocationProp; Linux: drm-usage-stats, DMABUF_MOVE_NOTIFY",
        "a GPU's memory stays in its VRAM when a second GPU is granted access",
        memory_stays_in_vram,
    ),
    Case::new(
        "unmap.gpu.page_table_forgets",
        "HIP: hipMemUnmap; amdgpu: amdgpu_vm_info",
        "a GPU's page table permits no access to memory after revoke, and has no entry for the memory after unmap",
        page_table_is_cleared,
    ),
];

/// The size of the test allocations, in bytes. Drivers report available memory in multiples of a smaller size, so an
/// allocation always changes the reported size.
pub(super) const ALLOCATION_SIZE: usize = 8 << 20;
const ROUNDS: usize = 8;
/// The number of attempts to observe that memory is available again.
const ATTEMPTS: usize = 4;
/// The kernel's build options that keep memory in VRAM when two GPUs use the memory.
const REQUIRED_OPTIONS: [&str; 2] = [MOVE_NOTIFY, P2PDMA];

fn granules_for(context: &Context, bytes: usize) -> usize {
    bytes.div_ceil(context.granule()).max(1)
}

fn available_memory_is_counted(context: &Context) -> TestResult {
    for &gpu in context.gpus() {
        let agent = context.runtime().agent(gpu);
        let size = agent.and_then(|it| it.vmem_pool()).map_or(0, |pool| pool.size);
        let available = context.available_memory(gpu)?;
        ensure!(available <= size, "{available} bytes are available of {size}");
        expect_memory_counted(context, gpu)?;
    }
    Ok(())
}

/// Fails if an allocation on a GPU does not decrease the GPU's available memory.
pub(super) fn expect_memory_counted(context: &Context, gpu: AgentId) -> TestResult {
    let mut before = context.available_memory(gpu)?;
    // Other processes may free GPU memory meanwhile, but not this much in every round.
    let mut remaining = before;
    for _ in 0..ROUNDS {
        before = context.available_memory(gpu)?;
        let handle = create_or_skip(context, gpu)?;
        remaining = context.available_memory(gpu)?;
        context.vmm().release(handle)?;
        // Three quarters are enough, because other processes may free some memory meanwhile. A runtime that counts only
        // half of each allocation fails.
        if remaining + ALLOCATION_SIZE / 4 * 3 <= before {
            return Ok(());
        }
    }
    Err(NotPassed::Failed(format!(
        "{remaining} bytes of {gpu} are available with {ALLOCATION_SIZE} bytes allocated; {before} before"
    )))
}

/// Creates memory of [`ALLOCATION_SIZE`] bytes on a GPU. Skips the case if the GPU has too little available memory.
fn create_or_skip(context: &Context, gpu: AgentId) -> TestResult<Handle> {
    let handle = context.create_on(gpu, granules_for(context, ALLOCATION_SIZE));
    handle.map_err(|failure| context.skip_if_too_small(gpu, ALLOCATION_SIZE, failure))
}

fn memory_is_freed(context: &Context) -> TestResult {
    let count = granules_for(context, ALLOCATION_SIZE);
    let size = count * context.granule();
    for &gpu in context.gpus() {
        expect_memory_returned(context, gpu, size, || {
            let at = context.reserve(count)?;
            let handle = context.create_on(gpu, count)?;
            context.map(at, count, handle)?;
            context.set_access(at, count, &context.gpu_and_cpu(gpu), Access::ReadWrite)?;
            context.vmm().unmap(at, size)?;
            context.vmm().release(handle)?;
            Ok(context.vmm().address_free(at, size)?)
        })?;
    }
    Ok(())
}

/// Fails if memory of a GPU is missing after `use_and_release`, which allocates, maps and releases `size` bytes. Skips
/// the case if the GPU has too little available memory.
pub(super) fn expect_memory_returned(
    context: &Context,
    gpu: AgentId,
    size: usize,
    use_and_release: impl Fn() -> TestResult,
) -> TestResult {
    context.vmm().release(create_or_skip(context, gpu)?)?;
    let mut least_lost = usize::MAX;
    // Other processes use GPU memory, too. Therefore, one attempt in which the memory returns is enough.
    for _ in 0..ATTEMPTS {
        let before = context.available_memory(gpu)?;
        for _ in 0..ROUNDS {
            use_and_release()?;
        }
        let lost = before.saturating_sub(context.available_memory(gpu)?);
        // The driver may free the memory of the last two rounds late.
        if lost < 3 * size {
            return Ok(());
        }
        least_lost = lost.min(least_lost);
    }
    Err(NotPassed::Failed(format!(
        "{gpu} has lost {least_lost} bytes: {ROUNDS} times {size} bytes were created, mapped and released"
    )))
}

fn addresses_are_freed(context: &Context) -> TestResult {
    let size = context.granule() << 10;
    expect_addresses_freed(size, || {
        let at = context.vmm().address_reserve(size, 0, None)?;
        context.vmm().address_free(at, size)?;
        Ok(at)
    })
}

/// Fails if addresses are still in use after `reserve_and_free`, which reserves and frees `size` bytes of addresses.
pub(super) fn expect_addresses_freed(
    size: usize,
    reserve_and_free: impl Fn() -> TestResult<Address>,
) -> TestResult {
    let mut still_mapped = Vec::new();
    for _ in 0..ROUNDS {
        let at = reserve_and_free()?;
        let range = at.get()..at.get() + size;
        let lines = process_maps::lines_within(&range).ok_or_else(maps_unreadable)?;
        // Another thread may have mapped memory in the range meanwhile, but not half of the range.
        if lines.iter().map(|(part, _)| part.len()).sum::<usize>() < size / 2 {
            return Ok(());
        }
        still_mapped.push(at);
    }
    Err(NotPassed::Failed(format!(
        "freed, but still in use: {size:#x} bytes each at {still_mapped:?}"
    )))
}

fn maps_unreadable() -> NotPassed {
    NotPassed::Skipped("/proc/self/maps cannot be read".to_owned())
}

fn kernel_has_granted_cpu_permissions(context: &Context) -> TestResult {
    context.require_cpu_access()?;
    let at = context.reserve(4)?;
    // The first and last granule keep their access while the middle changes.
    let (changed, last) = (context.granule_at(at, 1), context.granule_at(at, 3));
    let host = context.host();
    let parts = [(at, 1), (changed, 2), (last, 1)];
    for (start, count) in parts {
        let handle = context.create(count)?;
        context.map(start, count, handle)?;
    }
    context.set_access(at, 4, &[host], Access::ReadWrite)?;
    for access in [Access::Read, Access::None, Access::ReadWrite, Access::None, Access::Read] {
        context.set_access(changed, 2, &[host], access)?;
        for (start, count, granted) in
            [(at, 1, Access::ReadWrite), (changed, 2, access), (last, 1, Access::ReadWrite)]
        {
            expect_cpu_permissions(context, start, count, granted)?;
        }
    }
    Ok(())
}

/// Fails if the kernel's page permissions for the CPU are not those granted. Skips the case if they cannot be read.
pub(super) fn expect_cpu_permissions(
    context: &Context,
    start: Address,
    count: usize,
    granted: Access,
) -> TestResult {
    let expected = match granted {
        Access::None => "---",
        Access::Read => "r--",
        Access::ReadWrite => "rw-",
    };
    let range = start.get()..start.get() + count * context.granule();
    let lines = process_maps::lines_within(&range).ok_or_else(maps_unreadable)?;
    let mapped: usize = lines.iter().map(|(part, _)| part.len()).sum();
    ensure_eq!(mapped, range.len(), "mapped bytes at {start}, granted {granted:?}");
    for (part, permissions) in lines {
        ensure!(
            permissions.starts_with(expected),
            "{granted:?} was granted, but the kernel has {permissions} at {part:#x?}"
        );
    }
    Ok(())
}

/// Returns a GPU's page table. Skips the case if the page table cannot be read.
fn read_page_table(context: &Context, gpu: AgentId) -> TestResult<PageTable<'_>> {
    let index = context.runtime().gpus().position(|agent| agent.id() == gpu).unwrap_or(0);
    let table = PageTable::read(context.runtime(), index);
    table.ok_or_else(|| NotPassed::Skipped("GPUs' page tables cannot be read here".to_owned()))
}

/// Returns the page-table entries for the first and last byte of each granule, with the offset of the byte.
fn page_entries(
    context: &Context,
    gpu: AgentId,
    at: Address,
    count: usize,
) -> TestResult<Vec<(usize, Option<PageTableEntry>)>> {
    let table = read_page_table(context, gpu)?;
    let granule = context.granule();
    let offsets = (0..count).flat_map(|it| [it * granule, (it + 1) * granule - 1]);
    Ok(offsets.map(|offset| (offset, table.entry(at.get() + offset))).collect())
}

/// Fails if the GPU's page table has an entry at an offset of the mapping after an operation.
fn expect_no_entry(entry: Option<PageTableEntry>, offset: usize, operation: &str) -> TestResult {
    match entry {
        None => Ok(()),
        Some(entry) => Err(NotPassed::Failed(format!(
            "the GPU's page table has an entry (GEM_VA) at offset {offset:#x} after {operation}, where none was \
             expected: {entry} of the memory"
        ))),
    }
}

fn page_table_matches_granted_access(context: &Context) -> TestResult {
    let at = context.reserve(3)?;
    let handle = context.create(3)?;
    context.map(at, 3, handle)?;
    let gpu = context.gpu();
    for (offset, entry) in page_entries(context, gpu, at, 3)? {
        expect_no_entry(entry, offset, "map")?;
    }
    let gpu_permissions = context.runtime().simulation().map(|it| it.config().gpu_permissions);
    let is_enforced = gpu_permissions == Some(GpuPermissions::Enforced)
        || context.vmm().enforcement(gpu) == Some(Enforcement::Enforced);
    for access in [Access::Read, Access::ReadWrite, Access::Read] {
        context.set_access(at, 3, &[gpu], access)?;
        for (offset, entry) in page_entries(context, gpu, at, 3)? {
            let Some(entry) = entry else {
                let reason = format!(
                    "no page-table entry at offset {offset:#x}, although {access:?} was granted"
                );
                return Err(NotPassed::Failed(reason));
            };
            ensure_eq!(
                entry.offset,
                offset as u64,
                "the entry's offset in the memory, at offset {offset:#x} of the mapping"
            );
            ensure!(entry.readable, "{access:?} was granted, but the page is not readable");
            let must_be_writable = access == Access::ReadWrite;
            ensure!(
                entry.writable || !must_be_writable,
                "{access:?} was granted, but the page is not writable"
            );
            ensure!(
                !entry.writable || must_be_writable || !is_enforced,
                "{access:?} was granted, but the page is writable"
            );
        }
    }
    Ok(())
}

/// Returns the size of this process's buffers on a GPU, in VRAM and in system memory. Skips the case if the driver does
/// not report the placement.
fn placement(context: &Context, gpu: AgentId) -> TestResult<Placement> {
    let pci = context.runtime().agent(gpu).and_then(|agent| agent.pci);
    pci.and_then(|pci| memory_placement::of_gpu(&pci.to_string())).ok_or_else(|| {
        NotPassed::Skipped("the driver does not report where memory is (fdinfo)".to_owned())
    })
}

fn memory_stays_in_vram(context: &Context) -> TestResult {
    let (owner, peer) = (context.gpu(), context.other_gpu()?);
    let count = granules_for(context, ALLOCATION_SIZE);
    let size = count * context.granule();
    let before_allocation = placement(context, owner)?;
    let at = context.reserve(count)?;
    let handle = context.create_on(owner, count)?;
    context.map(at, count, handle)?;
    context.set_access(at, count, &[owner], Access::ReadWrite)?;
    let before_grant = placement(context, owner)?;
    if before_grant.vram < before_allocation.vram + size / 4 * 3 {
        let reason = "the driver does not report the memory of handles (fdinfo)";
        return Err(NotPassed::Skipped(reason.to_owned()));
    }
    context.set_access(at, count, &[peer], Access::ReadWrite)?;
    let after_grant = placement(context, owner)?;
    if after_grant.vram + size / 4 * 3 > before_grant.vram {
        return Ok(());
    }
    let moved = format!(
        "granting {peer} access has moved {} bytes out of {owner}'s VRAM, and system memory has {} bytes more",
        before_grant.vram - after_grant.vram,
        after_grant.system.saturating_sub(before_grant.system)
    );
    let kernel = KernelConfiguration::read();
    let missing: Vec<_> =
        REQUIRED_OPTIONS.iter().filter(|name| kernel.is_enabled(name) != Some(true)).collect();
    ensure!(!missing.is_empty(), "{moved}");
    let missing: Vec<_> = missing.iter().map(|name| format!("CONFIG_{name}")).collect();
    Err(NotPassed::Skipped(format!("{moved}; the kernel needs {}", missing.join(" and "))))
}

fn page_table_is_cleared(context: &Context) -> TestResult {
    let gpu = context.gpu();
    let (at, handle) = context.map_filled(2, 0x5454_5454)?;
    // Keep another mapping. Without this mapping, the driver would remove all entries of the memory at once.
    let alias = context.reserve(2)?;
    context.map(alias, 2, handle)?;
    context.set_access(alias, 2, &[gpu], Access::ReadWrite)?;
    ensure!(
        page_entries(context, gpu, at, 2)?.iter().all(|it| it.1.is_some()),
        "no page-table entries after access was granted"
    );
    context.vmm().revoke(at, 2 * context.granule(), &[gpu])?;
    // Where the library controls page tables, the entry stays, without permissions.
    for (offset, entry) in page_entries(context, gpu, at, 2)? {
        let entry = entry.filter(|entry| entry.readable || entry.writable);
        expect_no_entry(entry, offset, "revoke")?;
    }
    context.set_access(at, 2, &[gpu], Access::ReadWrite)?;
    context.vmm().unmap(at, 2 * context.granule())?;
    for (offset, entry) in page_entries(context, gpu, at, 2)? {
        expect_no_entry(entry, offset, "unmap")?;
    }
    context.map(at, 2, handle)?;
    for (offset, entry) in page_entries(context, gpu, at, 2)? {
        expect_no_entry(entry, offset, "map, without access")?;
    }
    Ok(())
}
