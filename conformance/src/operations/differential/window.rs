//! The window: a granule of the first GPU's memory, which the CPU and all GPUs with peer access can access. The test
//! uses the window to read and write memory through a GPU. The GPU copies between the memory and the window, which the
//! CPU reads and writes. A GPU without access to the window copies between the memory and the host.

use super::{Difference, DifferentialTest};
use hsa_vmm::{Access, AgentId, Handle};

/// Memory of the first GPU that the CPU and all GPUs with peer access can access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub reservation: usize,
    pub address: usize,
    pub handle: Handle,
    /// The index of the GPU that owns the memory.
    owner: usize,
}

/// The size of the window's reservation in granules. The window is in the middle of the reservation, so that operations
/// beyond the end of another reservation do not change the window.
const RESERVED_GRANULES: usize = 64;

impl DifferentialTest {
    /// Creates the window if the CPU can access the first GPU's memory. Then copies once with each GPU that has
    /// access, and fills once.
    pub(super) fn open_window(&mut self) -> Result<(), Difference> {
        let machine = self.model.machine().clone();
        let Some(gpu) = machine.gpus().next() else { return Ok(()) };
        if !machine.cpus().all(|cpu| machine.agents[cpu].can_access[gpu]) {
            return Ok(());
        }
        let size = machine.granule;
        let owner = machine.agents[gpu].id;
        let (Some(reservation), Some(handle)) =
            (self.reserve(RESERVED_GRANULES * size, 0, None, 0)?, self.create(size, owner)?)
        else {
            return Ok(());
        };
        let address = reservation + RESERVED_GRANULES / 2 * size;
        self.map(address, size, 0, handle, 0)?;
        let users = machine.agents.iter().filter(|agent| agent.can_access[gpu]);
        let list: Vec<_> = users.map(|agent| (agent.id, Access::ReadWrite)).collect();
        self.set_access(address, size, &list)?;
        self.window = Some(Window { reservation, address, handle, owner: gpu });
        for agent in machine.gpus().filter(|&agent| machine.agents[agent].can_access[gpu]) {
            self.copy(machine.agents[agent].id, address, address + size / 2, size / 2)?;
        }
        self.fill(address, 0x5eed, size)?;
        Ok(())
    }

    /// Returns the window if a GPU can access it.
    fn window_of(&self, gpu: AgentId) -> Option<Window> {
        let machine = self.model.machine();
        let agent = &machine.agents[machine.agent(gpu)?];
        self.window.filter(|window| agent.can_access[window.owner])
    }

    /// Writes mapped memory through a GPU: the CPU writes to the window, and the GPU copies from there. Then reads the
    /// memory back through the GPU. `number` determines the written bytes.
    pub(super) fn write_by_gpu(
        &self,
        agent: AgentId,
        address: usize,
        (number, size): (usize, usize),
    ) -> Result<(), Difference> {
        let bytes: Vec<_> = (0..size).map(|index| (number.wrapping_mul(7) + index) as u8).collect();
        let is_copied = match self.window_of(agent) {
            Some(window) => {
                self.write(window.address, &bytes)?
                    && self.copy(agent, address, window.address, size)?
            }
            None => self.copy_from_host(agent, address, &bytes)?,
        };
        if is_copied {
            return self.read_by_gpu(agent, address, size);
        }
        self.expect_planned_fault(agent, address)
    }

    /// Reads mapped memory through a GPU: the GPU copies the memory to the window, and the CPU reads the window.
    pub(super) fn read_by_gpu(
        &self,
        agent: AgentId,
        address: usize,
        size: usize,
    ) -> Result<(), Difference> {
        let is_read = match self.window_of(agent) {
            Some(window) => {
                self.copy(agent, window.address, address, size)?
                    && self.read(window.address, size)?
            }
            None => self.copy_to_host(agent, address, size)?,
        };
        if is_read { Ok(()) } else { self.expect_planned_fault(agent, address) }
    }

    /// Handles a failed access of a GPU. Returns a difference if no faults are planned.
    fn expect_planned_fault(&self, agent: AgentId, address: usize) -> Result<(), Difference> {
        if self.has_planned_faults() {
            return Ok(());
        }
        Err(Difference::RuleViolation(match self.window_of(agent) {
            Some(window) => format!("the window at {:#x} is not accessible", window.address),
            None => format!("{agent} cannot access the memory at {address:#x}"),
        }))
    }
}
