//! Two processes share a GPU's memory through IPC: one reads what the other writes.
//!
//! ```sh
//! cargo run --example ipc                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example ipc
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::ipc::{IpcHandle, OpenedMemory};
use hsa_vmm::{Ipc, PoolMemory, Runtime};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// The environment variable that marks the second process.
const SECOND: &str = "HSA_VMM_EXAMPLE_IPC";

fn runtime() -> anyhow::Result<Runtime> {
    // The library never falls back to the simulation by itself; this example does.
    Ok(match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(_) => Runtime::load()?,
        None => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    })
}

#[allow(dead_code, reason = "the examples' tests call run")]
fn main() -> anyhow::Result<()> {
    run(&[])
}

/// Runs the example. With `arguments`, this program runs it again in the second process.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    if std::env::var_os(SECOND).is_some() { second() } else { first(arguments) }
}

fn first(arguments: &[&str]) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let memory = PoolMemory::allocate(&runtime, gpu.id(), 4096)?;
    memory.write(100, b"from the first")?;
    println!("first:  {} has {:#x} bytes at {}", gpu.name(), memory.size(), memory.address());

    // 64 bytes in HIP's layout. Any address inside the memory is accepted.
    let inside = memory.address().checked_add(100).context("inside")?;
    let handle = Ipc::open(&runtime)?.get_mem_handle(inside)?;

    let mut other = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env(SECOND, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    other.stdin.take().context("piped")?.write_all(&handle.to_bytes())?;
    let mut said = String::new();
    other.stdout.take().context("piped")?.read_to_string(&mut said)?;
    print!("{said}");
    ensure!(other.wait()?.success(), "the second process failed");

    let mut text = [0; 15];
    memory.read(100, &mut text)?;
    println!("first:  reads {:?}", String::from_utf8_lossy(&text));
    ensure!(&text == b"from the second", "the second process has not written");

    // The process has ended, which closed the memory there.
    memory.free()?;
    Ok(())
}

fn second() -> anyhow::Result<()> {
    let mut bytes = [0; IpcHandle::SIZE];
    std::io::stdin().read_exact(&mut bytes)?;
    let handle = IpcHandle::from_bytes(&bytes);
    let runtime = runtime()?;
    // It starts at the address that the handle was created of; dropping it closes the memory.
    let memory = OpenedMemory::open(&Ipc::open(&runtime)?, &handle)?;
    let mut text = [0; 14];
    memory.read(0, &mut text)?;
    println!(
        "second: process {} has exported {:#x} bytes; here they are at {}, and read {:?}",
        handle.process,
        handle.allocation_size,
        memory.address(),
        String::from_utf8_lossy(&text)
    );
    memory.write(0, b"from the second")?;
    Ok(())
}
