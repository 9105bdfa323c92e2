//! Finds out whether the driver clears memory only after it has been allocated again and written.
//!
//! A driver clears freed memory with a fill. A fill that ends too late overwrites what the next user of the memory
//! writes. Any case can then find zeros, and its message names the copy that has written the memory.

use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, Error, Mapping, Reservation, Runtime, Vmm,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The number of rounds. Each round frees the memory that the next round allocates.
const ROUNDS: usize = 16;
/// The maximum number of searches in a process that find no late fill. If copies are wrong, many cases fail.
const MAX_FAILED_SEARCHES: usize = 4;
/// The number of searches that have found no late fill.
static FAILED_SEARCHES: AtomicUsize = AtomicUsize::new(0);
/// The number of allocations of a round. The next round writes to some of this memory before a late fill.
const ALLOCATIONS: usize = 8;
/// The size of the reservation, so large that its addresses were not used before. A GPU that uses an old page-table
/// entry could also find zeros.
const RESERVED: usize = 8 << 30;
/// The time after which a late fill has ended.
const LATE_LIMIT: Duration = Duration::from_millis(20);
/// What a difference of bytes says if the first wrong byte is 0.
const ZERO_FOUND: &str = ": 0x00 instead of ";
/// What the memory contains before the second write, after it, and after a write that follows a late fill.
const VALUES: [u8; 3] = [0x6b, 0x6c, 0x6d];

/// Explains a failure of a case. If the case found zeros, and the driver clears memory after it was written, returns a
/// reason that names the fill first. Otherwise returns `why`.
pub(crate) fn explain(runtime: &Runtime, why: String) -> String {
    let finds_zero = why.lines().next().is_some_and(|line| line.contains(ZERO_FOUND));
    let is_searched = finds_zero && FAILED_SEARCHES.load(Ordering::Relaxed) < MAX_FAILED_SEARCHES;
    let Some(gpu) = runtime.gpus().next().filter(|_| is_searched) else { return why };
    // If a call fails, nothing is known about fills.
    if !clears_written_memory(runtime, gpu.id()).unwrap_or(false) {
        FAILED_SEARCHES.fetch_add(1, Ordering::Relaxed);
        return why;
    }
    format!(
        "memory of {} becomes 0 some time after it was written: suspect a late fill first, with which the driver \
         clears freed memory (amdgpu_fill_buffer and its fence), not the copies\n  {why}",
        gpu.id()
    )
}

/// Allocates, writes and frees memory of a GPU several times. Returns whether written memory becomes 0.
fn clears_written_memory(runtime: &Runtime, gpu: AgentId) -> Result<bool, Error> {
    let vmm = Vmm::open(runtime)?;
    let granule = vmm.reservation_granule();
    let reservation = Reservation::builder(RESERVED).reserve(&vmm)?;
    let properties = AllocationProperties::on(gpu);
    // Start in the middle of the reservation. Each mapping has an address of its own, so that no GPU has an old entry.
    let mut offset = RESERVED / 2;
    for round in 0..ROUNDS {
        let mut mappings = Vec::new();
        for _ in 0..ALLOCATIONS {
            let memory = Allocation::create(&vmm, granule, &properties)?;
            let mapping = reservation.map(offset, &memory)?;
            offset += granule;
            mapping.grant(&[gpu], Access::ReadWrite)?;
            // If the second write has no effect, the memory contains the first value, not 0.
            for value in &VALUES[..2] {
                mapping.copy_from_host(gpu, 0, &vec![*value; granule])?;
            }
            mappings.push(mapping);
        }
        std::thread::sleep(LATE_LIMIT);
        if round == 0 && !copies_are_right(&mappings[0], gpu)? {
            return Ok(false);
        }
        // The check has written to the first mapping.
        for mapping in mappings.iter().skip(usize::from(round == 0)) {
            if read_byte(mapping, gpu)? != Some(0) {
                continue;
            }
            return copies_are_right(mapping, gpu);
        }
    }
    Ok(false)
}

/// Returns whether a write stays in the memory. A late fill of this memory has ended before.
fn copies_are_right(mapping: &Mapping, gpu: AgentId) -> Result<bool, Error> {
    mapping.copy_from_host(gpu, 0, &vec![VALUES[2]; mapping.size()])?;
    std::thread::sleep(LATE_LIMIT);
    let found = read_byte(mapping, gpu)?;
    // Wait for late copies before the memory is freed.
    std::thread::sleep(LATE_LIMIT);
    Ok(found == Some(VALUES[2]))
}

/// Has a GPU copy a mapping to the host. Returns the byte that the whole mapping contains, if all bytes are equal.
fn read_byte(mapping: &Mapping, gpu: AgentId) -> Result<Option<u8>, Error> {
    let mut found = vec![0xff; mapping.size()];
    mapping.copy_to_host(gpu, 0, &mut found)?;
    Ok(found.first().copied().filter(|first| found.iter().all(|byte| byte == first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm::simulation::Config;

    #[test]
    fn copies_are_not_blamed_on_a_fill() {
        for faults in [
            "",
            ",faults=hsa_amd_memory_async_copy=garbled",
            ",faults=hsa_amd_memory_async_copy=half",
        ] {
            let config: Config = format!("gpus=1,vram=1g{faults}").parse().unwrap();
            let runtime = Runtime::simulated(config).unwrap();
            let why = "1 of 1 32-bit words differs: 0x00 instead of 0x21 (XOR 0x21)";
            assert_eq!(explain(&runtime, why.to_owned()), why);
        }
    }
}
