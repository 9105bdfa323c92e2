//! Reuse of addresses and memory: the levels "unmapped" and "reused".

use super::host_buffer::{single_wrong_copy, with_host};
use super::hsa::{COPY, Hsa};
use super::recorder::AlreadyReported;
use super::run_level::Resources;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the numbers in the memory that is unmapped. Later writes to the address must not change these numbers.
const KEPT: u32 = 0x4e97_0001;
/// The first of the numbers in the memory that is then mapped at the same address.
const OTHER: u32 = 0x07e4_0001;
/// The number of rounds of "reused".
const ROUNDS: u32 = 4;
/// The function that is the cause if an address still refers to memory that was unmapped, or cannot be used again.
const UNMAP: &str = "hsa_amd_vmem_unmap";
/// The function that is the cause if two addresses of one handle refer to different memory.
const MAP: &str = "hsa_amd_vmem_map";
/// The function that is the cause if two handles share memory.
const CREATE: &str = "hsa_amd_vmem_handle_create";
/// The message if a GPU reads the numbers of another handle.
const SHARED: &str = "another handle has the same memory";
/// The message if a GPU reads numbers that no handle of the level contains.
const CHANGED: &str = "the memory's contents have changed since a GPU wrote and read them";

/// Maps other memory at an address that was unmapped. Checks, through a second mapping of the first memory, that writes
/// to the address do not change the first memory.
pub fn check_unmapped(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size) = (&resources.gpus[0], resources.size);
    with_host(hsa, resources, |host| {
        let (va, alias) = (hsa.reserve(size, "va")?, hsa.reserve(size, "va2")?);
        let memory = hsa.create(&resources.pool, size, "memory")?;
        let other = hsa.create(&resources.pool, size, "memory2")?;
        hsa.map(&va, size, &memory)?;
        hsa.map(&alias, size, &memory)?;
        hsa.grant(&va, size, &[gpu])?;
        hsa.grant(&alias, size, &[gpu])?;
        host.write_and_read(gpu, &va, KEPT)?;
        let other_memory = "the second address of the memory refers to other memory";
        let cause = |_| Ok((MAP, other_memory.to_owned()));
        host.read_first(gpu, &alias, KEPT, &hsa.describe_copier(gpu), cause)?;
        hsa.unmap(&va, size)?;
        let failure_of_unmap = |_| {
            let message = "the address cannot be used again after it was unmapped";
            hsa.recorder.fail_in(UNMAP, message)
        };
        hsa.map(&va, size, &other).map_err(failure_of_unmap)?;
        hsa.grant(&va, size, &[gpu]).map_err(failure_of_unmap)?;
        host.write_by(gpu, &va, OTHER)?;
        host.check_kept(gpu, &alias, KEPT, |_| {
            Ok((UNMAP, "a GPU still accesses memory at an address that was unmapped".to_owned()))
        })?;
        host.write_and_read(gpu, &va, OTHER)?;
        for (va, memory) in [(&va, &memory), (&alias, &other)] {
            hsa.unmap(va, size)?;
            hsa.release(memory)?;
            hsa.free(va, size)?;
        }
        Ok(())
    })?;
    hsa.recorder.record_fact("other memory at the same address");
    Ok(())
}

/// Frees memory and allocates again. Checks that two handles never share memory.
pub fn check_reused(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size, pool) = (&resources.gpus[0], resources.size, &resources.pool);
    with_host(hsa, resources, |host| {
        let vas = [hsa.reserve(size, "va")?, hsa.reserve(size, "va2")?];
        for round in 0..ROUNDS {
            let memories = [hsa.create(pool, size, "memory")?, hsa.create(pool, size, "memory2")?];
            for (va, memory) in vas.iter().zip(&memories) {
                hsa.map(va, size, memory)?;
                hsa.grant(va, size, &[gpu])?;
            }
            // Each round writes other numbers, so that old data is not mistaken for new data.
            let first_numbers = [0x4e05_0001 | round << 8, 0x4e06_0001 | round << 8];
            for (va, first) in vas.iter().zip(first_numbers) {
                host.write_and_read(gpu, va, first)?;
            }
            let others = first_numbers.into_iter().rev();
            for ((va, first), other) in vas.iter().zip(first_numbers).zip(others) {
                host.check_kept(gpu, va, first, |contents| {
                    Ok(match contents.is_late {
                        true => (COPY, single_wrong_copy(gpu, va)),
                        false if contents.difference.is_word_of(other) => {
                            (CREATE, SHARED.to_owned())
                        }
                        false => (CREATE, CHANGED.to_owned()),
                    })
                })?;
            }
            for (va, memory) in vas.iter().zip(&memories) {
                hsa.unmap(va, size)?;
                hsa.release(memory)?;
            }
        }
        vas.iter().try_for_each(|va| hsa.free(va, size))
    })?;
    hsa.recorder.record_fact(format!("{ROUNDS} rounds"));
    Ok(())
}
