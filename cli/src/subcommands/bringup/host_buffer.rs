//! CPU memory to and from which GPUs copy, and the cause of wrong data in this memory.

use super::hsa::{Address, Agent, COPY, Difference, Hsa, Named, wrong_data};
use super::recorder::AlreadyReported;
use super::run_level::Resources;
use hsa_sys as sys;
use std::time::Duration;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The first of the consecutive numbers in the host memory before a GPU copies to it. These numbers show which words the
/// copies have not written.
const NOT_COPIED: u32 = 0xc09e_0001;
/// The time within which a late mapping or a late copy takes effect.
pub const LATE_LIMIT: Duration = Duration::from_millis(500);
/// How messages describe copies whose data arrives after their signal.
pub const LATE_COPY: &str = "end only some time after their signal";
/// How messages describe a mapping that took effect after the call that granted access.
pub const LATE_MAPPING: &str = "only some time after the call returned";
/// How messages describe a copy with wrong data, if the same copy is right when it is repeated.
pub const LATER_RIGHT: &str = "a second copy is right";
/// How messages name the copy that can be the cause instead of a late mapping.
pub const FIRST_COPY: &str = "first copy";
/// The function that grants access.
pub const GRANT: &str = "hsa_amd_vmem_set_access";

/// CPU memory that the GPUs can access, and the signal for copies to and from the memory.
#[derive(Debug)]
pub struct HostBuffer<'a> {
    hsa: &'a Hsa<'a>,
    pub size: Named<usize>,
    pub memory: Address,
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

    pub fn copy(&self, to: &Address, from: &Address, gpu: &Agent) -> Result<()> {
        self.hsa.copy(to, from, &self.size, gpu, &self.signal)
    }

    /// Has a GPU copy `va` to the host memory, and checks for the consecutive numbers from `first` that `writer` wrote.
    pub fn read_by(&self, gpu: &Agent, va: &Address, first: u32, writer: &str) -> Result<()> {
        let cause = |_| Ok((COPY, wrong_copy(gpu, va)));
        self.check(gpu, va, &self.size, first, writer, cause)
    }

    /// Does the same as [`Self::read_by`], for the first access through `va` to memory that was read before at another
    /// address. If the first copy has read other contents, and a second copy is right, the mapping took effect late. If
    /// a second copy has read other contents, too, `cause` returns the function that is the cause, and describes the
    /// failure.
    pub fn read_first(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        writer: &str,
        cause: impl FnOnce(Difference) -> Result<(&'static str, String)>,
    ) -> Result<()> {
        self.check(gpu, va, &self.size, first, writer, |contents| match contents.is_late {
            true => Ok((GRANT, late_mapping(gpu, va))),
            false => cause(contents.difference),
        })
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`, and read them back.
    pub fn write_and_read(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.write_by(gpu, va, first)?;
        self.verify(gpu, va, first)
    }

    /// Checks that `va` still contains the consecutive numbers from `first` that a GPU has written and read before. If
    /// the GPU has read other contents, `cause` returns the function that is the cause, and describes the failure.
    pub fn check_kept(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        cause: impl FnOnce(OtherContents) -> Result<(&'static str, String)>,
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
        cause: impl FnOnce(OtherContents) -> Result<(&'static str, String)>,
    ) -> Result<()> {
        self.check(gpu, va, size, first, &self.hsa.describe_copier(gpu), cause)
    }

    /// Has a GPU copy the first `size` bytes of `va` to the host memory, and checks for the consecutive numbers from
    /// `first` that `writer` wrote. If numbers are wrong, copies again to find out whether the copies are the cause.
    /// Otherwise, `cause` returns the function that is the cause, and describes the failure.
    fn check(
        &self,
        gpu: &Agent,
        va: &Address,
        size: &Named<usize>,
        first: u32,
        writer: &str,
        cause: impl FnOnce(OtherContents) -> Result<(&'static str, String)>,
    ) -> Result<()> {
        let Some(difference) = self.difference_in(gpu, va, size, first)? else { return Ok(()) };
        let again = || self.difference_by_parts(gpu, va, size, (first, 1));
        let (call, what) = match self.check_again(size, (first, 1), &difference, again)? {
            SecondCheck::Late => (COPY, late_copy(gpu, va)),
            SecondCheck::Right => (COPY, single_wrong_copy(gpu, va)),
            SecondCheck::WrongCopies => (COPY, wrong_copy(gpu, va)),
            SecondCheck::LateContents => cause(OtherContents { difference, is_late: true })?,
            SecondCheck::OtherContents => cause(OtherContents { difference, is_late: false })?,
        };
        let message = wrong_data(what, writer, self.hsa.describe_copier(gpu), &difference);
        Err(self.hsa.recorder.fail_in(call, message))
    }

    /// Checks the numbers that a GPU wrote to `va`. If numbers are wrong, writes and checks again after
    /// [`LATE_LIMIT`]. If whole pages were wrong and are then right, the mapping took effect late, or the copy that
    /// wrote them was lost or late.
    pub fn verify(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        let Some(difference) = self.difference(gpu, va, first)? else { return Ok(()) };
        std::thread::sleep(LATE_LIMIT);
        let is_late = self.hsa.difference(&self.memory, &self.size, first, 1).is_none();
        self.hsa.recorder.repeat_check();
        self.write_by(gpu, va, first)?;
        let (gpu_in_c, va_in_c) = (&gpu.c_expression, &va.c_expression);
        let can_be_late_mapping =
            difference.covers_whole_pages() && difference.is_of_other_contents();
        let (call, what) = match self.difference(gpu, va, first)? {
            _ if is_late => (COPY, late_copy(gpu, va)),
            None if can_be_late_mapping => (GRANT, late_mapping_or_copy(gpu, va)),
            None => {
                (COPY, format!("{gpu_in_c} copied wrong data to or from {va_in_c}; {LATER_RIGHT}"))
            }
            Some(_) if self.copies_late(gpu, va, first)? => (COPY, late_copy(gpu, va)),
            Some(_) => (COPY, wrong_copy(gpu, va)),
        };
        let copier = self.hsa.describe_copier(gpu);
        Err(self.hsa.recorder.fail_in(call, wrong_data(what, &copier, &copier, &difference)))
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`, and copy them to the host memory. Compares
    /// the host memory twice: at once, and after [`LATE_LIMIT`]. Returns whether only the second comparison succeeds:
    /// the copy has then ended after its signal.
    pub fn copies_late(&self, gpu: &Agent, va: &Address, first: u32) -> Result<bool> {
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
        self.prepare();
        self.hsa.copy(&self.memory, va, size, gpu, &self.signal)?;
        Ok(self.compare(size, (first, 1)))
    }

    /// Has a GPU write to `va` consecutive numbers that begin with `first`. Returns whether the GPU faults.
    pub fn write_faults(&self, gpu: &Agent, va: &Address, first: u32) -> Result<bool> {
        self.hsa.fill(&self.memory, self.size.value, first);
        self.hsa.copy_faults(va, &self.memory, &self.size, gpu, &self.signal)
    }

    /// Does the same as [`Self::difference_in`], with one copy for each quarter of the memory. If a GPU garbles the
    /// start of each copy, for example flips a bit there, a single copy from the same start would flip the bit back. Copies
    /// that start elsewhere show the error. The numbers increase by `step`.
    pub fn difference_by_parts(
        &self,
        gpu: &Agent,
        va: &Address,
        size: &Named<usize>,
        (first, step): (u32, u32),
    ) -> Result<Option<Difference>> {
        self.prepare();
        let part = Named::new(format!("{} / 4", size.c_expression), size.value / 4);
        for offset in (0..size.value).step_by(part.value) {
            let (to, from) = (offset_address(&self.memory, offset), offset_address(va, offset));
            self.hsa.copy(&to, &from, &part, gpu, &self.signal)?;
        }
        Ok(self.compare(size, (first, step)))
    }

    /// Fills the host memory with [`NOT_COPIED`], before a GPU copies to it.
    pub fn prepare(&self) {
        self.hsa.fill(&self.memory, self.size.value, NOT_COPIED);
    }

    /// Compares the host memory with numbers that begin with `first` and increase by `step`, after [`Self::prepare`]
    /// and a copy to the memory.
    pub fn compare(&self, size: &Named<usize>, (first, step): (u32, u32)) -> Option<Difference> {
        let difference = self.hsa.difference(&self.memory, size, first, step)?;
        Some(difference.after_copy_to(NOT_COPIED))
    }

    /// Records that one of the copies of [`Self::difference_by_parts`] of the whole memory is the cause: the copy that
    /// wrote the first word that differs.
    pub fn fail_in_part(&self, difference: &Difference, message: String) -> AlreadyReported {
        let part_size = self.size.value / 4;
        let offset = difference.offset() / part_size * part_size;
        let to = offset_address(&self.memory, offset);
        self.hsa.recorder.fail_in_call_on(COPY, &to.c_expression, message)
    }

    /// Checks again after a copy to the host memory has returned a difference from numbers that begin with `first` and
    /// increase by `step`. Waits for [`LATE_LIMIT`], and compares the host memory again. If the data is still wrong,
    /// calls `copy_again`. The second copy must consist of other parts than the first copy: if a GPU garbles the start
    /// of each copy, other words differ then.
    pub fn check_again(
        &self,
        size: &Named<usize>,
        numbers: (u32, u32),
        difference: &Difference,
        copy_again: impl FnOnce() -> Result<Option<Difference>>,
    ) -> Result<SecondCheck> {
        std::thread::sleep(LATE_LIMIT);
        if self.compare(size, numbers).is_none() {
            return Ok(SecondCheck::Late);
        }
        self.hsa.recorder.repeat_check();
        Ok(match copy_again()? {
            None if difference.is_of_other_contents() => SecondCheck::LateContents,
            None => SecondCheck::Right,
            Some(second) if difference.shows_same_contents(&second) => SecondCheck::OtherContents,
            Some(_) => SecondCheck::WrongCopies,
        })
    }
}

/// The result of a second check, after a copy's data was wrong.
#[derive(Clone, Copy, Debug)]
pub enum SecondCheck {
    /// The first copy's data has become right: the copy ended after its signal.
    Late,
    /// The data of a second copy is right. The first copy has an error.
    Right,
    /// The data of a second copy is right. The first copy has copied other contents: the memory, or its mapping, has
    /// changed since.
    LateContents,
    /// The first copy has not written its destination, or a second copy has other wrong words. The copies have errors.
    WrongCopies,
    /// Both copies have copied the same other contents.
    OtherContents,
}

/// Contents that a GPU has read instead of the expected numbers, although it copies rightly.
#[derive(Clone, Copy, Debug)]
pub struct OtherContents {
    pub difference: Difference,
    /// Whether a second copy, [`LATE_LIMIT`] later, is right: the memory, or its mapping, has changed since.
    pub is_late: bool,
}

/// Describes a mapping that took effect after the call that granted access.
fn late_mapping(gpu: &Agent, va: &Address) -> String {
    format!("{} sees the mapping of {} {LATE_MAPPING}", gpu.c_expression, va.c_expression)
}

/// Describes data that a GPU wrote immediately after the grant, and that was missing: a late mapping and a lost copy
/// have the same effect.
pub fn late_mapping_or_copy(gpu: &Agent, va: &Address) -> String {
    let late = late_mapping(gpu, va);
    format!("{late}, or the {FIRST_COPY} to {} was lost or late", va.c_expression)
}

/// Describes copies whose data arrives after their signal.
pub fn late_copy(gpu: &Agent, va: &Address) -> String {
    format!("{}'s copies to and from {} {LATE_COPY}", gpu.c_expression, va.c_expression)
}

/// Describes a copy with wrong data.
pub fn wrong_copy(gpu: &Agent, va: &Address) -> String {
    format!("{} copied wrong data from {}", gpu.c_expression, va.c_expression)
}

/// Describes a copy with wrong data, after which a second copy of the same memory was right.
pub fn single_wrong_copy(gpu: &Agent, va: &Address) -> String {
    format!("{}; {LATER_RIGHT}", wrong_copy(gpu, va))
}
