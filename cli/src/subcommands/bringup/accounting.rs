//! Checks that freed memory becomes available again and that no call leaves descriptors open: the levels "counted" and
//! "descriptors".

use super::hsa::{AGENT_INFO, Address, Agent, FREE, Handle, Hsa, POOL_INFO, RELEASE};
use super::record::Argument;
use super::recorder::AlreadyReported;
use super::run_level::Resources;
use hsa_vmm_conformance::describe;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The maximum size of a large allocation. An allocation must be large, so that a change by another process is not
/// mistaken for the allocation.
const MAX_SIZE: u64 = 256 << 20;
/// The time within which a driver must make freed memory available and close the memory's descriptors. The driver
/// sometimes waits for fences first. After a failed try, the level waits at most this time again for the memory of the
/// failed tries.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// The number of tries. A try can fail because another process uses the GPU.
const TRIES: usize = 3;
/// The number of rounds of the level "descriptors".
const ROUNDS: usize = 4;

/// Returns the size of a large allocation in bytes: an eighth of the available memory, at most [`MAX_SIZE`], rounded
/// down to a multiple of [`Resources::size`]. The level "counted" can lose up to six allocations before it ends.
pub fn large_size(resources: &Resources, available: u64) -> usize {
    let size = usize::try_from(MAX_SIZE.min(available / 8)).unwrap_or(usize::MAX);
    size / resources.size * resources.size
}

/// Checks that the available memory of a GPU is plausible: not 0, and at most the size of its pool. Returns the number
/// of available bytes. `None` if the runtime does not report this number.
pub fn check_available(hsa: &Hsa<'_>, gpu: &Agent, pool_size: u64) -> Result<Option<u64>> {
    if pool_size == 0 {
        return Err(hsa.recorder.fail_in(POOL_INFO, "the size of the pool is 0"));
    }
    match hsa.try_available_memory(gpu) {
        Some(0) => Err(fail_available(hsa, gpu, "no memory is available", 0, pool_size)),
        Some(available) => check_exists(hsa, gpu, available, pool_size).map(Some),
        None => Ok(None),
    }
}

/// Checks that no more memory is available than exists. Returns the number of available bytes.
fn check_exists(hsa: &Hsa<'_>, gpu: &Agent, available: u64, pool_size: u64) -> Result<u64> {
    match available > pool_size {
        true => {
            let what = "more memory is available than exists";
            Err(fail_available(hsa, gpu, what, available, pool_size))
        }
        false => Ok(available),
    }
}

fn fail_available(
    hsa: &Hsa<'_>,
    gpu: &Agent,
    what: &str,
    available: u64,
    pool_size: u64,
) -> AlreadyReported {
    let gpu = &gpu.c_expression;
    let message =
        format!("{what}: {available} bytes are available of a pool of {pool_size}, on {gpu}");
    hsa.recorder.fail_in(AGENT_INFO, message)
}

/// Allocates and frees memory. Checks that an allocation reduces the available memory by about its size, and that freed
/// memory becomes available again.
pub fn check_counted(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let gpu = &resources.gpus[0];
    let pool_size = hsa.pool_info(&resources.pool)?.size as u64;
    let Some(available) = check_available(hsa, gpu, pool_size)? else {
        return Err(hsa.recorder.skip("the runtime does not know the available memory"));
    };
    let size = large_size(resources, available);
    if size == 0 {
        let message = format!("only {available} bytes are available of a pool of {pool_size}");
        return Err(hsa.recorder.fail_in(AGENT_INFO, message));
    }
    let mut facts = vec![format!("{} taken and returned", describe::format_size(size))];
    for (call, allocated) in [
        (RELEASE, Allocated::Handle),
        ("hsa_amd_vmem_unmap", Allocated::MappedHandle),
        ("hsa_amd_memory_pool_free", Allocated::PoolMemory),
    ] {
        let Loss { lost, is_repeated, other, va } =
            allocate_and_free(hsa, resources, (size, pool_size), allocated)?;
        facts.extend(other);
        if lost > size as u64 / 2 {
            let action = match allocated {
                Allocated::Handle => "released",
                Allocated::MappedHandle => "mapped, unmapped and released",
                Allocated::PoolMemory => "freed",
            };
            let mut message =
                format!("{lost} bytes are missing after {size} were allocated and {action}");
            let is_mapped = matches!(allocated, Allocated::MappedHandle);
            // Some releases return the memory only when the addresses are freed.
            return Err(match va.filter(|va| hsa.free_again(va, size)) {
                Some(_) => {
                    let why = "; the addresses could be freed again, so they were not freed before";
                    hsa.recorder.fail_in(FREE, message + why)
                }
                None if is_mapped && loses_unmapped_memory(hsa, resources, (size, pool_size)) => {
                    let why = "; afterwards, memory without a mapping is missing, too";
                    hsa.recorder.fail_in(RELEASE, message + why)
                }
                None if is_repeated => hsa.recorder.fail_in(call, message),
                None => {
                    message += "; the last repetition of the same calls lost nothing; the cause is this call";
                    if is_mapped {
                        message += &format!(" or {RELEASE}");
                    }
                    message += " unless another process has allocated this memory meanwhile";
                    hsa.recorder.fail_in(call, message)
                }
            });
        }
    }
    hsa.recorder.record_fact(facts.join("; "));
    Ok(())
}

