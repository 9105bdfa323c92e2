//! Shows a full cycle of virtual memory: reserve, create, map, grant, use, restrict, unmap, map again.
//!
//! ```sh
//! cargo run --example cycle                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example cycle
//! ```

use anyhow::Context;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let host = runtime.host();
    println!("{} on {}", gpu.name(), runtime.info().name);

    // Reserves more addresses than are needed now, because unmapped addresses use no memory.
    let properties = AllocationProperties::on(gpu.id());
    let granule = vmm.allocation_granularity(&properties, Granularity::Recommended)?;
    let reservation = Reservation::builder(8 * granule).reserve(&vmm)?;
    println!("reserved {:#x} bytes at {}", reservation.size(), reservation.address());

    // Creates the memory that is needed now, and maps it inside the reservation.
    let allocation = Allocation::create(&vmm, granule, &properties)?;
    let mapping = reservation.map(2 * granule, &allocation)?;
    println!("mapped   {:#x} bytes at {}", mapping.size(), mapping.address());

    // No agent has access before this call.
    mapping.grant(&[host.id(), gpu.id()], Access::ReadWrite)?;
    mapping.fill(0, 0x2a2a_2a2a, mapping.size())?;
    let mut bytes = [0; 4];
    mapping.read(0, &mut bytes)?;
    println!("the GPU wrote {bytes:x?}, the CPU reads it");

    // The CPU's permissions are enforced: `write` returns an error, and a direct store would fault.
    mapping.grant(&[host.id()], Access::Read)?;
    match mapping.write(0, b"no") {
        Err(error) => println!("rejected: {error}"),
        Ok(()) => anyhow::bail!("a write to a read-only mapping succeeded"),
    }

    // Unmapped memory keeps its contents and can be mapped at another address.
    mapping.unmap()?;
    let mapping = reservation.map(5 * granule, &allocation)?;
    mapping.grant(&[host.id()], Access::Read)?;
    mapping.read(0, &mut bytes)?;
    println!("the same memory at {}: {bytes:x?}", mapping.address());
    Ok(())
}
