//! The whole life of a piece of memory: reserve, create, map, grant, use, take away, unmap.
//!
//! ```sh
//! cargo run --example cycle                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example cycle
//! ```

use anyhow::Context;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};

pub(crate) fn main() -> anyhow::Result<()> {
    // The library never falls back to the simulation by itself; this example does.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(_) => Runtime::load()?,
        None => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let host = runtime.host();
    println!("{} on {}", gpu.name(), runtime.info().name);

    // Addresses: plenty of them, they cost nothing.
    let properties = AllocationProperties::on(gpu.id());
    let granule = vmm.allocation_granularity(&properties, Granularity::Recommended)?;
    let reservation = Reservation::builder(8 * granule).reserve(&vmm)?;
    println!("reserved {:#x} bytes at {}", reservation.size(), reservation.address());

    // Memory: as much as is needed now, at any of the addresses.
    let allocation = Allocation::create(&vmm, granule, &properties)?;
    let mapping = reservation.map(2 * granule, &allocation)?;
    println!("mapped   {:#x} bytes at {}", mapping.size(), mapping.address());

    // Nobody may use it before this.
    mapping.grant(&[host.id(), gpu.id()], Access::ReadWrite)?;
    mapping.fill(0, 0x2a2a_2a2a, mapping.size())?;
    let mut bytes = [0; 4];
    mapping.read(0, &mut bytes)?;
    println!("the GPU wrote {bytes:x?}, the CPU reads it");

    // A permission of the CPU is enforced, and a wrong call is an error, not a fault.
    mapping.grant(&[host.id()], Access::Read)?;
    match mapping.write(0, b"no") {
        Err(error) => println!("refused: {error}"),
        Ok(()) => anyhow::bail!("a write through a read-only mapping went through"),
    }

    // The memory survives being unmapped, and can appear elsewhere.
    mapping.unmap()?;
    let mapping = reservation.map(5 * granule, &allocation)?;
    mapping.grant(&[host.id()], Access::Read)?;
    mapping.read(0, &mut bytes)?;
    println!("the same memory at {}: {bytes:x?}", mapping.address());
    Ok(())
}
