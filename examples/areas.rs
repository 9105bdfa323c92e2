//! For every combination of area flags, prints the memory's owner and the agents with access. Then a
//! GPU reorders bytes of this program.
//!
//! ```sh
//! cargo run --example areas                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example areas
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::{Area, Runtime, Vmm};

const SIZE: usize = 1000;

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(3))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpus: Vec<_> = runtime.gpus().collect();
    let device = gpus.len().checked_sub(1).context("this runtime has no GPU")?;
    println!("{SIZE} bytes for GPU {device} of {} GPUs, on {}:\n", gpus.len(), runtime.info().name);
    let columns: String = (0..gpus.len()).map(|gpu| format!(" GPU{gpu}")).collect();
    println!("{:<30} {:<15} {:<6}  CPU{columns}   allocated", "flags", "backing", "owner");
    for bits in 0..16 {
        let area = Area::new(&vmm, device, AreaFlags::from_bits_retain(bits))?;
        let mut host_buffer = vec![0; SIZE];
        let options = if area.flags().maps_existing_memory() {
            MmapOptions::new().with_host_memory(&mut host_buffer)
        } else {
            MmapOptions::new()
        };
        let memory = area.mmap(SIZE, options)?;
        let mark = |agent| if memory.agents().contains(&agent) { "  ●" } else { "  ·" };
        let gpu_marks: String = gpus.iter().map(|gpu| format!("  {}", mark(gpu.id()))).collect();
        let owner =
            runtime.agent(memory.owner()).context("the owner is not an agent of this runtime")?;
        println!(
            "{:<30} {:<15} {:<6}  {}{gpu_marks}  {:>6}",
            area.flags().to_string(),
            memory.backing().to_string(),
            owner.kind().to_string(),
            mark(runtime.host().id()),
            memory.allocated_size()
        );
    }

    // The device reverses the order of the four-byte groups of this text.
    let mut text = *b"AREAS!  made of pages, by flags.";
    println!("\nbefore: {}", String::from_utf8_lossy(&text));
    let scratch = Area::new(&vmm, device, AreaFlags::DEFAULT)?.mmap(32, MmapOptions::new())?;
    let mapped = Area::new(&vmm, device, AreaFlags::MAPPED)?
        .mmap(32, MmapOptions::new().with_host_memory(&mut text))?;
    let (host_address, device_address) = (mapped.address(), mapped.device_address());
    for word in 0..8 {
        scratch.copy(4 * word, &mapped, 28 - 4 * word, 4)?;
    }
    mapped.copy(0, &scratch, 0, 32)?;
    // Unmaps the memory, so that this program may use the bytes again.
    mapped.munmap().map_err(|rejected| rejected.error)?;
    println!("after:  {}", String::from_utf8_lossy(&text));
    println!("at {host_address} for this program, at {device_address} for the device");
    ensure!(text.starts_with(b"ags."), "the device has not reordered the bytes");

    // The error of an invalid call names the cause.
    for result in [
        Area::new(&vmm, gpus.len(), AreaFlags::DEFAULT).map(drop),
        Area::new(&vmm, 0usize, AreaFlags::MAPPED)?.mmap(1, MmapOptions::new()).map(drop),
        scratch.write(30, b"too long"),
    ] {
        match result {
            Err(error) => println!("rejected: {error}"),
            Ok(()) => anyhow::bail!("an invalid call succeeded"),
        }
    }
    Ok(())
}
