//! Uses the program's own signal and queue with memory of the library.
//!
//! The program makes its own HSA calls on the runtime that the library has loaded: it copies between two
//! mappings of the library, and a barrier in its queue waits for the copy.
//!
//! ```sh
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example queue
//! hsa-vmm emulate --rocr 6.4.3 -- target/debug/examples/queue       # without a GPU
//! ```

use anyhow::{Context, ensure};
use hsa_vmm::hsa_sys::*;
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU16, Ordering};

const SIZE: usize = 2 << 20;

/// `hsa_queue_t`: the address of the packets, and the doorbell signal for new packets.
#[repr(C)]
struct Queue {
    kind: u32,
    features: u32,
    packets: *mut BarrierAnd,
    doorbell: hsa_signal_t,
    size: u32,
    reserved: u32,
    id: u64,
}

/// `hsa_barrier_and_packet_t`: completes when all its signals, at most five, are 0.
#[repr(C, align(64))]
struct BarrierAnd {
    header: u16,
    reserved0: u16,
    reserved1: u32,
    dep_signal: [hsa_signal_t; 5],
    reserved2: u64,
    completion_signal: hsa_signal_t,
}

/// The header of a barrier packet (`HSA_PACKET_TYPE_BARRIER_AND`), which acquires and releases for the
/// whole system.
const BARRIER_AND_HEADER: u16 = 3 | 2 << 9 | 2 << 11;
const NO_SIGNAL: hsa_signal_t = hsa_signal_t { handle: 0 };

type Destroy = unsafe extern "C" fn(hsa_signal_t) -> hsa_status_t;
type Store = unsafe extern "C" fn(hsa_signal_t, i64);
type Wait = unsafe extern "C" fn(hsa_signal_t, u32, i64, u64, u32) -> i64;
type CreateSignal =
    unsafe extern "C" fn(i64, u32, *const hsa_agent_t, *mut hsa_signal_t) -> hsa_status_t;
type AsyncCopy = unsafe extern "C" fn(
    *mut c_void,
    hsa_agent_t,
    *const c_void,
    hsa_agent_t,
    usize,
    u32,
    *const hsa_signal_t,
    hsa_signal_t,
) -> hsa_status_t;
type CreateQueue = unsafe extern "C" fn(
    hsa_agent_t,
    u32,
    u32,
    *const c_void,
    *mut c_void,
    u32,
    u32,
    *mut *mut Queue,
) -> hsa_status_t;
type DestroyQueue = unsafe extern "C" fn(*mut Queue) -> hsa_status_t;
type AddIndex = unsafe extern "C" fn(*const Queue, u64) -> u64;

/// The functions that the program calls itself.
struct Hsa {
    signal_create: CreateSignal,
    signal_destroy: Destroy,
    signal_store: Store,
    signal_wait: Wait,
    memory_async_copy: AsyncCopy,
    queue_create: CreateQueue,
    queue_destroy: DestroyQueue,
    queue_add_write_index: AddIndex,
}

/// Returns a function of the loaded runtime.
///
/// # Safety
/// `F` must be the type of the function of that name.
unsafe fn function<F>(runtime: &Runtime, name: &CStr) -> anyhow::Result<F> {
    let address = runtime.function(name).with_context(|| format!("the runtime has no {name:?}"))?;
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the caller guarantees that the function at this address has this type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

impl Hsa {
    fn of(runtime: &Runtime) -> anyhow::Result<Self> {
        // SAFETY: the types are those of hsa.h and hsa_ext_amd.h.
        unsafe {
            Ok(Self {
                signal_create: function(runtime, c"hsa_signal_create")?,
                signal_destroy: function(runtime, c"hsa_signal_destroy")?,
                signal_store: function(runtime, c"hsa_signal_store_screlease")?,
                signal_wait: function(runtime, c"hsa_signal_wait_scacquire")?,
                memory_async_copy: function(runtime, c"hsa_amd_memory_async_copy")?,
                queue_create: function(runtime, c"hsa_queue_create")?,
                queue_destroy: function(runtime, c"hsa_queue_destroy")?,
                queue_add_write_index: function(runtime, c"hsa_queue_add_write_index_screlease")?,
            })
        }
    }

    fn signal(&self) -> anyhow::Result<hsa_signal_t> {
        let mut signal = NO_SIGNAL;
        // SAFETY: no consumers are named, and `signal` is writable.
        let status = unsafe { (self.signal_create)(1, 0, null(), &mut signal) };
        ensure!(status == HSA_STATUS_SUCCESS, "hsa_signal_create: {status:#x}");
        Ok(signal)
    }
}

pub(crate) fn main() -> anyhow::Result<()> {
    if std::env::var_os("HSA_VMM_RUNTIME").is_none() {
        println!("SKIPPED: set HSA_VMM_RUNTIME to AMD's runtime; the simulation has no queues");
        return Ok(());
    }
    let runtime = Runtime::load()?;
    if runtime.function(c"hsa_queue_create").is_none() {
        println!("SKIPPED: {} has no queues", runtime.info().name);
        return Ok(());
    }
    let hsa = Hsa::of(&runtime)?;
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
    let (copied, passed) = (hsa.signal()?, hsa.signal()?);
    let [to, from] = [&destination, &source].map(|it| it.address().get() as *mut c_void);
    let agent = gpu.hsa_agent();
    // SAFETY: both mappings have SIZE bytes that the agent may access, and they stay mapped until the
    // signal reports the end of the copy.
    let status =
        unsafe { (hsa.memory_async_copy)(to, agent, from, agent, SIZE, 0, null(), copied) };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_amd_memory_async_copy: {status:#x}");

    // The program's own queue, in which a barrier waits for the copy.
    let mut queue = null_mut();
    // SAFETY: the agent is of this runtime; there is no callback, and `queue` is writable.
    let status = unsafe {
        (hsa.queue_create)(agent, 64, 0, null(), null_mut(), u32::MAX, u32::MAX, &mut queue)
    };
    ensure!(status == HSA_STATUS_SUCCESS, "hsa_queue_create: {status:#x}");
    let mut dep_signal = [NO_SIGNAL; 5];
    dep_signal[0] = copied;
    // SAFETY: the queue is new, so that its first packet is free. The GPU does not read the packet
    // before its header is valid, which is written last.
    unsafe {
        let index = (hsa.queue_add_write_index)(queue, 1);
        let packet = (*queue).packets.add(index as usize % (*queue).size as usize);
        (&raw mut (*packet).dep_signal).write(dep_signal);
        (&raw mut (*packet).completion_signal).write(passed);
        AtomicU16::from_ptr(&raw mut (*packet).header).store(BARRIER_AND_HEADER, Ordering::Release);
        (hsa.signal_store)((*queue).doorbell, index as i64);
    }
    // SAFETY: the signal lives until it is destroyed below.
    let wait = |signal| unsafe {
        let (condition, state) = (HSA_SIGNAL_CONDITION_LT, HSA_WAIT_STATE_BLOCKED);
        while (hsa.signal_wait)(signal, condition, 1, u64::MAX, state) >= 1 {}
    };
    wait(passed);

    let mut text = [0; 23];
    destination.read(0, &mut text)?;
    println!("{}: {}", gpu.id(), String::from_utf8_lossy(&text));
    ensure!(&text == b"copied by your own call", "the destination has other contents");

    // SAFETY: the queue has no packets left, and nothing waits for the signals. The runtime still
    // runs, because `runtime` has not been dropped yet.
    unsafe {
        (hsa.queue_destroy)(queue);
        (hsa.signal_destroy)(copied);
        (hsa.signal_destroy)(passed);
    }
    Ok(())
}
