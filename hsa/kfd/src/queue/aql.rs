//! Packets of AQL queues (Architected Queuing Language, HSA).

use super::address_space::{AccessFault, GpuAddressSpace};
use super::blit;
use super::signal;
use crate::driver::Driver;
use crate::kfd::gpu_clock;
use crate::user;

pub(super) const PACKET_SIZE: u64 = 64;

// The types of packets (`HSA_PACKET_TYPE_*`).
const VENDOR: u8 = 0;
const INVALID: u8 = 1;
const DISPATCH: u8 = 2;
const BARRIER_AND: u8 = 3;
const BARRIER_OR: u8 = 5;

/// The offset of the signals for which a barrier waits, and their number.
const DEPENDENCIES: usize = 8;
const DEPENDENCY_COUNT: usize = 5;
/// The offset of the completion signal in all types of packets.
const COMPLETION_SIGNAL: usize = 56;

/// The result of an attempt to consume a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepResult {
    Consumed,
    /// The packet is not written yet, or waits for signals.
    Waiting,
}

fn number(packet: &[u8; 64], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&packet[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}

/// Returns whether all (or any) signals of a barrier have the value 0. `value` reads a signal. A
/// barrier without signals is satisfied.
fn is_satisfied(
    packet: &[u8; 64],
    all: bool,
    value: impl Fn(u64) -> Result<i64, AccessFault>,
) -> Result<bool, AccessFault> {
    let (mut any, mut empty) = (false, true);
    for index in 0..DEPENDENCY_COUNT {
        let dependency = number(packet, DEPENDENCIES + index * 8);
        if dependency == 0 {
            continue;
        }
        empty = false;
        let done = value(dependency)? == 0;
        if all && !done {
            return Ok(false);
        }
        any |= done;
    }
    Ok(all || any || empty)
}

/// Consumes the packet at an address, unless the packet must wait.
pub(super) fn step(
    driver: &Driver,
    memory: &GpuAddressSpace,
    address: u64,
) -> Result<StepResult, AccessFault> {
    let mut packet = [0; 64];
    user::read(address, &mut packet).map_err(|error| AccessFault { address, error })?;
    let start = gpu_clock();
    match packet[0] {
        INVALID => return Ok(StepResult::Waiting),
        kind @ (BARRIER_AND | BARRIER_OR) => {
            let value = |signal| signal::value(memory, signal);
            if !is_satisfied(&packet, kind == BARRIER_AND, value)? {
                return Ok(StepResult::Waiting);
            }
        }
        DISPATCH => {
            // The fields `grid_size_x`, `kernel_object` and `kernarg_address` of HSA's packet.
            let grid = u32::from_le_bytes([packet[12], packet[13], packet[14], packet[15]]);
            let (kernel, arguments) = (number(&packet, 32), number(&packet, 40));
            if !blit::run(driver, memory, (kernel, arguments), grid)? {
                driver
                    .log
                    .unsupported(format_args!("kernel {kernel:#x} completes without running"));
            }
        }
        VENDOR => {
            driver.log.unsupported(format_args!("vendor packet of format {}", packet[2]));
        }
        kind => driver.log.unsupported(format_args!("packet of type {kind}")),
    }
    // Informs the queue's owner that it can overwrite the packet.
    let invalid = [INVALID, 0];
    user::write(address, &invalid).map_err(|error| AccessFault { address, error })?;
    signal::complete(driver, memory, number(&packet, COMPLETION_SIGNAL), (start, gpu_clock()))?;
    Ok(StepResult::Consumed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether two barriers are satisfied: one waits for all of the signals, the other for any of them. The
    /// value of a signal is its address divided by 100, minus 1.
    fn satisfied(signals: &[u64]) -> (bool, bool) {
        let mut packet = [0; 64];
        for (index, signal) in signals.iter().enumerate() {
            let offset = DEPENDENCIES + index * 8;
            packet[offset..offset + 8].copy_from_slice(&signal.to_le_bytes());
        }
        let value = |signal: u64| Ok((signal / 100) as i64 - 1);
        let check = |all| {
            is_satisfied(&packet, all, value).unwrap_or_else(|_| panic!("reading a signal failed"))
        };
        (check(true), check(false))
    }

    #[test]
    fn barriers_wait_for_all_or_any_signal() {
        assert_eq!(satisfied(&[]), (true, true), "without signals");
        assert_eq!(satisfied(&[0, 0, 0, 0, 200]), (false, false));
        assert_eq!(satisfied(&[100, 0, 200]), (false, true));
        assert_eq!(satisfied(&[100, 100, 100, 100, 100]), (true, true));
    }
}
