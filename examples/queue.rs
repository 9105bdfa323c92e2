//! Uses a signal and a queue of this program with memory of the library.
//!
//! The program makes HSA calls on the runtime that the library has loaded. It copies between two mappings of the
//! library, and a barrier packet in its queue waits for the copy.
//!
//! ```sh
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example queue
//! hsa-vmm emulate --rocr 6.4.3 -- target/debug/examples/queue       # without a GPU
//! hsa/sim/shared/build /tmp/sim                  # the simulation as a library, which has queues
//! HSA_VMM_RUNTIME=/tmp/sim/libhsa-runtime64.so.1 cargo run --example queue
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::hsa_sys::*;
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU16, Ordering};

const SIZE: usize = 2 << 20;

/// The header of a barrier packet. A barrier packet has up to five signals, and completes when all of them are 0. The
/// acquire fence (bits 9 and 10) and the release fence (bits 11 and 12) have system scope (2).
const BARRIER_AND_HEADER: u16 = HSA_PACKET_TYPE_BARRIER_AND as u16 | 2 << 9 | 2 << 11;
const NO_SIGNAL: hsa_signal_t = hsa_signal_t { handle: 0 };

type CreateQueue = unsafe extern "C" fn(
    hsa_agent_t,
    u32,
    hsa_queue_type_t,
    *const c_void,
    *mut c_void,
    u32,
    u32,
    *mut *mut hsa_queue_t,
) -> hsa_status_t;
type DestroyQueue = unsafe extern "C" fn(*mut hsa_queue_t) -> hsa_status_t;
type AddIndex = unsafe extern "C" fn(*const hsa_queue_t, u64) -> u64;

/// Returns a function of the loaded runtime that is not in its table.
///
/// # Safety
/// `F` must be the type of the function of that name.
unsafe fn function<F>(runtime: &Runtime, name: &CStr) -> anyhow::Result<F> {
    let address = runtime.function(name).with_context(|| format!("the runtime has no {name:?}"))?;
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the caller guarantees that the function at this address has this type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

fn new_signal(hsa: &Core) -> anyhow::Result<hsa_signal_t> {
    let (create, mut signal) = (hsa.hsa_signal_create.context("no signals")?, NO_SIGNAL);
    // SAFETY: no consumers are named, and `signal` is writable.
    let status = unsafe { create(1, 0, null(), &mut signal) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_signal_create: {status:#x}");
    Ok(signal)
}

pub(crate) fn main() -> anyhow::Result<()> {
    if std::env::var_os("HSA_VMM_RUNTIME").is_none_or(|path| path.is_empty()) {
        println!(
            "SKIPPED: set HSA_VMM_RUNTIME to AMD's runtime; the linked-in simulation has no queues"
        );
        return Ok(());
    }
    let runtime = Runtime::load()?;
    if runtime.function(c"hsa_queue_create").is_none() {
        println!("SKIPPED: {} has no queues", runtime.info().name);
        return Ok(());
    }
    // SAFETY: these are the functions' types in hsa.h.
    let (create_queue, destroy_queue, add_write_index) = unsafe {
        (
            function::<CreateQueue>(&runtime, c"hsa_queue_create")?,
            function::<DestroyQueue>(&runtime, c"hsa_queue_destroy")?,
            function::<AddIndex>(&runtime, c"hsa_queue_add_write_index_screlease")?,
        )
    };
    let hsa = &runtime.table().core;
    let copy = hsa.hsa_amd_memory_async_copy.context("no copies")?;
    let store_signal = hsa.hsa_signal_store_screlease.context("no signals")?;
    let wait_for_signal = hsa.hsa_signal_wait_scacquire.context("no signals")?;
    let destroy_signal = hsa.hsa_signal_destroy.context("no signals")?;
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;

    // Memory of the library: two mappings that the GPU and the CPU may access.
    let reservation = Reservation::builder(2 * SIZE).reserve(&vmm)?;
    let map = |offset| -> anyhow::Result<_> {
        let memory = Allocation::create(&vmm, SIZE, &AllocationProperties::on(gpu.id()))?;
        let mapping = reservation.map(offset, &memory)?;
        mapping.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
        Ok(mapping)
    };
    let (source, destination) = (map(0)?, map(SIZE)?);
    source.write(0, b"copied by your own call")?;

    // The program's own copy, with its own signal.
    let (copy_signal, barrier_signal) = (new_signal(hsa)?, new_signal(hsa)?);
    let [to, from] = [&destination, &source].map(|it| it.address().get() as *mut c_void);
    let agent = gpu.hsa_agent();
    // SAFETY: both mappings have SIZE bytes that the agent may access, and they stay mapped until the
    // signal reports the end of the copy.
    let status = unsafe { copy(to, agent, from, agent, SIZE, 0, null(), copy_signal) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_amd_memory_async_copy: {status:#x}");

    // The program's own queue, in which a barrier waits for the copy.
    let mut queue = null_mut();
    let (kind, unknown_size) = (HSA_QUEUE_TYPE_MULTI, u32::MAX);
    let status =
        // SAFETY: the agent is of this runtime; there is no callback, and `queue` is writable.
        unsafe { create_queue(agent, 64, kind, null(), null_mut(), unknown_size, unknown_size, &mut queue) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_queue_create: {status:#x}");
    let mut dependencies = [NO_SIGNAL; 5];
    dependencies[0] = copy_signal;
    // SAFETY: the queue is new, so its first packet is free. The GPU does not read the packet before its header is
    // valid, and the header is written last.
    unsafe {
        let index = add_write_index(queue, 1);
        let packets = (*queue).base_address.cast::<hsa_barrier_and_packet_t>();
        let packet = packets.add(index as usize % (*queue).size as usize);
        (&raw mut (*packet).dep_signal).write(dependencies);
        (&raw mut (*packet).completion_signal).write(barrier_signal);
        AtomicU16::from_ptr(&raw mut (*packet).header).store(BARRIER_AND_HEADER, Ordering::Release);
        store_signal((*queue).doorbell_signal, index as i64);
    }
    // SAFETY: the signal lives until it is destroyed below.
    let wait = |signal| unsafe {
        let (condition, state) = (HSA_SIGNAL_CONDITION_LT, HSA_WAIT_STATE_BLOCKED);
        while wait_for_signal(signal, condition, 1, u64::MAX, state) >= 1 {}
    };
    wait(barrier_signal);

    let mut text = [0; 23];
    destination.read(0, &mut text)?;
    println!("{}: {}", gpu.id(), String::from_utf8_lossy(&text));
    ensure!(&text == b"copied by your own call", "the destination has other contents");

    // SAFETY: the queue has no packets left, and nothing waits for the signals. The runtime still
    // runs, because `runtime` has not been dropped yet.
    unsafe {
        destroy_queue(queue);
        destroy_signal(copy_signal);
        destroy_signal(barrier_signal);
    }
    Ok(())
}
