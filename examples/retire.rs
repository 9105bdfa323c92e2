//! Retires memory that an agent still reads: a retire queue unmaps the memory when the agent's signal fires.
//!
//! ```sh
//! cargo run --example retire                                      # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example retire
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::hsa_sys::*;
use hsa_vmm::vmm::{RetireQueue, SignalCondition};
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
use std::ffi::c_void;
use std::ptr::null;
use std::time::Duration;

const SIZE: usize = 2 << 20;

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    let reservation = Reservation::builder(2 * SIZE).reserve(&vmm)?;
    let map = |offset| -> anyhow::Result<_> {
        let memory = Allocation::create(&vmm, SIZE, &AllocationProperties::on(gpu.id()))?;
        let mapping = reservation.map(offset, &memory)?;
        mapping.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
        Ok(mapping)
    };
    let (source, destination) = (map(0)?, map(SIZE)?);
    source.write(0, b"read by the GPU")?;

    // Starts the program's own work on a GPU: a copy that decrements a signal when the copy ends.
    let hsa = &runtime.table().core;
    let mut copy_signal = hsa_signal_t { handle: 0 };
    let create = hsa.hsa_signal_create.context("no signals")?;
    // SAFETY: no consumers are named, and `copy_signal` is writable.
    let status = unsafe { create(1, 0, null(), &mut copy_signal) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_signal_create: {status:#x}");
    let [to, from] = [&destination, &source].map(|it| it.address().get() as *mut c_void);
    let (copy, agent) = (hsa.hsa_amd_memory_async_copy.context("no copies")?, gpu.hsa_agent());
    // SAFETY: the agent may access both mappings. `destination` stays mapped until the end of this function, and
    // `source` until the signal fires. If a later call fails, this example unmaps both early, and the copy can fault.
    let status = unsafe { copy(to, agent, from, agent, SIZE, 0, null(), copy_signal) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_amd_memory_async_copy: {status:#x}");

    // The program does not need the source any more, and does not wait for the copy.
    let queue = RetireQueue::builder(1024).with_time_limit(Duration::from_secs(5)).open(&vmm)?;
    // SAFETY: the signal is destroyed after the queue.
    unsafe { queue.submit(source, &[(copy_signal, SignalCondition::AtMost(0))]) }?;
    println!("submitted; the program goes on");

    let report = queue.drain(Duration::from_secs(10))?;
    for failure in &report.failures {
        println!("{} stays mapped: {}", failure.address, failure.error);
    }
    let mut text = [0; 15];
    destination.read(0, &mut text)?;
    println!("{} unmapped; copied: {:?}", report.retired, String::from_utf8_lossy(&text));
    ensure!(report.retired == 1 && &text == b"read by the GPU", "{report:?}");
    ensure!(vmm.usage().mappings == 1, "memory other than the destination is mapped");

    drop(queue);
    if let Some(destroy) = hsa.hsa_signal_destroy {
        // SAFETY: the copy has ended, and the queue does not exist any more.
        unsafe { destroy(copy_signal) };
    }
    Ok(())
}
