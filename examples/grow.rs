//! Grows a buffer in place, and draws its contents after every change of its size. The address of the first byte never
//! changes.
//!
//! ```sh
//! cargo run --example grow                                        # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example grow
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::{Access, AllocationProperties, GrowableBuffer, Reservation, Runtime, Vmm};

const STEP: usize = 2 << 20;
const STEPS: usize = 8;

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let properties = AllocationProperties::on(gpu.id());
    println!("{} on {}", gpu.name(), runtime.info().name);

    // Finds free addresses for twice the size of the buffer, because `extend` below needs free addresses after the
    // buffer. This reservation is freed at the end of the statement.
    let start = Reservation::builder(2 * STEPS * STEP).reserve(&vmm)?.address();
    let options = GrowableBuffer::builder(STEPS * STEP).with_step(STEP);
    let at_start = options.exactly_at(start).reserve(&vmm, &properties);
    let mut buffer = at_start.or_else(|_| options.reserve(&vmm, &properties))?;
    buffer.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
    let address = buffer.address();
    println!("a letter is 2 MiB of memory, a dot 2 MiB of addresses without memory\n");
    draw("reserved, no memory yet", &buffer)?;

    let mut letters = b'A'..;
    let mut grow = |buffer: &mut GrowableBuffer, steps: usize, title: &str| {
        for _ in 0..steps {
            let end = buffer.size();
            buffer.grow(STEP)?;
            buffer.write(end, &[letters.next().unwrap_or(b'?')])?;
        }
        draw(title, buffer)
    };
    grow(&mut buffer, 1, "grown by one step")?;
    grow(&mut buffer, 2, "grown by two steps: A has not moved")?;
    buffer.shrink(STEP)?;
    draw("shrunk by one step, its memory is freed", &buffer)?;
    grow(&mut buffer, 6, "grown to the end of the reservation")?;

    // `grow` fails at the end of the reservation. `extend` succeeds if the addresses after the reservation are free.
    match buffer.grow(1) {
        Err(error) => println!("rejected: {error}"),
        Ok(()) => anyhow::bail!("the buffer grew beyond its reservation"),
    }
    match buffer.extend(4 * STEP) {
        Ok(()) => {
            draw("four more steps reserved at the end", &buffer)?;
            grow(&mut buffer, 3, "grown by three steps")?;
        }
        Err(error) => println!("not extended: {error}"),
    }

    ensure!(buffer.address() == address, "the buffer has moved");
    let mut first = [0];
    buffer.read(0, &mut first)?;
    ensure!(&first == b"A", "the first byte has changed");
    Ok(())
}

/// Prints the buffer's address, the first byte of every step, and the buffer's size.
fn draw(title: &str, buffer: &GrowableBuffer) -> anyhow::Result<()> {
    let mut row = String::new();
    for offset in (0..buffer.maximum()).step_by(buffer.step()) {
        let mut byte = [b'.'];
        if offset < buffer.mapped_size() {
            buffer.read(offset, &mut byte)?;
        }
        row.push(char::from(byte[0]));
    }
    let mib = buffer.size() >> 20;
    println!("{}  {mib:>3} MiB  |{row:<12}|  {title}", buffer.address());
    Ok(())
}
