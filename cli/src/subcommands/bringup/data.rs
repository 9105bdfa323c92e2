//! Data that GPUs and the CPU write and read: the levels "data", "sdma", "blit" and "at-once".

use super::host_buffer::{
    GRANT, HostBuffer, LATE_LIMIT, LATER_RIGHT, SecondCheck, late_copy, late_mapping_or_copy,
    single_wrong_copy, with_host, wrong_copy,
};
use super::hsa::{Address, Agent, COPY, Difference, FILL, Hsa, wrong_data};
use super::recorder::AlreadyReported;
use super::run_level::{Resources, with_mapping};

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the consecutive numbers that the GPU writes.
const BY_GPU: u32 = 0xda7a_0001;
/// The first of the consecutive numbers that the CPU writes.
const BY_CPU: u32 = 0xda7b_0001;
/// The number that the GPU fills memory with.
const FILLED: u32 = 0x5a5a_0001;
/// How messages describe memory whose data only the GPU reads correctly.
pub const DIFFERENT_VIEWS: &str = "see different memory at one address";
/// How messages describe memory that was filled after the call of the fill.
pub const LATE_FILL: &str = "memory was filled only some time after the fill had returned";
/// How messages describe memory that a GPU no longer accesses after a grant to another GPU.
pub const MOVED: &str = "no longer accesses its memory";
/// How messages describe memory whose contents are wrong after a grant to another GPU.
pub const DAMAGED: &str = "finds damaged contents in its memory";
/// The first of the numbers in the first round of "at-once".
const AT_ONCE: u32 = 0xa700_0001;
/// The number of rounds of "at-once".
const ROUNDS: u32 = 8;
/// The number of fills in the level "blit".
const FILL_ROUNDS: u32 = 7;

/// Checks that a GPU and the CPU read each other's writes. If the CPU cannot access the memory, checks only that the
/// GPU reads its own writes. With `with_fill`, also checks fills by the GPU.
pub fn check_data(hsa: &Hsa<'_>, resources: &Resources, with_fill: bool) -> Result<()> {
    let (cpu, gpu) = (&resources.cpu, &resources.gpus[0]);
    let cpu_has_access = hsa.can_access(cpu, &resources.pool)?;
    with_mapping(hsa, resources, |va, _| {
        // Name the GPU last: some releases ignore the agents that are named after the owner.
        let agents = if cpu_has_access { vec![cpu, gpu] } else { vec![gpu] };
        hsa.grant(va, resources.size, &agents)?;
        with_host(hsa, resources, |host| {
            host.write_by(gpu, va, BY_GPU)?;
            if let Some(found) = compare_views(hsa, host, (gpu, va), cpu_has_access)? {
                std::thread::sleep(LATE_LIMIT);
                hsa.recorder.repeat_check();
                host.write_by(gpu, va, BY_GPU)?;
                let second = compare_views(hsa, host, (gpu, va), cpu_has_access)?;
                let is_late = found.can_be_late_mapping && second.is_none();
                let (call, what) = match found.call {
                    _ if is_late => (GRANT, late_mapping_or_copy(gpu, va)),
                    COPY if host.copies_late(gpu, va, BY_GPU)? => (COPY, late_copy(gpu, va)),
                    COPY if second.is_none() => (COPY, format!("{}; {LATER_RIGHT}", found.what)),
                    _ => (found.call, found.what),
                };
                let message =
                    wrong_data(what, hsa.describe_copier(gpu), found.reader, &found.difference);
                return Err(match (call, found.is_write) {
                    (COPY, true) => hsa.recorder.fail_in_call_on(COPY, &va.c_expression, message),
                    (COPY, false) => host.fail_in_part(&found.difference, message),
                    _ => hsa.recorder.fail_in(call, message),
                });
            }
            if cpu_has_access {
                hsa.fill(va, resources.size, BY_CPU);
                let difference = host.difference_by_parts(gpu, va, &host.size, (BY_CPU, 1))?;
                if let Some(difference) = difference {
                    let again = || host.difference(gpu, va, BY_CPU);
                    let check = host.check_again(&host.size, (BY_CPU, 1), &difference, again)?;
                    let (call, what) = match check {
                        SecondCheck::Late => (COPY, late_copy(gpu, va)),
                        SecondCheck::Right => (COPY, single_wrong_copy(gpu, va)),
                        SecondCheck::WrongCopies => (COPY, wrong_copy(gpu, va)),
                        SecondCheck::LateContents | SecondCheck::OtherContents => {
                            let gpu = &gpu.c_expression;
                            (GRANT, format!("{gpu} does not read what the CPU wrote"))
                        }
                    };
                    let message =
                        wrong_data(what, "the CPU", hsa.describe_copier(gpu), &difference);
                    return Err(match call {
                        COPY => host.fail_in_part(&difference, message),
                        _ => hsa.recorder.fail_in(call, message),
                    });
                }
            }
            if with_fill { check_fill(hsa, resources, host) } else { Ok(()) }
        })
    })?;
    let views = if cpu_has_access { "GPU and CPU agree" } else { "by the GPU alone: no large BAR" };
    hsa.recorder.record_fact(format!("4 granules: {views}"));
    Ok(())
}

