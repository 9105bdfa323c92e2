//! Copies and fills of a GPU's engines, with planned faults.

use super::address_space::{AccessFault, GpuAddressSpace};
use crate::driver::Driver;
use crate::faults;
use hsa_faults::FaultKind;

/// Performs a GPU's write of `length` bytes at `to`, with its planned fault.
fn perform(
    driver: &Driver,
    name: &str,
    (memory, to): (&GpuAddressSpace, u64),
    length: u64,
    write: impl FnOnce(&GpuAddressSpace, u64) -> Result<(), AccessFault> + Send + 'static,
) -> Result<(), AccessFault> {
    let mut is_logged = false;
    let log_unfinished = |reason: &str| {
        is_logged = true;
        driver.log.unfinished(
            format_args!("engine"),
            format_args!("{name} to={to:#x} length={length:#x}"),
            reason,
        );
    };
    let planned = driver.config.faults.begin(name, log_unfinished);
    let planned = planned.map_err(|error| {
        // A page fault has no line of the engine. The log therefore tells errors of the engine from page faults.
        driver.log.line(format_args!("engine {name} to={to:#x} length={length:#x} = {error}"));
        AccessFault { address: to, error }
    })?;
    if planned == Some(FaultKind::Half) {
        driver.config.faults.record_effect();
    }
    let performed = faults::perform(planned, memory, &mut { length }, move |memory, length| {
        write(memory, if planned == Some(FaultKind::Half) { *length / 2 } else { *length })?;
        if planned == Some(FaultKind::Garbled) { memory.garble(to) } else { Ok(()) }
    });
    // A page fault has a line of its own.
    if is_logged && performed.is_ok() {
        driver.log.line(format_args!("engine {name} to={to:#x} length={length:#x} -> ok"));
    }
    performed
}

/// Copies memory.
pub(super) fn copy(
    driver: &Driver,
    memory: &GpuAddressSpace,
    from: u64,
    to: u64,
    length: u64,
) -> Result<(), AccessFault> {
    let copy = move |memory: &GpuAddressSpace, length| memory.copy(from, to, length);
    perform(driver, "COPY", (memory, to), length, copy)
}

/// Fills memory with a word.
pub(super) fn fill(
    driver: &Driver,
    memory: &GpuAddressSpace,
    to: u64,
    length: u64,
    word: u32,
) -> Result<(), AccessFault> {
    let fill = move |memory: &GpuAddressSpace, length| memory.fill(to, length, word);
    perform(driver, "FILL", (memory, to), length, fill)
}
