//! Completion of HSA signals by a GPU (`amd_signal_t`).

use super::address_space::{AccessFault, GpuAddressSpace};
use crate::driver::Driver;

// The offsets of the fields of a signal.
const VALUE: u64 = 8;
const MAILBOX: u64 = 16;
const EVENT: u64 = 24;
const START: u64 = 32;
const END: u64 = 40;

fn read<const N: usize>(memory: &GpuAddressSpace, address: u64) -> Result<[u8; N], AccessFault> {
    let mut bytes = [0; N];
    memory.read(address, &mut bytes)?;
    Ok(bytes)
}

pub(super) fn value(memory: &GpuAddressSpace, signal: u64) -> Result<i64, AccessFault> {
    read(memory, signal.wrapping_add(VALUE)).map(i64::from_le_bytes)
}

/// Stores the timestamps, decrements the signal and wakes waiting threads.
pub(super) fn complete(
    driver: &Driver,
    memory: &GpuAddressSpace,
    signal: u64,
    (start, end): (u64, u64),
) -> Result<(), AccessFault> {
    if signal == 0 {
        return Ok(());
    }
    memory.write(signal.wrapping_add(START), &start.to_le_bytes())?;
    memory.write(signal.wrapping_add(END), &end.to_le_bytes())?;
    // Read before the decrement: a waiter can free the signal as soon as it is complete.
    let mailbox = u64::from_le_bytes(read(memory, signal.wrapping_add(MAILBOX))?);
    let event = u32::from_le_bytes(read(memory, signal.wrapping_add(EVENT))?);
    memory.add(signal.wrapping_add(VALUE), u64::MAX)?;
    if mailbox != 0 {
        memory.write(mailbox, &u64::from(event).to_le_bytes())?;
        interrupt(driver, event);
    }
    Ok(())
}

/// Raises the interrupt that signals an event.
pub(super) fn interrupt(driver: &Driver, event: u32) {
    // The event may have been destroyed meanwhile.
    let _ = driver.process.events.signal(event);
}
