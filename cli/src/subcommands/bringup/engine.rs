//! Advice about the GPU's engines: operations that fail or do not end, and copies in a wait that hangs.

use super::host_buffer::LATER_RIGHT;
use super::hsa::{NOT_WRITTEN, OTHER_CONTENTS, SDMA};
use super::level::Level;
use super::record::StuckCopy;
use super::requests::{call_and_error, is_unfinished, returned_error};
use super::supervisor::LevelRun;

/// Returns the operation of an engine in a line of the emulated driver's log: `COPY` or `FILL`. Returns `None` for
/// requests to the driver.
pub fn operation(line: &str) -> Option<&str> {
    let mut words = line.split(' ').skip(2);
    words.next().filter(|device| *device == "engine").and(words.next())
}

/// An operation that failed in an engine of the emulated GPU. A page fault is not an error of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineError<'a> {
    /// `COPY` or `FILL`.
    operation: &'a str,
    error: &'a str,
}

impl<'a> EngineError<'a> {
    /// Finds the first error in lines of the emulated driver's log.
    pub fn find(mut lines: impl Iterator<Item = &'a str>) -> Option<Self> {
        lines.find_map(|line| {
            let operation = operation(line)?;
            let is_error = returned_error(line) && !is_unfinished(line);
            is_error.then(|| Self { operation, error: call_and_error(line).1 })
        })
    }

    /// Describes the error in one sentence.
    pub fn describe(self) -> String {
        let Self { operation, error } = self;
        format!("the GPU's engine reported {error} for a {operation}")
    }

    /// Returns the advice for this error in a level.
    pub fn advise(self, level: Level) -> String {
        format!(
            "{}: suspect the GPU's engine first ({}), not the page table. The runtime reports each error of an engine \
             as a memory access fault",
            self.describe(),
            engines(level)
        )
    }
}

impl LevelRun {
    /// Returns whether an engine has begun a copy or fill that has not ended. Returns `None` if the driver is not
    /// emulated.
    pub fn has_unfinished_operation(&self) -> Option<bool> {
        let mut lines = self.driver.as_ref()?.iter();
        Some(lines.any(|(_, line)| operation(line).is_some() && is_unfinished(line)))
    }

    /// Returns the first error of an engine during the level.
    pub fn engine_error(&self) -> Option<EngineError<'_>> {
        EngineError::find(self.driver.iter().flatten().map(|(_, line)| line.as_str()))
    }
}

/// Names the engines that can copy and fill in a level. The levels `sdma` and `blit` set `HSA_ENABLE_SDMA`.
pub fn engines(level: Level) -> &'static str {
    match level {
        Level::Sdma => SDMA,
        Level::Blit => "the runtime's blit shader",
        _ => "SDMA or, with HSA_ENABLE_SDMA=0, the runtime's blit shader: try both",
    }
}

/// Returns the advice for an operation that a GPU has not finished: `COPY` or `FILL`.
pub fn advise_unfinished(operation: &str, level: Level) -> String {
    format!(
        "the GPU has not finished a {operation}: suspect the GPU's engine first ({}), then the fence, the signal and \
         the interrupt at the end of the operation",
        engines(level)
    )
}

/// Returns the advice for a copy with wrong data. `what` is the description of the failure. `has_old_entry` is whether
/// the page table or the TLB can have an old entry, because other memory was mapped at the source's address before.
pub fn advise_wrong_copy(
    level: Level,
    what: &str,
    has_old_entry: bool,
    page_tables: &str,
) -> String {
    let engines = engines(level);
    if what.contains(NOT_WRITTEN) {
        return format!(
            "the destination still has numbers that this level wrote there before the copy, so the engine has not \
             copied, or the copy ended after its signal: suspect the GPU's engine first ({engines}), then the fence at \
             the end of the copy, then the page table of the destination ({page_tables}). The source's contents and \
             mapping are not the cause"
        );
    }
    if what.contains(OTHER_CONTENTS) && !what.contains(LATER_RIGHT) {
        let start =
            "the copy has written the destination, but the source's address has other contents";
        let writer = format!(
            "the copy that wrote the source: the GPU's engine ({engines}) and the fence at its end"
        );
        let others = format!(
            "the source's page table ({page_tables}), missing flushes of caches or HDP, and other mappings"
        );
        return match has_old_entry {
            true => format!(
                "{start}. Other memory was mapped at this address before: suspect an old entry of the address first. \
                 Perhaps the TLB was not flushed after the earlier operation UNMAP of amdgpu_gem_va_ioctl, or the \
                 entry of the operation MAP was written late. Then suspect {writer}; then {others}"
            ),
            false => format!("{start}: suspect {writer}; then {others}"),
        };
    }
    format!(
        "the destination does not contain the source's data. If it still has its old contents (0, or a value written \
         before), the engine has not copied, or the copy ended after its signal: suspect the GPU's engine ({engines}) \
         and the fence. If it has other contents, also suspect the page tables of both addresses ({page_tables}), \
         missing flushes of caches or HDP, and other mappings"
    )
}