/// Returns whether memory that was never mapped is missing after its release. Returns `false` if this cannot be tested,
/// for example because too little memory is left.
fn loses_unmapped_memory(hsa: &Hsa<'_>, resources: &Resources, sizes: (usize, u64)) -> bool {
    allocate_and_free(hsa, resources, sizes, Allocated::Handle)
        .is_ok_and(|loss| loss.lost > sizes.0 as u64 / 2)
}

/// The memory that is allocated and freed.
#[derive(Clone, Copy, Debug)]
enum Allocated {
    /// A handle that is not mapped.
    Handle,
    /// A handle that was mapped for a GPU.
    MappedHandle,
    PoolMemory,
}

/// The memory that is missing after rounds of allocating and freeing memory.
struct Loss {
    /// The number of bytes that are missing after the last round. If this round has lost nothing, the number of bytes
    /// that earlier rounds have lost, provided that it is about the size of their memory.
    lost: u64,
    /// Whether the last round has lost memory, too.
    is_repeated: bool,
    /// Describes a round that was repeated, if another process can be the reason.
    other: Option<String>,
    /// The addresses that the first round has freed, if the memory was mapped.
    va: Option<Address>,
}

/// Returns whether a change of the available memory is an allocation of `size` bytes, with a tolerance of a quarter.
fn is_about(change: u64, size: u64) -> bool {
    change.abs_diff(size) <= size / 4
}

