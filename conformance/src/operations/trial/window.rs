//! A granule of memory that CPU and GPUs may all use, to see by copying what only a GPU may read.

use super::{Difference, Trial};
use hsa_vmm::{Access, Handle};

/// Memory that the CPU and all GPUs may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub address: usize,
    pub handle: Handle,
}

impl Trial {
    /// Opens the window, where the CPU reaches the first GPU's memory, and uses it in every way.
    pub(super) fn open_window(&mut self) -> Result<(), Difference> {
        let world = self.model.world().clone();
        let Some(gpu) = world.gpus().next() else { return Ok(()) };
        if !world.cpus().all(|cpu| world.agents[cpu].reaches[gpu]) {
            return Ok(());
        }
        let size = world.granule;
        let (Some(address), Some(handle)) =
            (self.reserve(size, 0, None, 0)?, self.create(size, world.agents[gpu].id)?)
        else {
            return Ok(());
        };
        self.map(address, size, 0, handle, 0)?;
        let all: Vec<_> = world.agents.iter().map(|it| (it.id, Access::ReadWrite)).collect();
        self.set_access(address, size, &all)?;
        self.window = Some(Window { address, handle });
        for agent in world.gpus() {
            self.copy(world.agents[agent].id, address, address + size / 2, size / 2)?;
        }
        self.fill(address, 0x5eed, size)?;
        Ok(())
    }

    /// Whether an address is not the window's, which operations leave alone.
    pub(super) fn is_open_to_operations(&self, address: usize) -> bool {
        self.window.is_none_or(|window| window.address != address)
    }
}
