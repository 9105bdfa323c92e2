//! Uses a ring buffer: memory that is mapped twice in a row. A write that passes the end of the memory continues at its
//! beginning.
//!
//! ```sh
//! cargo run --example ring                                        # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example ring
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::buffer::RingBuffer;
use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};

const LINES: [&str; 3] = ["begun before the end, ", "written by one call, ", "read by one call"];

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?.id();
    let ring = RingBuffer::create(&vmm, 1, 2, &AllocationProperties::on(gpu))?;
    ring.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
    let (size, first) = (ring.size(), ring.address());
    let second = ring.address().get() + size;
    println!("{size} bytes of memory, mapped at {first} and again at {second:#x}\n");

    // The first write begins ten bytes before the end of the memory. A position is the number of earlier bytes of the
    // stream; three times the size is the start of the fourth round.
    let mut position = 3 * size as u64 - 10;
    for line in LINES {
        println!("write {:>2} bytes at {}", line.len(), ring.address_of(position));
        ring.write(position, line.as_bytes())?;
        draw(&ring)?;
        let mut bytes = vec![0; line.len()];
        ring.read(position, &mut bytes)?;
        ensure!(bytes == line.as_bytes(), "the bytes differ from those written");
        position += line.len() as u64;
    }
    Ok(())
}

/// Prints the bytes around the end of the memory, where the first byte follows the last byte.
fn draw(ring: &RingBuffer) -> anyhow::Result<()> {
    let mut bytes = [0; 77];
    ring.read(ring.size() as u64 - 14, &mut bytes)?;
    let text: String =
        bytes.iter().map(|&byte| if byte == 0 { '.' } else { byte.into() }).collect();
    let (end, beginning) = text.split_at(14);
    println!("  …{end}┆{beginning}…");
    Ok(())
}
