//! Prints a report of everything that a program has reserved, mapped and allocated.
//!
//! ```sh
//! cargo run --example report                    # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example report
//! ```

use anyhow::Context;
use hsa_vmm::{
    Access, Allocation, AllocationProperties, Mapping, PoolMemory, Reservation, Runtime, Vmm,
};

const MIB: usize = 1 << 20;

/// Reserves, maps and allocates memory, and prints the report.
pub fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
    let first = *gpus.first().context("this runtime has no GPU")?;
    let last = gpus[gpus.len() - 1];
    let memory = |gpu, size, name: &str| {
        let allocation = Allocation::create(&vmm, size, &AllocationProperties::on(gpu))?;
        anyhow::Ok(allocation.named(name))
    };

    // Weights that all GPUs can read, and that the CPU can also write.
    let weights = Reservation::builder(24 * MIB).reserve(&vmm)?.named("weights");
    let layers = weights.map(0, &memory(first, 24 * MIB, "layers 0 to 11")?)?;
    layers.grant(&gpus, Access::Read)?;
    layers.grant(&[runtime.host().id()], Access::ReadWrite)?;

    // Addresses for 32 pages of a KV cache. Maps fourteen pages, then unmaps two of them.
    let cache = Reservation::builder(64 * MIB).reserve(&vmm)?.named("kv cache");
    let page = |number: usize| -> anyhow::Result<Mapping> {
        let mapping = cache.map(2 * MIB * number, &memory(last, 2 * MIB, "page")?)?;
        mapping.grant(&gpus, Access::ReadWrite)?;
        Ok(mapping)
    };
    let mut pages = (0..14).map(page).collect::<anyhow::Result<Vec<_>>>()?;
    drop((pages.remove(9), pages.remove(4)));

    // A buffer with 6 MiB of memory, which can grow to 16 GiB. No agent has access yet.
    let growing = Reservation::builder(16 << 30).reserve(&vmm)?.named("activations");
    let first_part = growing.map(0, &memory(first, 6 * MIB, "first 6 MiB")?)?;

    // A ring: memory mapped twice in a row.
    let ring = Reservation::builder(8 * MIB).reserve(&vmm)?.named("ring");
    let repeated = memory(last, 4 * MIB, "ring memory")?;
    let ring_mappings = [ring.map(0, &repeated)?, ring.map(4 * MIB, &repeated)?];
    for mapping in &ring_mappings {
        mapping.grant(&[last], Access::ReadWrite)?;
    }

    // Memory that is created in advance but not mapped, and pool memory.
    let prepared = [memory(first, 2 * MIB, "prepared")?, memory(last, 2 * MIB, "prepared")?];
    let staging = PoolMemory::allocate(&runtime, runtime.host().id(), MIB)?.named("staging");

    print!("{}", vmm.report());
    drop((layers, pages, first_part, ring_mappings, prepared, staging));
    Ok(())
}
