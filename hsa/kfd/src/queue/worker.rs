//! The thread that reads one queue.

use super::aql::{self, Step};
use super::gpu_memory::{Fault, GpuMemory};
use super::sdma::{self, Words};
use super::{Kind, Ring};
use crate::driver::{self, Driver};
use crate::user;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Commands to a worker.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: AtomicBool,
    pub(super) hold: AtomicBool,
}

/// The number of polls without sleeping: writes to a doorbell cannot be detected.
const BUSY: u32 = 64;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Reads a queue until it is stopped or the GPU faults.
pub(super) fn run(ring: Ring, memory: &GpuMemory, orders: &Arc<Orders>) {
    sleep_precisely();
    let driver = driver::get();
    let (mut at, mut idle) = (user::get(ring.read_pointer).unwrap_or(0), 0u32);
    while !orders.stop.load(Ordering::Acquire) {
        let held = orders.hold.load(Ordering::Acquire);
        match if held { Ok(Step::NotYet) } else { step(driver, &ring, memory, &mut at) } {
            Ok(Step::Done) => idle = 0,
            Ok(Step::NotYet) => {
                idle = idle.saturating_add(1);
                rest(idle);
            }
            Err(fault) => {
                let Fault { address, error } = fault;
                driver.log.line(format_args!("gpu{} fault at {address:#x}: {error}", ring.gpu));
                driver.process.events.fault(driver.gpus[ring.gpu].id, address, error);
                return;
            }
        }
    }
}

/// Sets the timer slack of this thread. By default the kernel extends a sleep by up to 50 µs, more
/// than twice the interval here, while the program busy-waits for its copy.
fn sleep_precisely() {
    let nanoseconds: libc::c_ulong = 1;
    // SAFETY: sets a number of this thread; on failure nothing changes.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
}

fn rest(idle: u32) {
    if idle < BUSY {
        std::thread::yield_now();
    } else {
        std::thread::sleep((SHORTEST * (idle / BUSY)).min(LONGEST));
    }
}

fn step(driver: &Driver, ring: &Ring, memory: &GpuMemory, at: &mut u64) -> Result<Step, Fault> {
    let gone = |address| move |error| Fault { address, error };
    let end = user::get(ring.write_pointer).map_err(gone(ring.write_pointer))?;
    if *at >= end {
        return Ok(Step::NotYet);
    }
    let (step, length) = match ring.kind {
        Kind::Aql => {
            let slots = ring.size / aql::PACKET;
            (aql::step(driver, memory, ring.base + *at % slots * aql::PACKET)?, 1)
        }
        Kind::Sdma => {
            let words = Words { base: ring.base, size: ring.size, at: *at, end };
            sdma::step(driver, memory, &words)?
        }
    };
    if step == Step::Done {
        // The count wraps with the ring.
        *at = at.wrapping_add(length);
        let read = ring.read_pointer;
        user::write(read, &at.to_le_bytes()).map_err(gone(read))?;
    }
    Ok(step)
}
