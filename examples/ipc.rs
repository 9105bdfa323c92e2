//! Shares a GPU's memory between two processes through IPC. Each process reads the text that the other has
//! written.
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
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    Ok(match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    })
}

#[allow(dead_code, reason = "the examples' tests call run")]
fn main() -> anyhow::Result<()> {
    run(&[])
}

/// Runs the example. Starts this program again, with `arguments`, as the second process. If this program gets these
/// arguments, it must call `run`.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    if std::env::var_os(SECOND).is_some() { import() } else { export(arguments) }
}

/// Exports memory to the second process, and reads the text that the second process has written.
fn export(arguments: &[&str]) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let memory = PoolMemory::allocate(&runtime, gpu.id(), 4096)?;
    memory.write(100, b"from the first")?;
    println!("first:  {} has {:#x} bytes at {}", gpu.name(), memory.size(), memory.address());

    // The handle has 64 bytes, in HIP's layout. A handle can be created for any address inside the memory.
    let inside = memory.address().checked_add(100).context("the address overflows")?;
    let handle = Ipc::open(&runtime)?.get_mem_handle(inside)?;

    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env(SECOND, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("standard input is not a pipe")?.write_all(&handle.to_bytes())?;
    let mut output = String::new();
    child.stdout.take().context("standard output is not a pipe")?.read_to_string(&mut output)?;
    print!("{output}");
    ensure!(child.wait()?.success(), "the second process failed");

    let mut text = [0; 15];
    memory.read(100, &mut text)?;
    println!("first:  reads {:?}", String::from_utf8_lossy(&text));
    ensure!(&text == b"from the second", "the second process has not written");

    // The second process has ended. Before its end, it closed the memory by dropping `OpenedMemory`.
    memory.free()?;
    Ok(())
}

/// Opens the memory of the first process, reads it and writes to it.
fn import() -> anyhow::Result<()> {
    let mut bytes = [0; IpcHandle::SIZE];
    std::io::stdin().read_exact(&mut bytes)?;
    let handle = IpcHandle::from_bytes(&bytes);
    let runtime = runtime()?;
    // The opened memory starts at the address for which the handle was created. Dropping `memory` closes
    // it.
    let memory = OpenedMemory::open(&Ipc::open(&runtime)?, &handle)?;
    let mut text = [0; 14];
    memory.read(0, &mut text)?;
    println!(
        "second: process {} has exported {:#x} bytes, which are at {} in this process; they start with {:?}",
        handle.process,
        memory.size(),
        memory.address(),
        String::from_utf8_lossy(&text)
    );
    memory.write(0, b"from the second")?;
    Ok(())
}
