//! Checks the contents of memory through the CPU and the GPUs.

use crate::case::ensure_bytes;
use crate::context::offset;
use crate::{Context, NotPassed, Verdict};
use hsa_vmm::{Access, Address, AgentId};

impl Context {
    /// Checks that memory is filled with a value. If the CPU has access, it checks both ends and the
    /// middle of every granule. Every GPU with read access checks both ends.
    pub fn check_contents(&self, at: Address, granules: usize, value: u32) -> Verdict {
        if self.cpu_has_access(self.gpu()) {
            self.check_filled(at, granules, value)?;
        }
        self.gpus().iter().try_for_each(|&gpu| self.check_ends(gpu, at, granules, value))
    }

    /// Checks both ends of each granule that a GPU can read: the GPU copies them to the host.
    fn check_ends(&self, gpu: AgentId, at: Address, granules: usize, value: u32) -> Verdict {
        let expected = value.to_le_bytes().repeat(16);
        for start in (0..granules).map(|index| index * self.granule()) {
            let granted = self.vmm().get_access(gpu, offset(at, start)).unwrap_or(Access::None);
            if granted == Access::None {
                continue;
            }
            for within in [0, self.granule() - expected.len()] {
                let mut found = vec![0; expected.len()];
                self.vmm().copy_to_host(gpu, &mut found, offset(at, start + within))?;
                ensure_bytes!(found, expected, "for {gpu}, at offset {:#x}", start + within);
            }
        }
        Ok(())
    }

    /// Checks through the CPU, which must have access, that memory is filled with a value: at both ends and in the
    /// middle of every granule.
    pub(crate) fn check_filled(&self, at: Address, granules: usize, value: u32) -> Verdict {
        let expected = value.to_le_bytes().repeat(16);
        for start in (0..granules).map(|index| index * self.granule()) {
            for within in [0, self.granule() / 2, self.granule() - expected.len()] {
                let mut found = vec![0; expected.len()];
                self.vmm().read(offset(at, start + within), &mut found)?;
                ensure_bytes!(found, expected, "in the memory, at offset {:#x}", start + within);
            }
        }
        Ok(())
    }

    /// Checks through a GPU with read access that memory is filled with a value. The GPU copies each
    /// granule to its own memory. If the CPU has access to that memory, it checks the copy.
    pub fn check_through_gpu(
        &self,
        gpu: AgentId,
        at: Address,
        granules: usize,
        value: u32,
    ) -> Verdict {
        let scratch = self.reserve(1)?;
        let memory = self.create_on(gpu, 1)?;
        self.map(scratch, 1, memory)?;
        self.grant(scratch, 1, &self.agents_of(gpu), Access::ReadWrite)?;
        for index in 0..granules {
            // Overwrite the previous copy, which has the expected value.
            self.fill(scratch, 1, !value)?;
            self.vmm().copy(gpu, scratch, self.granule_at(at, index), self.granule())?;
            if self.cpu_has_access(gpu) {
                self.check_filled(scratch, 1, value).map_err(|verdict| match verdict {
                    NotPassed::Failed(why) => {
                        NotPassed::Failed(format!("GPU {gpu} reads granule {index} as: {why}"))
                    }
                    skipped => skipped,
                })?;
            }
        }
        self.vmm().unmap(scratch, self.granule())?;
        self.vmm().release(memory)?;
        Ok(self.vmm().address_free(scratch, self.granule())?)
    }
}
