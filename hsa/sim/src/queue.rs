//! Queues of GPUs. A thread for each queue executes the barriers. Kernels are not simulated.
//!
//! A program writes packets to the ring, advances the write index and changes the doorbell, as on hardware.

use crate::agents::Agent;
use crate::instance::Instance;
use crate::signal::{self, Signal};
use crate::status::HsaResult;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use hsa_sys::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which a barrier checks its signals, and whether the runtime is still initialised.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A callback for errors of a queue.
pub(crate) type ErrorCallback =
    Option<unsafe extern "C" fn(hsa_status_t, *mut hsa_queue_t, *mut c_void)>;

/// A packet of a ring: 64 bytes. The first two bytes are the header.
#[derive(Debug)]
#[repr(C, align(64))]
struct Packet([AtomicU64; 8]);

/// A queue. Callers get the address of this struct as their pointer to an `hsa_queue_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queue {
    public: hsa_queue_t,
    pub(crate) write_index: AtomicU64,
    pub(crate) read_index: AtomicU64,
    pub(crate) agent: hsa_agent_t,
    ring: Box<[Packet]>,
    doorbell: Arc<Signal>,
    callback: ErrorCallback,
    data: *mut c_void,
    /// Whether `hsa_queue_destroy`, `hsa_queue_inactivate` or an error has stopped the queue.
    stopped: AtomicBool,
}

// SAFETY: the pointers are the ring's address, which `ring` owns, and `data`, which is only passed to the callback. The
// caller that registers a callback must expect the call on any thread, as with AMD's runtime.
unsafe impl Send for Queue {}
// SAFETY: the pointers are safe to share for the reason above `Send`. Every field that changes is atomic.
unsafe impl Sync for Queue {}

/// All queues of an instance, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    table: Mutex<BTreeMap<usize, Arc<Queue>>>,
    next_id: AtomicU64,
}

impl Queues {
    fn table(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Queue>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, queue: *const hsa_queue_t) -> HsaResult<Arc<Queue>> {
        self.table().get(&queue.addr()).cloned().ok_or(HSA_STATUS_ERROR_INVALID_QUEUE)
    }

    fn remove(&self, queue: *const hsa_queue_t) -> HsaResult<Arc<Queue>> {
        self.table().remove(&queue.addr()).ok_or(HSA_STATUS_ERROR_INVALID_QUEUE)
    }

    /// Stops and removes all queues. Does not wait for their threads.
    pub(crate) fn clear(&self) {
        let queues = core::mem::take(&mut *self.table());
        queues.into_values().for_each(|queue| queue.stop());
    }
}

/// The arguments of `hsa_queue_create`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) agent: hsa_agent_t,
    pub(crate) size: u32,
    pub(crate) queue_type: u32,
    pub(crate) callback: ErrorCallback,
    pub(crate) data: *mut c_void,
}

