//! A granule of memory that CPU and GPUs may all use, to see by copying what only a GPU may read.

use super::{Difference, DifferentialTest};
use hsa_vmm::{Access, AgentId, Handle};

/// Memory that the CPU and all GPUs may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub reservation: usize,
    pub address: usize,
    pub handle: Handle,
}

/// The granules of the window's reservation, in whose middle it is: out of the way of operations
/// that reach over the end of another reservation.
const AROUND: usize = 64;

impl DifferentialTest {
    /// Opens the window, where the CPU reaches the first GPU's memory, and uses it in every way.
    pub(super) fn open_window(&mut self) -> Result<(), Difference> {
        let world = self.model.world().clone();
        let Some(gpu) = world.gpus().next() else { return Ok(()) };
        if !world.cpus().all(|cpu| world.agents[cpu].reaches[gpu]) {
            return Ok(());
        }
        let size = world.granule;
        let owner = world.agents[gpu].id;
        let (Some(reservation), Some(handle)) =
            (self.reserve(AROUND * size, 0, None, 0)?, self.create(size, owner)?)
        else {
            return Ok(());
        };
        let address = reservation + AROUND / 2 * size;
        self.map(address, size, 0, handle, 0)?;
        let all: Vec<_> = world.agents.iter().map(|it| (it.id, Access::ReadWrite)).collect();
        self.set_access(address, size, &all)?;
        self.window = Some(Window { reservation, address, handle });
        for agent in world.gpus() {
            self.copy(world.agents[agent].id, address, address + size / 2, size / 2)?;
        }
        self.fill(address, 0x5eed, size)?;
        Ok(())
    }

    /// What is in mapped memory as a GPU sees it: copied to the window, and read there.
    pub(super) fn look(
        &self,
        window: &Window,
        agent: AgentId,
        address: usize,
        size: usize,
    ) -> Result<(), Difference> {
        if self.copy(agent, window.address, address, size)? && self.read(window.address, size)? {
            return Ok(());
        }
        // A look is a copy, which may be one that is planned to fail.
        if self.has_planned_faults() {
            return Ok(());
        }
        Err(Difference::Broken(format!("the window at {:#x} is gone", window.address)))
    }
}
