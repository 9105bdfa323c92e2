//! Queues of packets for a GPU.

use super::abi::{CreateQueue, DestroyQueue, UpdateQueue};
use super::mmap::{self, Window};
use super::windows::DOORBELLS_SIZE;
use crate::driver::Driver;
use crate::errno::{EFAULT, EINVAL, Result};
use crate::queue::{PacketFormat, Ring};

/// The minimum ring size (`KFD_MIN_QUEUE_RING_SIZE`). Smaller sizes are rounded up.
const MIN_RING_SIZE: u32 = 1024;
/// The bits of a queue's percentage. The other bits of the argument select a compute die.
const PERCENTAGE_MASK: u32 = 0xff;
/// `KFD_MAX_QUEUE_PERCENTAGE`.
const MAX_PERCENTAGE: u32 = 100;
/// `KFD_MAX_QUEUE_PRIORITY`.
const MAX_PRIORITY: u32 = 15;
/// The exclusive end of user addresses.
const USER_END: u64 = 1 << 47;

// Types of queues (`KFD_IOC_QUEUE_TYPE_*`).
const AQL: u32 = 2;
const SDMA: u32 = 1;
const SDMA_XGMI: u32 = 3;
const SDMA_BY_ENGINE: u32 = 4;

/// Returns whether a queue's percentage and priority are in their ranges.
fn is_scheduling_valid(percentage: u32, priority: u32) -> bool {
    percentage & PERCENTAGE_MASK <= MAX_PERCENTAGE && priority <= MAX_PRIORITY
}

pub(crate) fn create(driver: &Driver, create: &mut CreateQueue) -> Result<()> {
    let gpu = driver.gpu(create.gpu_id)?;
    let drm_file = driver.process.state().drm_file(gpu)?;
    let format = match create.kind {
        AQL => PacketFormat::Aql,
        SDMA | SDMA_XGMI | SDMA_BY_ENGINE => PacketFormat::Sdma,
        kind => {
            driver.log.unsupported(format_args!("a queue of type {kind} = EINVAL"));
            return Err(EINVAL);
        }
    };
    let size = create.ring_size.max(MIN_RING_SIZE);
    if !size.is_power_of_two() || !is_scheduling_valid(create.percentage, create.priority) {
        return Err(EINVAL);
    }
    let addresses = [create.ring_base, create.write_pointer, create.read_pointer];
    if addresses.into_iter().any(|address| address == 0 || address >= USER_END) {
        return Err(EFAULT);
    }
    let ring = Ring {
        format,
        gpu,
        base: create.ring_base,
        size: u64::from(size),
        write_pointer: create.write_pointer,
        read_pointer: create.read_pointer,
    };
    let (id, doorbell) = driver.process.queues.start(ring, drm_file, DOORBELLS_SIZE)?;
    create.queue_id = id;
    create.doorbell_offset = mmap::offset(Window::Doorbells, create.gpu_id) | doorbell;
    Ok(())
}

pub(crate) fn destroy(driver: &Driver, destroy: &mut DestroyQueue) -> Result<()> {
    driver.process.queues.stop(destroy.queue_id)
}

/// Suspends or resumes a queue: a percentage of 0, a null ring or a ring size of 0 suspends the
/// queue. Replacing the ring is not emulated.
pub(crate) fn update(driver: &Driver, update: &mut UpdateQueue) -> Result<()> {
    if !is_scheduling_valid(update.percentage, update.priority) {
        return Err(EINVAL);
    }
    let ring = driver.process.queues.ring(update.queue_id)?;
    if update.ring_base != 0 && update.ring_base != ring.base {
        driver.log.unsupported(format_args!("UPDATE_QUEUE with another ring = EINVAL"));
        return Err(EINVAL);
    }
    let runs =
        update.percentage & PERCENTAGE_MASK != 0 && update.ring_base != 0 && update.ring_size != 0;
    driver.process.queues.set_suspended(update.queue_id, !runs)
}
