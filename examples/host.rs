//! Creates memory of the host and maps it. The GPU reads what the CPU has written. Then the program imports the memory
//! by a file descriptor, and maps it a second time. The CPU reads through this mapping what the GPU has written.
//!
//! ```sh
//! cargo run --example host                                        # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example host
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Allocation, AllocationProperties, HandleType, Reservation, Runtime, Vmm};

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself. The simulation
    // behaves like ROCm 10 (generation D), the first release whose runtime creates memory of the host.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(Config::mi300x(1).with_generation(Generation::D))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?.id();
    let agents = [gpu, runtime.host().id()];

    let descriptor = HandleType::POSIX_FILE_DESCRIPTOR;
    // `Location::Host` is memory of any NUMA node. `Location::HostNuma(1)` would be memory of node 1.
    let properties = AllocationProperties::at(Location::Host).shareable_as(descriptor);
    // Sizes and addresses of host memory are multiples of the largest granule of any GPU.
    let size = vmm.reservation_granule();
    let memory = Allocation::create(&vmm, size, &properties)?;
    let reservation = Reservation::builder(2 * size).reserve(&vmm)?;
    let mapping = reservation.map(0, &memory)?;
    mapping.grant(&agents, Access::ReadWrite)?;

    mapping.write(0, b"written by the CPU")?;
    let mut text = [0; 18];
    mapping.copy_to_host(gpu, 0, &mut text)?;
    println!("{gpu} reads: {:?}", String::from_utf8_lossy(&text));
    ensure!(&text == b"written by the CPU", "the GPU reads other bytes");
    mapping.copy_from_host(gpu, 0, b"written by the GPU")?;

    // Imports the same memory, as another process would.
    let exported = memory.export()?;
    let imported = Allocation::import(&vmm, &exported)?;
    let second_mapping = reservation.map(size, &imported)?;
    second_mapping.grant(&agents, Access::Read)?;
    second_mapping.read(0, &mut text)?;
    println!("imported: {:?}", String::from_utf8_lossy(&text));
    ensure!(&text == b"written by the GPU", "the import has other bytes");
    Ok(())
}
