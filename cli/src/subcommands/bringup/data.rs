//! Data that GPUs and the CPU write and read: the levels "data", "sdma", "blit" and "at-once".

use super::hsa::{Address, Agent, COPY, Difference, FILL, Hsa, Named, wrong_data};
use super::recorder::AlreadyReported;
use super::run_level::{Resources, with_mapping};
use hsa_sys as sys;
use std::time::Duration;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the consecutive numbers that the GPU writes.
const BY_GPU: u32 = 0xda7a_0001;
/// The first of the consecutive numbers that the CPU writes.
const BY_CPU: u32 = 0xda7b_0001;
/// The number that the GPU fills memory with.
const FILLED: u32 = 0x5a5a_0001;
/// The first of the consecutive numbers in the host memory before a GPU copies to it. These numbers show which words the
/// copies have not written.
const NOT_COPIED: u32 = 0xc09e_0001;
/// The time within which a late mapping or a late copy takes effect.
const LATE_LIMIT: Duration = Duration::from_millis(500);
/// How messages describe copies whose data arrives after their signal.
pub const LATE_COPY: &str = "end only some time after their signal";
/// How messages describe a mapping that took effect after the call that granted access.
pub const LATE_MAPPING: &str = "only some time after the call returned";
/// How messages describe memory whose data only the GPU reads correctly.
pub const DIFFERENT_VIEWS: &str = "see different memory at one address";
/// How messages describe memory that was filled after the call of the fill.
pub const LATE_FILL: &str = "memory was filled only some time after the fill had returned";
/// How messages describe a copy with wrong data, if the same copy is right when it is repeated.
pub const LATER_RIGHT: &str = "a second copy is right";
/// How messages name the copy that can be the cause instead of a late mapping.
pub const FIRST_COPY: &str = "first copy";
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
/// The function that grants access.
pub const GRANT: &str = "hsa_amd_vmem_set_access";

/// CPU memory that the GPUs can access, and the signal for copies to and from the memory.
#[derive(Debug)]
pub struct HostBuffer<'a> {
    hsa: &'a Hsa<'a>,
    size: Named<usize>,
    memory: Address,
    signal: Named<sys::hsa_signal_t>,
}

