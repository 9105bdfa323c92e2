//! Shares memory between two processes through a file descriptor. Each process reads the text that the
//! other has written.
//!
//! ```sh
//! cargo run --example share                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example share
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::transport::Channel;
use hsa_vmm::{
    Access, Allocation, AllocationProperties, HandleType, Mapping, Reservation, Runtime, Vmm,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// The environment variable that marks the receiving process.
const RECEIVER: &str = "HSA_VMM_EXAMPLE_RECEIVER";
const SIZE: usize = 2 << 20;

#[allow(dead_code, reason = "the examples' tests call run")]
fn main() -> anyhow::Result<()> {
    run(&[])
}

/// Runs the example. Starts this program again as the second process, with the command line `arguments`, so that the
/// second process also calls `run`.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let role = if std::env::var_os(RECEIVER).is_some() { "receiver" } else { "sender  " };
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?,
    };
    let vmm = Vmm::open(&runtime)?;
    if role == "receiver" {
        receive(&runtime, &vmm, role)
    } else {
        send(&runtime, &vmm, role, arguments)
    }
}

fn send(runtime: &Runtime, vmm: &Vmm, role: &str, arguments: &[&str]) -> anyhow::Result<()> {
    // Shareable memory of the first GPU.
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let properties =
        AllocationProperties::on(gpu.id()).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
    let memory = Allocation::create(vmm, SIZE, &properties)?;
    let view = map_for_all(runtime, vmm, &memory)?;
    view.write(0, b"written by the sender")?;

    // The receiver's standard input is its end of the socket.
    let (socket, receiver_socket) = UnixStream::pair()?;
    let mut receiver = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env(RECEIVER, "1")
        .stdin(Stdio::from(OwnedFd::from(receiver_socket)))
        .spawn()?;
    Channel::over(socket).send(&memory, "a greeting")?;
    println!("{role} {:6}: sent {} MiB of {}", std::process::id(), SIZE >> 20, gpu.name());
    ensure!(receiver.wait()?.success(), "the receiver failed");

    let mut text = [0; 23];
    view.read(4096, &mut text)?;
    println!("{role} {:6}: read \"{}\"", std::process::id(), String::from_utf8_lossy(&text));
    ensure!(&text == b"written by the receiver", "wrong text");
    Ok(())
}

fn receive(runtime: &Runtime, vmm: &Vmm, role: &str) -> anyhow::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (memory, description) = Channel::over(socket).receive(vmm)?;
    let owner = description.owner.map(|gpu| gpu.to_string()).unwrap_or_default();
    let (process, name) = (std::process::id(), description.name);
    println!("{role} {process:6}: got \"{name}\", {} MiB of GPU {owner}", memory.size() >> 20);

    let view = map_for_all(runtime, vmm, &memory)?;
    let mut text = [0; 21];
    view.read(0, &mut text)?;
    println!("{role} {process:6}: read \"{}\"", String::from_utf8_lossy(&text));
    ensure!(&text == b"written by the sender", "wrong text");
    view.write(4096, b"written by the receiver")?;
    Ok(())
}

/// Maps memory in this process, and grants the CPU and all GPUs access.
fn map_for_all(runtime: &Runtime, vmm: &Vmm, memory: &Allocation) -> anyhow::Result<Mapping> {
    let mapping = Reservation::builder(SIZE).reserve(vmm)?.map(0, memory)?;
    let agents: Vec<_> = runtime.agents().iter().map(|agent| agent.id()).collect();
    mapping.grant(&agents, Access::ReadWrite)?;
    Ok(mapping)
}
