//! Reports: what they list, the names in them, their text, and the leaks that the library logs.

#[path = "../log/mod.rs"]
mod log;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;

mod buffers;
mod contents;
mod leaks;
mod names;
mod text;

use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Address, Handle};
use machine::{MIB, Machine, access, at};

const GRANULE: usize = 2 * MIB;

fn machine() -> Machine {
    Machine::new(Config::mi300x(2))
}

/// Reserves `granules` granules. At each granule that `mapped` lists, maps new memory of the second GPU.
fn map_granules(machine: &Machine, granules: usize, mapped: &[usize]) -> (Address, Vec<Handle>) {
    let base = machine.reserve(granules * GRANULE);
    let page = |&number: &usize| {
        let handle = machine.create(1, GRANULE);
        machine.map(at(base, number * GRANULE), GRANULE, handle);
        handle
    };
    (base, mapped.iter().map(page).collect())
}

fn grant_both_gpus(machine: &Machine, base: Address, size: usize) {
    let both = [machine.gpu(0), machine.gpu(1)].map(|gpu| access(gpu, Access::ReadWrite));
    machine.vmm.set_access(base, size, &both).unwrap();
}
