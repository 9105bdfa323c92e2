//! The thread that reads one queue.

use super::address_space::{AccessFault, GpuAddressSpace};
use super::aql::{self, StepResult};
use super::sdma::{self, RingReader};
use super::{PacketFormat, Ring};
use crate::driver::{self, Driver};
use crate::{user, vm_info};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Commands {
    pub(super) stop: AtomicBool,
    pub(super) suspend: AtomicBool,
}

/// The number of polls before the first sleep. Workers poll, because writes to a doorbell cannot be
/// detected.
const BUSY_POLLS: u32 = 64;
const MIN_SLEEP: Duration = Duration::from_micros(20);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Reads a queue until it is stopped or the GPU faults.
pub(super) fn run(ring: Ring, memory: &GpuAddressSpace, commands: &Arc<Commands>) {
    minimise_timer_slack();
    let driver = driver::get();
    let (mut position, mut idle_polls) = (user::read_value(ring.read_pointer).unwrap_or(0), 0u32);
    while !commands.stop.load(Ordering::Acquire) {
        let suspended = commands.suspend.load(Ordering::Acquire);
        match if suspended {
            Ok(StepResult::Waiting)
        } else {
            step(driver, &ring, memory, &mut position)
        } {
            Ok(StepResult::Consumed) => idle_polls = 0,
            Ok(StepResult::Waiting) => {
                idle_polls = idle_polls.saturating_add(1);
                pause(idle_polls);
            }
            Err(fault) => {
                let AccessFault { address, error } = fault;
                driver.log.line(format_args!("gpu{} fault at {address:#x}: {error}", ring.gpu));
                vm_info::write_at_fault(driver);
                driver.process.events.report_fault(driver.gpus[ring.gpu].id, address, error);
                return;
            }
        }
    }
}

/// Minimises this thread's timer slack. By default, the kernel extends a sleep by up to 50 µs, more than twice
/// `MIN_SLEEP`. A program that busy-waits for a copy would wait that much longer.
fn minimise_timer_slack() {
    let nanoseconds: libc::c_ulong = 1;
    // SAFETY: the call sets a number of this thread, and accesses no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
}

fn pause(idle_polls: u32) {
    if idle_polls < BUSY_POLLS {
        std::thread::yield_now();
    } else {
        std::thread::sleep((MIN_SLEEP * (idle_polls / BUSY_POLLS)).min(MAX_SLEEP));
    }
}

/// Executes the packet at `position`, if it is written. Advances `position` and the read pointer.
fn step(
    driver: &Driver,
    ring: &Ring,
    memory: &GpuAddressSpace,
    position: &mut u64,
) -> Result<StepResult, AccessFault> {
    let fault = |address| move |error| AccessFault { address, error };
    let written = user::read_value(ring.write_pointer).map_err(fault(ring.write_pointer))?;
    if *position >= written {
        return Ok(StepResult::Waiting);
    }
    let (step, length) = match ring.format {
        PacketFormat::Aql => {
            let slots = ring.size / aql::PACKET_SIZE;
            (aql::step(driver, memory, ring.base + *position % slots * aql::PACKET_SIZE)?, 1)
        }
        PacketFormat::Sdma => {
            let (base, size, consumed) = (ring.base, ring.size, *position);
            sdma::step(driver, memory, &RingReader { base, size, consumed, written })?
        }
    };
    if step == StepResult::Consumed {
        // `position` counts packets (AQL) or bytes (SDMA). It begins at the value that the read pointer has when the
        // queue starts, and may overflow.
        *position = position.wrapping_add(length);
        let pointer = ring.read_pointer;
        user::write(pointer, &position.to_le_bytes()).map_err(fault(pointer))?;
    }
    Ok(step)
}
