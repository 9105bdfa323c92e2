//! Copies and fills of a GPU's engines, with planned faults.

use super::reach::{Fault, Reach};
use crate::driver::Driver;
use crate::faults;
use hsa_faults::FaultKind;

/// Performs a write of a GPU: `length` bytes at `to`.
fn perform(
    driver: &Driver,
    name: &str,
    (reach, to): (&Reach, u64),
    length: u64,
    write: impl FnOnce(&Reach, u64) -> Result<(), Fault> + Send + 'static,
) -> Result<(), Fault> {
    let wrong = driver.config.faults.next(name).map_err(|error| Fault { address: to, error })?;
    faults::perform(wrong, reach, &mut { length }, move |reach, length| {
        write(reach, if wrong == Some(FaultKind::Half) { *length / 2 } else { *length })?;
        if wrong == Some(FaultKind::Garbled) { reach.garble(to) } else { Ok(()) }
    })
}

/// Copies memory.
pub(super) fn copy(
    driver: &Driver,
    reach: &Reach,
    from: u64,
    to: u64,
    length: u64,
) -> Result<(), Fault> {
    let copy = move |reach: &Reach, length| reach.copy(from, to, length);
    perform(driver, "COPY", (reach, to), length, copy)
}

/// Fills memory with a word.
pub(super) fn fill(
    driver: &Driver,
    reach: &Reach,
    to: u64,
    length: u64,
    word: u32,
) -> Result<(), Fault> {
    let fill = move |reach: &Reach, length| reach.fill(to, length, word);
    perform(driver, "FILL", (reach, to), length, fill)
}