/// Has a GPU fill pool memory in several rounds, and checks the numbers. Before ROCm 7, a GPU cannot fill memory of
/// handles. A late fill is found in a round in which the memory is copied before the fill ends. On a busy machine, the
/// copy can start later, but hardly in all rounds.
fn check_fill(hsa: &Hsa<'_>, resources: &Resources, host: &HostBuffer<'_>) -> Result<()> {
    let gpu = &resources.gpus[0];
    let filled = hsa.allocate(&resources.pool, resources.size, "pool_memory")?;
    for number in FILLED..FILLED + FILL_ROUNDS {
        // Prepare the destination before the fill, so that the copy starts immediately after the fill.
        host.prepare();
        hsa.fill_by_gpu(&filled, resources.size, number)?;
        host.copy(&host.memory, &filled, gpu)?;
        let Some(difference) = host.compare(&host.size, (number, 0)) else { continue };
        let again = || host.difference_by_parts(gpu, &filled, &host.size, (number, 0));
        let (call, what) = match host.check_again(&host.size, (number, 0), &difference, again)? {
            SecondCheck::Late => (COPY, late_copy(gpu, &filled)),
            SecondCheck::Right => (COPY, single_wrong_copy(gpu, &filled)),
            SecondCheck::WrongCopies => (COPY, wrong_copy(gpu, &filled)),
            SecondCheck::LateContents => (FILL, LATE_FILL.to_owned()),
            SecondCheck::OtherContents => (FILL, "memory was not filled".to_owned()),
        };
        let copier = hsa.describe_copier(gpu);
        let message = wrong_data(what, &copier, &copier, &difference);
        return Err(match call {
            // The later copies are of parts.
            COPY => hsa.recorder.fail_in_call_on(COPY, &host.memory.c_expression, message),
            _ => hsa.recorder.fail_in(call, message),
        });
    }
    hsa.pool_free(&filled)
}

/// Wrong data at an address to which a GPU has written, and the call that is the cause.
struct WrongView {
    /// The function that is the cause.
    call: &'static str,
    /// Whether the cause is the copy that wrote the memory, not a copy that read it.
    is_write: bool,
    what: String,
    reader: String,
    difference: Difference,
    /// Whether the CPU or the GPU has read other contents of at least half a page.
    can_be_late_mapping: bool,
}

/// Compares data that a GPU wrote, as read by the CPU (with `cpu_has_access`) and by the GPU. Returns the difference,
/// if there is one.
fn compare_views(
    hsa: &Hsa<'_>,
    host: &HostBuffer<'_>,
    (gpu, va): (&Agent, &Address),
    cpu_has_access: bool,
) -> Result<Option<WrongView>> {
    let by_cpu = cpu_has_access.then(|| hsa.difference(va, &host.size, BY_GPU, 1)).flatten();
    let by_gpu = host.difference_by_parts(gpu, va, &host.size, (BY_GPU, 1))?;
    // If both the CPU and the GPU read wrong data, the GPU has written wrong data.
    let is_write = by_cpu.is_some() && by_gpu.is_some();
    let can_be_late_mapping = by_cpu.is_some_and(|it| it.affects_half_a_page())
        // If the CPU reads the GPU's data, the mapping was in effect when the GPU wrote.
        || (by_cpu.is_some() || !cpu_has_access)
            && by_gpu
                .is_some_and(|it| it.covers_whole_pages() && it.is_of_other_contents());
    let the_cpu = || "the CPU".to_owned();
    let (call, what, reader, difference) = match (by_cpu, by_gpu) {
        (None, None) => return Ok(None),
        (Some(difference), None) => {
            let what = format!("CPU and {} {DIFFERENT_VIEWS}", gpu.c_expression);
            (GRANT, what, format!("the CPU; {} reads the right data", gpu.c_expression), difference)
        }
        (Some(difference), Some(_)) => (
            COPY,
            format!("{} copied wrong data to {}", gpu.c_expression, va.c_expression),
            the_cpu(),
            difference,
        ),
        (None, Some(difference)) => {
            (COPY, wrong_copy(gpu, va), hsa.describe_copier(gpu), difference)
        }
    };
    Ok(Some(WrongView { call, is_write, what, reader, difference, can_be_late_mapping }))
}

/// Has a GPU use memory immediately after each grant. The runtime creates a queue in the first round only, so later
/// rounds have less time between the grant and the use.
pub fn check_at_once(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let gpu = &resources.gpus[0];
    with_host(hsa, resources, |host| {
        for round in 0..ROUNDS {
            let first = AT_ONCE | round << 8;
            hsa.fill(&host.memory, resources.size, first);
            with_mapping(hsa, resources, |va, _| {
                hsa.grant(va, resources.size, &[gpu])?;
                host.copy(va, &host.memory, gpu)?;
                host.verify(gpu, va, first)
            })?;
        }
        Ok(())
    })?;
    hsa.recorder.record_fact(format!("{ROUNDS} rounds"));
    Ok(())
}