/// Allocates [`Resources::size`] bytes of CPU memory, calls `then`, and frees the memory.
pub fn with_host(
    hsa: &Hsa<'_>,
    resources: &Resources,
    then: impl FnOnce(&HostBuffer<'_>) -> Result<()>,
) -> Result<()> {
    let Some(pool) = &resources.host_pool else {
        return Err(hsa.recorder.fail("the CPU's pool was not looked up"));
    };
    let memory = hsa.allocate(pool, resources.size, "host")?;
    hsa.allow_access(&memory, &resources.gpus.iter().collect::<Vec<_>>())?;
    let size = Named::new("size", resources.size);
    let host = HostBuffer { hsa, size, memory, signal: hsa.create_signal()? };
    then(&host)?;
    hsa.destroy_signal(&host.signal)?;
    hsa.pool_free(&host.memory)
}

/// Returns the address `offset` bytes after `start`. The C expression contains the offset even if it is 0, so that it
/// identifies copies of parts.
fn offset_address(start: &Address, offset: usize) -> Address {
    Named::new(format!("(char *){} + {offset:#x}", start.c_expression), start.value + offset)
}

impl HostBuffer<'_> {
    /// Fills the host memory with consecutive numbers from `first`, and has a GPU copy them to `va`.
    pub fn write_by(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.hsa.fill(&self.memory, self.size.value, first);
        self.copy(va, &self.memory, gpu)
    }

    fn copy(&self, to: &Address, from: &Address, gpu: &Agent) -> Result<()> {
        self.hsa.copy(to, from, &self.size, gpu, &self.signal)
    }

    /// Has a GPU copy `va` to the host memory, and checks for the consecutive numbers from `first` that `writer` wrote.
    pub fn read_by(&self, gpu: &Agent, va: &Address, first: u32, writer: &str) -> Result<()> {
        let Some(difference) = self.difference(gpu, va, first)? else { return Ok(()) };
        let what = match self.wrong_copy(gpu, va, &self.size, first, &difference)? {
            Some((COPY, what)) => what,
            _ => format!("{} copied wrong data from {}", gpu.c_expression, va.c_expression),
        };
        let message = wrong_data(what, writer, self.hsa.describe_copier(gpu), &difference);
        Err(self.hsa.recorder.fail_in(COPY, message))
    }

    /// Does the same as [`Self::read_by`], for the first access through `va` to memory that was read before at another
    /// address. If the first copy has read other contents, and a second copy is right, the mapping took effect late. If
    /// a second copy is wrong, too, `cause` is the function that is the cause, and the description of the failure.
    pub fn read_first(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        writer: &str,
        cause: (&'static str, String),
    ) -> Result<()> {
        let Some(difference) = self.difference(gpu, va, first)? else { return Ok(()) };
        let wrong = self.wrong_copy(gpu, va, &self.size, first, &difference)?;
        let (call, what) = wrong.unwrap_or(cause);
        let message = wrong_data(what, writer, self.hsa.describe_copier(gpu), &difference);
        Err(self.hsa.recorder.fail_in(call, message))
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`, and read them back.
    pub fn write_and_read(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.write_by(gpu, va, first)?;
        self.verify(gpu, va, first)
    }

    /// Checks that `va` still contains the consecutive numbers from `first` that a GPU has written and read before. If
    /// numbers are wrong, reads them again. If only one copy is wrong, the copy is the cause. Otherwise `cause` returns
    /// the function that is the cause, and describes the failure.
    pub fn check_kept(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        cause: impl FnOnce() -> Result<(&'static str, String)>,
    ) -> Result<()> {
        self.check_part_kept(gpu, va, &self.size, first, cause)
    }

    /// Does the same as [`Self::check_kept`], but for the first `size` bytes of `va`.
    pub fn check_part_kept(
        &self,
        gpu: &Agent,
        va: &Address,
        size: &Named<usize>,
        first: u32,
        cause: impl FnOnce() -> Result<(&'static str, String)>,
    ) -> Result<()> {
        let Some(difference) = self.difference_in(gpu, va, size, first)? else { return Ok(()) };
        let (call, what) = match self.wrong_copy(gpu, va, size, first, &difference)? {
            Some((COPY, what)) => (COPY, what),
            _ => cause()?,
        };
        let copier = self.hsa.describe_copier(gpu);
        Err(self.hsa.recorder.fail_in(call, wrong_data(what, &copier, &copier, &difference)))
    }

    /// Checks the numbers that a GPU wrote to `va`. If numbers are wrong, writes and checks again after
    /// [`LATE_LIMIT`]. If whole pages were wrong and are then right, the mapping took effect late, or the copy that
    /// wrote them was lost or late.
    fn verify(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        let Some(difference) = self.difference(gpu, va, first)? else { return Ok(()) };
        std::thread::sleep(LATE_LIMIT);
        let is_late = self.hsa.difference(&self.memory, &self.size, first, 1).is_none();
        self.hsa.recorder.repeat_check();
        self.write_by(gpu, va, first)?;
        let (gpu_in_c, va_in_c) = (&gpu.c_expression, &va.c_expression);
        let can_be_late_mapping =
            difference.covers_whole_pages() && difference.can_be_old_contents(NOT_COPIED);
        let (call, what) = match self.difference(gpu, va, first)? {
            _ if is_late => (COPY, late_copy(gpu, va)),
            None if can_be_late_mapping => (GRANT, late_mapping_or_copy(gpu, va)),
            None => {
                (COPY, format!("{gpu_in_c} copied wrong data to or from {va_in_c}; {LATER_RIGHT}"))
            }
            Some(_) if self.copies_late(gpu, va, first)? => (COPY, late_copy(gpu, va)),
            Some(_) => (COPY, format!("{gpu_in_c} copied wrong data from {va_in_c}")),
        };
        let copier = self.hsa.describe_copier(gpu);
        Err(self.hsa.recorder.fail_in(call, wrong_data(what, &copier, &copier, &difference)))
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`, and copy them to the host memory. Compares
    /// the host memory twice: at once, and after [`LATE_LIMIT`]. Returns whether only the second comparison succeeds:
    /// the copy has then ended after its signal.
    fn copies_late(&self, gpu: &Agent, va: &Address, first: u32) -> Result<bool> {
        // Earlier copies can also end late. Wait for them, so that they do not change the memory during the check.
        std::thread::sleep(LATE_LIMIT);
        self.write_by(gpu, va, first)?;
        std::thread::sleep(LATE_LIMIT);
        if self.difference(gpu, va, first)?.is_none() {
            return Ok(false);
        }
        std::thread::sleep(LATE_LIMIT);
        Ok(self.hsa.difference(&self.memory, &self.size, first, 1).is_none())
    }

    /// Has a GPU copy `va` to the host memory. Returns the difference from consecutive numbers that begin with `first`,
    /// if there is one.
    pub fn difference(&self, gpu: &Agent, va: &Address, first: u32) -> Result<Option<Difference>> {
        self.difference_in(gpu, va, &self.size, first)
    }

    /// Does the same as [`Self::difference`], but for the first `size` bytes of `va`.
    fn difference_in(
        &self,
        gpu: &Agent,
        va: &Address,
        size: &Named<usize>,
        first: u32,
    ) -> Result<Option<Difference>> {
        self.hsa.fill(&self.memory, self.size.value, NOT_COPIED);
        self.hsa.copy(&self.memory, va, size, gpu, &self.signal)?;
        Ok(self.hsa.difference(&self.memory, size, first, 1))
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`. Returns whether the GPU faults.
    pub fn write_faults(&self, gpu: &Agent, va: &Address, first: u32) -> Result<bool> {
        self.hsa.fill(&self.memory, self.size.value, first);
        self.hsa.copy_faults(va, &self.memory, &self.size, gpu, &self.signal)
    }

    /// Does the same as [`Self::difference`], with one copy for each quarter of the memory. If a GPU garbles the start
    /// of each copy, for example flips a bit there, a single copy from the same start would flip the bit back. Copies
    /// that start elsewhere show the error. The numbers increase by `step`.
    fn difference_by_parts(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        step: u32,
    ) -> Result<Option<Difference>> {
        self.hsa.fill(&self.memory, self.size.value, NOT_COPIED);
        let part = Named::new("size / 4", self.part_size());
        for offset in (0..self.size.value).step_by(part.value) {
            let (to, from) = (offset_address(&self.memory, offset), offset_address(va, offset));
            self.hsa.copy(&to, &from, &part, gpu, &self.signal)?;
        }
        Ok(self.hsa.difference(&self.memory, &self.size, first, step))
    }

    fn part_size(&self) -> usize {
        self.size.value / 4
    }

    /// Records that one of the copies of [`Self::difference_by_parts`] is the cause: the copy that wrote the first word
    /// that differs.
    fn fail_in_part(&self, difference: &Difference, message: String) -> AlreadyReported {
        let offset = difference.offset() / self.part_size() * self.part_size();
        let to = offset_address(&self.memory, offset);
        self.hsa.recorder.fail_in_call_on(COPY, &to.c_expression, message)
    }

    /// Checks again after [`Self::difference_in`] has returned a difference. If a second copy is wrong, too, returns
    /// `None`. Otherwise returns the function that is the cause, and describes the failure. The cause is the copy, or,
    /// if the copy has read other contents, the call that granted access: the mapping took effect late.
    pub fn wrong_copy(
        &self,
        gpu: &Agent,
        va: &Address,
        size: &Named<usize>,
        first: u32,
        difference: &Difference,
    ) -> Result<Option<(&'static str, String)>> {
        let copy_again = || self.difference_in(gpu, va, size, first);
        Ok(match self.check_again(size, (first, 1), difference, copy_again)? {
            SecondCheck::Late => Some((COPY, late_copy(gpu, va))),
            SecondCheck::Right => Some((COPY, single_wrong_copy(gpu, va))),
            SecondCheck::OldContents => Some((GRANT, late_mapping(gpu, va))),
            SecondCheck::Wrong => None,
        })
    }

    /// Checks again after a copy to the host memory has returned a difference from numbers that begin with `first` and
    /// increase by `step`. Waits for [`LATE_LIMIT`], and compares the host memory again. If the data is still wrong,
    /// calls `copy_again`.
    fn check_again(
        &self,
        size: &Named<usize>,
        (first, step): (u32, u32),
        difference: &Difference,
        copy_again: impl FnOnce() -> Result<Option<Difference>>,
    ) -> Result<SecondCheck> {
        std::thread::sleep(LATE_LIMIT);
        if self.hsa.difference(&self.memory, size, first, step).is_none() {
            return Ok(SecondCheck::Late);
        }
        self.hsa.recorder.repeat_check();
        Ok(match copy_again()? {
            Some(_) => SecondCheck::Wrong,
            None if difference.can_be_old_contents(NOT_COPIED) => SecondCheck::OldContents,
            None => SecondCheck::Right,
        })
    }
}

/// The result of a second check, after a copy's data was wrong.
#[derive(Clone, Copy, Debug)]
enum SecondCheck {
    /// The first copy's data has become right: the copy ended after its signal.
    Late,
    /// The data of a second copy is right. The first copy has an error.
    Right,
    /// The data of a second copy is right. The first copy has copied other contents: the memory, or its mapping, has
    /// changed since.
    OldContents,
    /// The data of a second copy is wrong, too.
    Wrong,
}

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
                if let Some(difference) = host.difference_by_parts(gpu, va, BY_CPU, 1)? {
                    let again = || host.difference_by_parts(gpu, va, BY_CPU, 1);
                    let check = host.check_again(&host.size, (BY_CPU, 1), &difference, again)?;
                    let (call, what) = match check {
                        SecondCheck::Late => (COPY, late_copy(gpu, va)),
                        SecondCheck::Right => (COPY, single_wrong_copy(gpu, va)),
                        SecondCheck::OldContents | SecondCheck::Wrong => {
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
        hsa.fill(&host.memory, host.size.value, NOT_COPIED);
        hsa.fill_by_gpu(&filled, resources.size, number)?;
        host.copy(&host.memory, &filled, gpu)?;
        let Some(difference) = hsa.difference(&host.memory, &host.size, number, 0) else {
            continue;
        };
        let again = || host.difference_by_parts(gpu, &filled, number, 0);
        let (call, what) = match host.check_again(&host.size, (number, 0), &difference, again)? {
            SecondCheck::Late => (COPY, late_copy(gpu, &filled)),
            SecondCheck::OldContents => (FILL, LATE_FILL.to_owned()),
            SecondCheck::Right => (COPY, single_wrong_copy(gpu, &filled)),
            SecondCheck::Wrong => (FILL, "memory was not filled".to_owned()),
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
    let by_gpu = host.difference_by_parts(gpu, va, BY_GPU, 1)?;
    // If both the CPU and the GPU read wrong data, the GPU has written wrong data.
    let is_write = by_cpu.is_some() && by_gpu.is_some();
    let can_be_late_mapping = by_cpu.is_some_and(|it| it.affects_half_a_page())
        // If the CPU reads the GPU's data, the mapping was in effect when the GPU wrote.
        || (by_cpu.is_some() || !cpu_has_access)
            && by_gpu
                .is_some_and(|it| it.covers_whole_pages() && it.can_be_old_contents(NOT_COPIED));
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
            let what = format!("{} copied wrong data from {}", gpu.c_expression, va.c_expression);
            (COPY, what, hsa.describe_copier(gpu), difference)
        }
    };
    Ok(Some(WrongView { call, is_write, what, reader, difference, can_be_late_mapping }))
}

/// Describes a mapping that took effect after the call that granted access.
fn late_mapping(gpu: &Agent, va: &Address) -> String {
    format!("{} sees the mapping of {} {LATE_MAPPING}", gpu.c_expression, va.c_expression)
}

/// Describes data that a GPU wrote immediately after the grant, and that was missing: a late mapping and a lost copy
/// have the same effect.
fn late_mapping_or_copy(gpu: &Agent, va: &Address) -> String {
    let late = late_mapping(gpu, va);
    format!("{late}, or the {FIRST_COPY} to {} was lost or late", va.c_expression)
}

/// Describes copies whose data arrives after their signal.
fn late_copy(gpu: &Agent, va: &Address) -> String {
    format!("{}'s copies to and from {} {LATE_COPY}", gpu.c_expression, va.c_expression)
}

/// Describes a copy with wrong data, after which a second copy of the same memory was right.
fn single_wrong_copy(gpu: &Agent, va: &Address) -> String {
    let (gpu, va) = (&gpu.c_expression, &va.c_expression);
    format!("{gpu} copied wrong data from {va}; {LATER_RIGHT}")
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
