//! Exports a range of addresses as dma-bufs, for a network adapter's driver or another process. Then reads the bytes
//! of the range through the descriptors.
//!
//! ```sh
//! cargo run --example ranges                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example ranges
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::vmm::ExportedSegment;
use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, PoolMemory, Reservation, Runtime, Vmm,
};

const SIZE: usize = 2 << 20;

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?.id();
    let agents = [gpu, runtime.host().id()];

    // Creates three adjacent mappings, and writes a text across the end of the second mapping.
    let reservation = Reservation::builder(3 * SIZE).reserve(&vmm)?;
    let mut mappings = Vec::new();
    for number in 0..3 {
        let memory = Allocation::create(&vmm, SIZE, &AllocationProperties::on(gpu))?;
        let mapping = reservation.map(number * SIZE, &memory)?;
        mapping.grant(&agents, Access::ReadWrite)?;
        mappings.push(mapping);
    }
    let text = b"one text in two dma-bufs";
    let start = reservation.address().checked_add(2 * SIZE - 8).context("the address overflows")?;
    vmm.write(start, text)?;

    let segments = vmm.export_address_range(start, text.len())?;
    println!("{} bytes at {start}: {} segments", text.len(), segments.len());
    let mut read = Vec::new();
    for segment in &segments {
        println!("  {:#x} bytes from {:#x}", segment.length, segment.offset);
        read.extend(read_segment(&vmm, segment, &agents)?);
    }
    println!("  \"{}\"", String::from_utf8_lossy(&read));
    ensure!(read == text, "the segments do not contain the text");

    // A range of pool memory is one segment. Its dma-buf can also contain other allocations of the pool.
    let memory = PoolMemory::allocate(&runtime, gpu, 4096)?;
    let segments = vmm.export_address_range(memory.address(), memory.size())?;
    let [segment] = &segments[..] else { anyhow::bail!("pool memory is not one segment") };
    println!("pool memory: {:#x} bytes from {:#x}", segment.length, segment.offset);
    Ok(())
}

/// Reads the bytes of a segment in the same way as a receiver of the descriptor: imports and maps the whole dma-buf,
/// and reads from the segment's offset on.
fn read_segment(
    vmm: &Vmm,
    segment: &ExportedSegment,
    agents: &[AgentId],
) -> anyhow::Result<Vec<u8>> {
    let memory = Allocation::import(vmm, &segment.descriptor)?;
    let mapping = Reservation::builder(memory.size()).reserve(vmm)?.map(0, &memory)?;
    mapping.grant(agents, Access::ReadWrite)?;
    let mut bytes = vec![0; segment.length];
    mapping.read(segment.offset, &mut bytes)?;
    Ok(bytes)
}