/// Returns the advice for a wait that hangs. `copy` is what the CPU found. `page_tables` names the page tables' file.
/// `has_begun` is whether the engine has begun the copy, if this is known. Returns `None` if the CPU has found nothing
/// that helps.
pub fn advise_stuck_copy(
    copy: StuckCopy,
    page_tables: &str,
    has_begun: Option<bool>,
) -> Option<String> {
    Some(match copy {
        StuckCopy { has_ended: true, .. } => {
            let also = if copy.arrived == Some(false) { "; then the engine's writes" } else { "" };
            format!(
                "the GPU has set the signal, but the wait does not end: suspect the interrupt at the end of the copy \
                 (the trap packet in the ring, the interrupt handler, kfd_signal_event_interrupt) and \
                 kfd_ioctl_wait_events first{also}"
            )
        }
        StuckCopy { arrived: Some(true), .. } => "the engine has copied, but the CPU does not find the end in the \
             signal: suspect the end of the copy first (the fence or atomic that writes the signal), and the mappings \
             of the signal's memory: the GPU's page-table entry and the CPU's mmap (drm_gem_mmap, ttm_bo_mmap_obj); \
             not the interrupt"
            .to_owned(),
        StuckCopy { arrived: Some(false), .. } if has_begun == Some(false) => {
            "the engine has not begun the copy: suspect the doorbell and the queue first (kfd_mmap, \
             kfd_ioctl_create_queue), then the ring and the engine, not the signal or the interrupt"
                .to_owned()
        }
        StuckCopy { arrived: Some(false), .. } => format!(
            "the engine has not copied: suspect the engine first, not the signal or the interrupt. Check the queue \
             and its doorbell (kfd_ioctl_create_queue, kfd_mmap), the ring and the firmware; then the page tables of \
             both addresses ({page_tables}), because a page fault can stop the engine"
        ),
        StuckCopy { arrived: None, .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_copy_names_engine_or_signal_or_interrupt() {
        for (arrived, has_ended, has_begun, expected) in [
            (Some(false), false, None, Some("suspect the engine first")),
            (Some(false), false, Some(true), Some("suspect the engine first")),
            (Some(false), false, Some(false), Some("suspect the doorbell and the queue first")),
            (Some(true), false, None, Some("suspect the end of the copy first")),
            (Some(true), true, None, Some("suspect the interrupt at the end of the copy")),
            (None, true, None, Some("suspect the interrupt at the end of the copy")),
            (None, false, None, None),
        ] {
            let advice = advise_stuck_copy(StuckCopy { arrived, has_ended }, "FILE", has_begun);
            let contains = |text| advice.as_deref().is_some_and(|advice| advice.contains(text));
            assert!(expected.map_or(advice.is_none(), contains), "{advice:?}");
        }
    }

    #[test]
    fn wrong_copy_names_engine_or_old_entry() {
        for (what, has_old_entry, first) in [
            (NOT_WRITTEN, false, "suspect the GPU's engine first"),
            (NOT_WRITTEN, true, "suspect the GPU's engine first"),
            (OTHER_CONTENTS, true, "suspect an old entry of the address first"),
            (OTHER_CONTENTS, false, "suspect the copy that wrote the source"),
            ("", false, "suspect the GPU's engine ("),
        ] {
            let advice = advise_wrong_copy(Level::Load, what, has_old_entry, "FILE");
            let suspects = advice.find(first).is_some_and(|at| !advice[..at].contains("suspect"));
            assert!(suspects, "{advice}");
        }
    }

    #[test]
    fn unfinished_operation_of_an_engine_is_recognised() {
        let line = "2:3 1.6 engine COPY to=0x7fea4c2c3000 length=0x1000 = ? (has not returned)";
        assert_eq!(operation(line), Some("COPY"));
        assert_eq!(EngineError::find([line].into_iter()), None);
        let line = "2:3 1.6 kfd MMAP length=0x1000 = ? (has not returned)";
        assert_eq!(operation(line), None);
    }

    #[test]
    fn page_fault_is_no_error_of_an_engine() {
        let fault = "2:3 1.6 gpu0 fault at 0x7fea4c2c3000: EFAULT";
        let request = "2:2 1.5 drm0 GEM_VA handle=1 = EIO (1.0 us)";
        let error = "2:3 1.6 engine FILL to=0x7fea4c2c3000 length=0x1000 = EIO";
        assert_eq!(EngineError::find([fault, request].into_iter()), None);
        let found = EngineError::find([request, error, fault].into_iter()).unwrap();
        assert_eq!(found.describe(), "the GPU's engine reported EIO for a FILL");
        assert!(found.advise(Level::Blit).contains("engine first (the runtime's blit shader)"));
    }
}
