//! Checks the contents of memory through the CPU and the GPUs.

use crate::case::ensure_bytes;
use crate::context::offset_by;
use crate::process_maps::inode_at;
use crate::{Context, NotPassed, TestResult};
use hsa_vmm::{Access, Address, AgentId};

/// The function with which the library exports memory.
const EXPORT: &str = "hsa_amd_vmem_export_shareable_handle";

/// Returns the engine with which GPUs copy in this process, as `HSA_ENABLE_SDMA` selects it.
pub(crate) fn copy_engine() -> &'static str {
    match std::env::var("HSA_ENABLE_SDMA").as_deref() {
        Ok("0") => "blit shader",
        Ok("1") => "SDMA",
        _ => "SDMA or blit shader",
    }
}

impl Context {
    /// Checks that memory is filled with a value. If the CPU can access the first GPU's memory, the CPU checks both
    /// ends and the middle of every granule. Every GPU with read access checks both ends of every granule.
    pub fn check_contents(&self, at: Address, granules: usize, value: u32) -> TestResult {
        if self.cpu_can_access(self.gpu()) {
            let result = self.check_filled(at, granules, value);
            result.map_err(|not_passed| self.explain_view(not_passed, at, granules, value))?;
        }
        self.gpus().iter().try_for_each(|&gpu| self.check_ends(gpu, at, granules, value))
    }

    /// Names the GPU's copy engine if [`fill`](Context::fill) has written the value. Otherwise returns an empty text.
    fn describe_writer(&self, value: u32) -> String {
        match self.has_filled(value) {
            true => format!(" (written by the GPU that owns it, {})", copy_engine()),
            false => String::new(),
        }
    }

    /// Explains why the CPU has read a wrong value. If a GPU reads the expected value, adds that the CPU and the GPU
    /// see different memory. The CPU maps a dma-buf that the runtime exports. If two exports of the same memory are
    /// different files, the explanation names the export as the cause.
    fn explain_view(
        &self,
        not_passed: NotPassed,
        at: Address,
        granules: usize,
        value: u32,
    ) -> NotPassed {
        let NotPassed::Failed(why) = not_passed else { return not_passed };
        let reads_expected_value = |gpu: &&AgentId| {
            self.vmm().get_access(**gpu, at).is_ok_and(|access| access != Access::None)
                && self.check_ends(**gpu, at, granules, value).is_ok()
        };
        let Some(gpu) = self.gpus().iter().find(reads_expected_value) else {
            return NotPassed::Failed(why);
        };
        NotPassed::Failed(match self.differing_exports(at) {
            Some((first, second)) => format!(
                "{EXPORT} (EXPORT_DMABUF) returns other memory: two exports of one handle are \
                 different files (inodes {first} and {second}), and the CPU, which maps one, sees \
                 other memory than {gpu}: {why}"
            ),
            None => format!("the CPU and {gpu} see different memory at one address: {why}"),
        })
    }

    /// Maps the memory at `at` for the CPU at a second address, so that the library exports the memory again. Returns
    /// the inodes of both dma-bufs if they differ.
    fn differing_exports(&self, at: Address) -> Option<(u64, u64)> {
        let first = inode_at(at.get())?;
        let handle = self.release_at_end(self.vmm().retain_allocation_handle(at).ok()?);
        let second = self.reserve(1).ok()?;
        self.map(second, 1, handle).ok()?;
        self.set_access(second, 1, &[self.host()], Access::ReadWrite).ok()?;
        let found = inode_at(second.get())?;
        // `Context::close` releases everything.
        (found != first).then_some((first, found))
    }

    /// Checks both ends of each granule that a GPU can read. The GPU copies the bytes to the host.
    pub(crate) fn check_ends(
        &self,
        gpu: AgentId,
        at: Address,
        granules: usize,
        value: u32,
    ) -> TestResult {
        let expected = value.to_le_bytes().repeat(16);
        for start in (0..granules).map(|index| index * self.granule()) {
            let granted = self.vmm().get_access(gpu, offset_by(at, start)).unwrap_or(Access::None);
            if granted == Access::None {
                continue;
            }
            for position in [0, self.granule() - expected.len()] {
                let mut found = vec![0; expected.len()];
                self.vmm().copy_to_host(gpu, &mut found, offset_by(at, start + position))?;
                ensure_bytes!(
                    found,
                    expected,
                    "{gpu} ({}) reads wrong data at offset {:#x} of the memory{}",
                    copy_engine(),
                    start + position,
                    self.describe_writer(value)
                );
            }
        }
        Ok(())
    }

    /// Checks through the CPU that memory is filled with a value, at both ends and in the middle of every granule. The
    /// CPU must have access.
    pub(crate) fn check_filled(&self, at: Address, granules: usize, value: u32) -> TestResult {
        let expected = value.to_le_bytes().repeat(16);
        for start in (0..granules).map(|index| index * self.granule()) {
            for position in [0, self.granule() / 2, self.granule() - expected.len()] {
                let mut found = vec![0; expected.len()];
                self.vmm().read(offset_by(at, start + position), &mut found)?;
                ensure_bytes!(
                    found,
                    expected,
                    "the CPU reads wrong data at offset {:#x} of the memory{}",
                    start + position,
                    self.describe_writer(value)
                );
            }
        }
        Ok(())
    }

    /// Checks through the CPU that a GPU's memory is filled with a value. If the CPU cannot access the memory of `gpu`,
    /// this GPU checks both ends of every granule instead.
    pub(crate) fn check_by_cpu_or(
        &self,
        gpu: AgentId,
        at: Address,
        granules: usize,
        value: u32,
    ) -> TestResult {
        match self.cpu_can_access(gpu) {
            true => self.check_filled(at, granules, value),
            false => self.check_ends(gpu, at, granules, value),
        }
    }

    /// Checks through a GPU with read access that memory is filled with a value. The GPU copies each
    /// granule to its own memory. The CPU checks the copy if it can access that memory. Otherwise, the GPU checks the
    /// copy.
    pub fn check_through_gpu(
        &self,
        gpu: AgentId,
        at: Address,
        granules: usize,
        value: u32,
    ) -> TestResult {
        let scratch = self.reserve(1)?;
        let memory = self.create_on(gpu, 1)?;
        self.map(scratch, 1, memory)?;
        self.set_access(scratch, 1, &self.gpu_and_cpu(gpu), Access::ReadWrite)?;
        for index in 0..granules {
            // Overwrite the previous copy, which has the expected value.
            self.fill(scratch, 1, !value)?;
            self.vmm().copy(gpu, scratch, self.granule_at(at, index), self.granule())?;
            self.check_by_cpu_or(gpu, scratch, 1, value).map_err(
                |not_passed| match not_passed {
                    NotPassed::Failed(why) => NotPassed::Failed(format!(
                        "{gpu} copies granule {index} incorrectly: {why}"
                    )),
                    skipped => skipped,
                },
            )?;
        }
        self.vmm().unmap(scratch, self.granule())?;
        self.vmm().release(memory)?;
        Ok(self.vmm().address_free(scratch, self.granule())?)
    }
}
