//! Pauses a model's buffer, to release the buffer's memory, and uses another model's buffer. Then resumes the first
//! buffer with the same contents at the same address.
//!
//! ```sh
//! cargo run --example pause                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example pause
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::buffer::{PausableBuffer, PauseMode};
use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
use std::time::Instant;

/// The size of each model. Two models do not fit into the memory of the simulated GPU.
const SIZE: usize = (24 << 20) + 100;

fn show(name: &str, buffer: &PausableBuffer, vmm: &Vmm) {
    let state = if buffer.is_paused() { "paused  " } else { "resident" };
    println!(
        "  {name:8} {state} at {}, {:5.1} MiB saved on the host; {} memory handles in total",
        buffer.address(),
        buffer.saved_size() as f64 / f64::from(1 << 20),
        vmm.usage().handles,
    );
}

fn pause(buffer: &mut PausableBuffer, mode: PauseMode) -> anyhow::Result<()> {
    let begun = Instant::now();
    buffer.pause(mode)?;
    println!("  paused in {:.1?}", begun.elapsed());
    Ok(())
}

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1).with_vram(40 << 20))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let agents = [gpu.id(), runtime.host().id()];
    let properties = AllocationProperties::on(gpu.id());
    println!("{} on {}", gpu.name(), runtime.info().name);

    let mut weights = PausableBuffer::create(&vmm, SIZE, &properties)?;
    weights.grant(&agents, Access::ReadWrite)?;
    let text = b"recorded graphs point to this address";
    weights.write(SIZE - text.len(), text)?;
    let address = weights.address();
    show("weights", &weights, &vmm);

    println!("the weights are released for another model:");
    pause(&mut weights, PauseMode::Save)?;
    show("weights", &weights, &vmm);
    let mut scratch = PausableBuffer::create(&vmm, SIZE, &properties)?;
    scratch.grant(&agents, Access::ReadWrite)?;
    scratch.write(0, b"scratch")?;
    show("scratch", &scratch, &vmm);

    println!("the other model is discarded, and the weights are restored:");
    pause(&mut scratch, PauseMode::Discard)?;
    show("scratch", &scratch, &vmm);
    let begun = Instant::now();
    weights.resume()?;
    println!("  resumed in {:.1?}", begun.elapsed());
    show("weights", &weights, &vmm);
    let mut bytes = vec![0; text.len()];
    weights.read(SIZE - text.len(), &mut bytes)?;
    ensure!(bytes == text, "the contents have changed");
    ensure!(weights.address() == address, "the address has changed");
    println!("  at the same address: {:?}", String::from_utf8_lossy(&bytes));
    Ok(())
}