/// Creates a queue and starts its thread. Returns the caller's pointer.
pub(crate) fn create(instance: &Arc<Instance>, request: Request) -> HsaResult<*mut hsa_queue_t> {
    let Request { agent, size, queue_type, callback, data } = request;
    let Agent::Gpu(_) = instance.agent(agent)? else {
        return Err(HSA_STATUS_ERROR_INVALID_QUEUE_CREATION);
    };
    if !size.is_power_of_two()
        || ![HSA_QUEUE_TYPE_MULTI, HSA_QUEUE_TYPE_SINGLE].contains(&queue_type)
    {
        return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    }
    let (smallest, largest) = crate::agent_info::QUEUE_SIZES;
    if size > largest {
        return Err(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    }
    let size = size.max(smallest);
    let empty = |_| {
        let words = [const { AtomicU64::new(0) }; 8];
        words[0].store(u64::from(HSA_PACKET_TYPE_INVALID), Release);
        Packet(words)
    };
    let ring: Box<[Packet]> = (0..size).map(empty).collect();
    let doorbell = Arc::new(Signal::new(0));
    let public = hsa_queue_t {
        type_: queue_type,
        features: HSA_QUEUE_FEATURE_KERNEL_DISPATCH,
        base_address: ring.as_ptr().cast_mut().cast(),
        doorbell_signal: instance.signals.add(Arc::clone(&doorbell)),
        size,
        reserved1: 0,
        id: instance.queues.next_id.fetch_add(1, AcqRel),
    };
    let queue = Arc::new(Queue {
        public,
        write_index: AtomicU64::new(0),
        read_index: AtomicU64::new(0),
        agent,
        ring,
        doorbell,
        callback,
        data,
        stopped: AtomicBool::new(false),
    });
    let pointer = Arc::as_ptr(&queue).cast_mut().cast::<hsa_queue_t>();
    let (thread_instance, thread_queue) = (Arc::clone(instance), Arc::clone(&queue));
    let run = move || thread_queue.run(&thread_instance);
    if let Err(status) = crate::thread::spawn("hsa-sim queue", run) {
        instance.signals.remove(queue.public.doorbell_signal);
        return Err(status);
    }
    instance.queues.table().insert(pointer.addr(), queue);
    Ok(pointer)
}

/// `hsa_queue_destroy`
pub(crate) fn destroy(instance: &Instance, queue: *mut hsa_queue_t) -> HsaResult {
    let queue = instance.queues.remove(queue)?;
    queue.stop();
    instance.signals.remove(queue.public.doorbell_signal);
    Ok(())
}

/// `hsa_queue_inactivate`
pub(crate) fn inactivate(instance: &Instance, queue: *mut hsa_queue_t) -> HsaResult {
    instance.queues.get(queue)?.stop();
    Ok(())
}

impl Queue {
    /// Converts the caller's pointer to a queue. There is no look-up, so that the index functions
    /// are as fast as those of AMD's runtime.
    ///
    /// # Safety
    /// `queue` must be null, or a queue that [`create`] has returned and that is not destroyed.
    pub(crate) unsafe fn of<'a>(queue: *const hsa_queue_t) -> Option<&'a Self> {
        // SAFETY: the caller promises null or a live `Queue`, whose first field is the public queue.
        NonNull::new(queue.cast_mut()).map(|queue| unsafe { queue.cast::<Self>().as_ref() })
    }

    pub(crate) fn doorbell_id(&self) -> u64 {
        self.public.id
    }

    fn stop(&self) {
        self.stopped.store(true, Release);
        self.doorbell.notify();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    fn next_packet(&self) -> &Packet {
        let index = self.read_index.load(Acquire) % u64::from(self.public.size);
        &self.ring[index as usize]
    }

    fn has_packet(&self) -> bool {
        let is_written = self.read_index.load(Acquire) != self.write_index.load(Acquire);
        is_written && self.next_packet().kind() != HSA_PACKET_TYPE_INVALID
    }

    /// Executes packets in order until the queue is stopped, or a packet fails.
    fn run(&self, instance: &Instance) {
        while !self.is_stopped() {
            if !self.has_packet() {
                let done = |_| self.is_stopped() || self.has_packet();
                self.doorbell.wait(instance, done, None);
                continue;
            }
            let packet = self.next_packet();
            let completion = packet.signal(7);
            let executed = self.execute(instance, packet);
            let completion = instance.signals.get(completion);
            // After this store, the owner of the queue can overwrite the packet.
            packet.0[0].store(u64::from(HSA_PACKET_TYPE_INVALID), Release);
            self.read_index.fetch_add(1, AcqRel);
            if let Some(completion) = completion {
                completion
                    .update(|value| if executed.is_ok() { value.wrapping_sub(1) } else { -1 });
            }
            if let Err(status) = executed {
                self.fail(status);
            }
        }
    }

    /// Stops the queue and reports an error to its owner.
    fn fail(&self, status: hsa_status_t) {
        if self.stopped.swap(true, AcqRel) {
            return;
        }
        if let Some(callback) = self.callback {
            let queue = core::ptr::from_ref(self).cast_mut().cast();
            // SAFETY: the owner has promised that any thread can call the callback; no lock is held.
            unsafe { callback(status, queue, self.data) };
        }
    }

    fn execute(&self, instance: &Instance, packet: &Packet) -> HsaResult {
        match packet.kind() {
            HSA_PACKET_TYPE_BARRIER_AND => packet
                .dependencies(instance)?
                .iter()
                .try_for_each(|signal| self.wait(instance, || signal.peek() == 0)),
            HSA_PACKET_TYPE_BARRIER_OR => {
                let signals = packet.dependencies(instance)?;
                let is_done =
                    || signals.is_empty() || signals.iter().any(|signal| signal.peek() == 0);
                self.wait(instance, is_done)
            }
            HSA_PACKET_TYPE_VENDOR_SPECIFIC
                if packet.format() == HSA_AMD_PACKET_TYPE_BARRIER_VALUE =>
            {
                let word = |index: usize| packet.0[index].load(Acquire) as i64;
                let (value, mask, condition) = (word(2), word(3), word(4) as u32);
                let signal = instance.signals.get(packet.signal(1));
                let signal = signal.ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL)?;
                self.wait(instance, || signal::holds(condition, signal.peek() & mask, value))
            }
            HSA_PACKET_TYPE_KERNEL_DISPATCH | HSA_PACKET_TYPE_AGENT_DISPATCH => {
                eprintln!("hsa-sim: a queue received a kernel; kernels are not simulated");
                Err(HSA_STATUS_ERROR_NOT_SUPPORTED)
            }
            _ => Err(HSA_STATUS_ERROR_INVALID_PACKET_FORMAT),
        }
    }

    /// Waits until a condition holds. Fails if the queue is stopped or the runtime is shut down meanwhile.
    fn wait(&self, instance: &Instance, is_done: impl Fn() -> bool) -> HsaResult {
        while !is_done() {
            if self.is_stopped() || !instance.is_initialised() {
                return Err(HSA_STATUS_ERROR_INVALID_QUEUE);
            }
            // `stop` wakes the waiters of the doorbell.
            self.doorbell.wait(instance, |_| self.is_stopped() || is_done(), Some(CHECK_INTERVAL));
        }
        Ok(())
    }
}

impl Packet {
    fn kind(&self) -> hsa_packet_type_t {
        (self.0[0].load(Acquire) & 0xff) as hsa_packet_type_t
    }

    fn format(&self) -> hsa_amd_packet_type_t {
        (self.0[0].load(Acquire) >> 16 & 0xff) as hsa_amd_packet_type_t
    }

    /// Returns the signal in a word of the packet.
    fn signal(&self, word: usize) -> hsa_signal_t {
        hsa_signal_t { handle: self.0[word].load(Acquire) }
    }

    /// Returns the signals of a barrier's five dependencies. A null signal is no dependency.
    fn dependencies(&self, instance: &Instance) -> HsaResult<Vec<Arc<Signal>>> {
        let signals = (1..6).map(|word| self.signal(word)).filter(|signal| signal.handle != 0);
        let find = |signal| instance.signals.get(signal).ok_or(HSA_STATUS_ERROR_INVALID_SIGNAL);
        signals.map(find).collect()
    }
}

/// Checks the offsets that [`Queue::run`] and [`Queue::execute`] use.
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(hsa_barrier_and_packet_t, dep_signal) == 8);
    assert!(offset_of!(hsa_barrier_and_packet_t, completion_signal) == 56);
    assert!(offset_of!(hsa_amd_barrier_value_packet_t, signal) == 8);
    assert!(offset_of!(hsa_amd_barrier_value_packet_t, value) == 16);
    assert!(offset_of!(hsa_amd_barrier_value_packet_t, mask) == 24);
    assert!(offset_of!(hsa_amd_barrier_value_packet_t, cond) == 32);
    assert!(offset_of!(hsa_amd_barrier_value_packet_t, completion_signal) == 56);
    assert!(size_of::<Packet>() == 64 && core::mem::offset_of!(Queue, public) == 0);
};