/// Waits until `expected` bytes are available, with a tolerance of half an allocation. Returns the number of bytes that
/// are missing at the end of this wait.
fn wait_for_memory(
    hsa: &Hsa<'_>,
    gpu: &Agent,
    expected: u64,
    (size, pool_size): (usize, u64),
    limit: Duration,
) -> Result<u64> {
    let began = Instant::now();
    loop {
        let available = check_exists(hsa, gpu, hsa.available_memory(gpu)?, pool_size)?;
        let missing = expected.saturating_sub(available);
        if missing <= size as u64 / 2 || began.elapsed() > limit {
            return Ok(missing);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Allocates and frees memory. Repeats this if memory is missing afterwards, because another process can have allocated
/// it. Also checks that a handle reduces the available memory by its size, and that no more memory is available than
/// exists.
fn allocate_and_free(
    hsa: &Hsa<'_>,
    resources: &Resources,
    (size, pool_size): (usize, u64),
    allocated: Allocated,
) -> Result<Loss> {
    let gpu = &resources.gpus[0];
    let mut loss = Loss { lost: 0, is_repeated: true, other: None, va: None };
    let (mut at_start, mut taken) = (None, size as u64);
    let available = || check_exists(hsa, gpu, hsa.available_memory(gpu)?, pool_size);
    for failed_rounds in 0..TRIES as u64 {
        let before = available()?;
        let at_start = *at_start.get_or_insert(before);
        match allocated {
            Allocated::Handle => {
                let memory = hsa.create(&resources.pool, size, "memory")?;
                taken = before.saturating_sub(available()?);
                hsa.release(&memory)?;
                if !is_about(taken, size as u64) {
                    loss.other = Some(format!("an earlier try seemed to take {taken} bytes"));
                    continue;
                }
            }
            Allocated::MappedHandle => {
                let memory = hsa.create(&resources.pool, size, "memory")?;
                let va = hsa.reserve(size, "va")?;
                hsa.map(&va, size, &memory)?;
                hsa.grant(&va, size, &[gpu])?;
                hsa.unmap(&va, size)?;
                hsa.release(&memory)?;
                hsa.free(&va, size)?;
                loss.va.get_or_insert(va);
            }
            Allocated::PoolMemory => {
                let memory = hsa.allocate(&resources.pool, size, "pool_memory")?;
                hsa.pool_free(&memory)?;
            }
        }
        loss.lost =
            wait_for_memory(hsa, gpu, before, (size, pool_size), RELEASE_LIMIT / TRIES as u32)?;
        if loss.lost > size as u64 / 2 {
            continue;
        }
        if failed_rounds > 0 {
            let lost = wait_for_memory(hsa, gpu, at_start, (size, pool_size), RELEASE_LIMIT)?;
            // Another process hardly allocates memory of this size.
            if (1..=failed_rounds).any(|rounds| is_about(lost, size as u64 * rounds)) {
                (loss.lost, loss.is_repeated) = (lost, false);
            } else if lost > size as u64 / 2 {
                let other = "bytes were lost before the last repetition of the calls, none in it";
                loss.other = Some(format!("{lost} {other}"));
            }
        }
        return Ok(loss);
    }
    if !is_about(taken, size as u64) {
        let message =
            format!("an allocation of {size} bytes took {taken} bytes of the available memory");
        return Err(hsa.recorder.fail_in(AGENT_INFO, message));
    }
    Ok(loss)
}

/// A step of a round that must leave no descriptor open.
type Step<'a> = dyn Fn(&Address, &Handle) -> Result<()> + 'a;

/// Checks that no call leaves descriptors open. Counts the open descriptors before and after several rounds.
pub fn check_descriptors(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size) = (&resources.gpus[0], resources.size);
    let nothing = |_: &Address, _: &Handle| Ok(());
    let export = |_: &Address, memory: &Handle| hsa.close(hsa.export(memory)?);
    let grant = |va: &Address, _: &Handle| hsa.grant(va, size, &[gpu]);
    let steps: [(&str, &Step<'_>); 3] = [
        ("hsa_amd_vmem_map", &nothing),
        ("hsa_amd_vmem_export_shareable_handle", &export),
        ("hsa_amd_vmem_set_access", &grant),
    ];
    let mut left_open = Vec::new();
    for (call, step) in steps {
        let round = || {
            let va = hsa.reserve(size, "va")?;
            let memory = hsa.create(&resources.pool, size, "memory")?;
            hsa.map(&va, size, &memory)?;
            step(&va, &memory)?;
            hsa.unmap(&va, size)?;
            hsa.release(&memory)?;
            hsa.free(&va, size)
        };
        let at_start = record_descriptors(hsa);
        round()?;
        // The first round can open files that stay open.
        let before = count_descriptors(hsa, at_start);
        if before > at_start {
            left_open.push(format!("{} by the first round with {call}", before - at_start));
        }
        (0..ROUNDS).try_for_each(|_| round())?;
        let leaked = count_descriptors(hsa, before).saturating_sub(before);
        if leaked > 0 {
            let plural = if leaked == 1 { "" } else { "s" };
            let message =
                format!("{ROUNDS} rounds with this call left {leaked} descriptor{plural} open");
            return Err(hsa.recorder.fail_in(call, message));
        }
    }
    hsa.recorder.record_fact(match &left_open[..] {
        [] => "none is left open".to_owned(),
        _ => format!("left open: {}; none by {ROUNDS} more", left_open.join(", ")),
    });
    Ok(())
}

/// Waits until at most `expected` descriptors are open, because a driver can close descriptors later, together with the
/// memory. Then counts the descriptors.
fn count_descriptors(hsa: &Hsa<'_>, expected: usize) -> usize {
    let began = Instant::now();
    while open_descriptors() > expected && began.elapsed() < RELEASE_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    record_descriptors(hsa)
}

/// Counts the open descriptors in a step that the C program repeats.
fn record_descriptors(hsa: &Hsa<'_>) -> usize {
    let c_statement = Some("print_descriptors();".to_owned());
    let count = || {
        let count = open_descriptors();
        let output = Argument { name: "count".to_owned(), value: count.to_string() };
        (count, None, vec![output])
    };
    hsa.recorder.record("count_descriptors", &[], c_statement, count).1
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
