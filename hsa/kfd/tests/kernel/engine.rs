//! A DMA engine of the first GPU, which a test uses without AMD's runtime.

use super::{Gpu, call, calls};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The type of queues of DMA packets.
const SDMA: u64 = 1;
/// The operation of the packet that copies memory, and the packet's length in words.
const COPY: u32 = 1;
const COPY_WORDS: u64 = 7;
/// The type of memory-fault events.
const MEMORY: u64 = 8;

/// A fault of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: u64,
    /// Whether the entry exists and does not permit the access.
    pub denied: bool,
}

/// A queue's ring and its pointers, in memory of the process.
#[repr(C, align(4096))]
struct Ring {
    packets: [u32; 1024],
    write: AtomicU64,
    read: AtomicU64,
}

impl Gpu {
    /// Copies memory with a DMA engine. Each copy has a queue of its own, because a fault stops the queue.
    pub fn copy(self, from: u64, to: u64, length: u32) -> Result<(), Fault> {
        let mut create = [0, MEMORY << 32, 0, 0];
        call(self.kfd, calls::CREATE_EVENT, &mut create).expect("CREATE_EVENT");
        let event = create[3] & u64::from(u32::MAX);
        let mut ring = Ring { packets: [0; 1024], write: 0.into(), read: 0.into() };
        let [low, high] = [|number: u64| number as u32, |number: u64| (number >> 32) as u32];
        let packet = [COPY, length - 1, 0, low(from), high(from), low(to), high(to)];
        ring.packets[..packet.len()].copy_from_slice(&packet);
        let [write, read] =
            [&ring.write, &ring.read].map(|pointer| std::ptr::from_ref(pointer) as u64);
        let (base, size) = (std::ptr::from_ref(&ring) as u64, size_of_val(&ring.packets) as u64);
        let percentage = 100 << 32;
        let mut queue =
            [base, write, read, 0, size | self.id << 32, SDMA | percentage, 0, 0, 0, 0, 0, 0];
        call(self.kfd, calls::CREATE_QUEUE, &mut queue).expect("CREATE_QUEUE");
        ring.write.store(COPY_WORDS * 4, Ordering::Release);
        let began = Instant::now();
        let result = loop {
            if ring.read.load(Ordering::Acquire) == COPY_WORDS * 4 {
                break Ok(());
            }
            if let Some(fault) = self.wait_for_fault(event) {
                break Err(fault);
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the engine neither copied nor faulted"
            );
        };
        call(self.kfd, calls::DESTROY_QUEUE, &mut [queue[6] >> 32]).expect("DESTROY_QUEUE");
        call(self.kfd, calls::DESTROY_EVENT, &mut [event]).expect("DESTROY_EVENT");
        result
    }

    /// Waits at most a millisecond for a memory-fault event.
    fn wait_for_fault(self, event: u64) -> Option<Fault> {
        let mut data = [0, 0, 0, 0, 0, event];
        let mut wait = [(&raw mut data).expose_provenance() as u64, 1, 1];
        call(self.kfd, calls::WAIT_EVENTS, &mut wait).expect("WAIT_EVENTS");
        let (read_only, address) = (data[0] >> 32, data[2]);
        (wait[2] >> 32 == 0).then_some(Fault { address, denied: read_only != 0 })
    }
}
