//! Packets of the DMA engines of gfx9 to gfx11.

use super::address_space::{AccessFault, GpuAddressSpace};
use super::aql::StepResult;
use super::engine;
use super::signal;
use crate::driver::Driver;
use crate::errno::EINVAL;
use crate::kfd::gpu_clock;
use crate::user;

// The operations of packets.
const NOP: u32 = 0;
const COPY: u32 = 1;
const FENCE: u32 = 5;
const TRAP: u32 = 6;
const POLL: u32 = 8;
const ATOMIC: u32 = 10;
const FILL: u32 = 11;
const TIMESTAMP: u32 = 13;
const CACHE: u32 = 17;

/// The variant of `COPY` for contiguous memory.
const LINEAR: u32 = 0;
/// The variant of `TIMESTAMP` that stores the GPU's clock.
const GLOBAL: u32 = 2;
/// The operation of `ATOMIC` that adds 64-bit numbers.
const ADD: u32 = 47;

/// The number of words that are read of a packet. Only a `NOP` can be longer. All words of a `NOP` except the first are
/// ignored.
const MAX_WORDS: usize = 8;

/// A queue's ring. A packet that crosses the end of the ring continues at the start of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingReader {
    pub(super) base: u64,
    pub(super) size: u64,
    /// The number of bytes consumed since the queue was created.
    pub(super) consumed: u64,
    /// The number of bytes written since the queue was created.
    pub(super) written: u64,
}

impl RingReader {
    fn read(&self) -> Result<[u32; MAX_WORDS], AccessFault> {
        let mut bytes = [0; MAX_WORDS * 4];
        let length = (self.written - self.consumed).min(bytes.len() as u64);
        let start = self.consumed % self.size;
        let before_end = length.min(self.size - start);
        let (front, back) = bytes.split_at_mut(before_end as usize);
        for (offset, part) in [(start, front), (0, &mut back[..(length - before_end) as usize])] {
            let address = self.base + offset;
            if !part.is_empty() {
                user::read(address, part).map_err(|error| AccessFault { address, error })?;
            }
        }
        let mut words = [0; MAX_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(words)
    }
}

fn number(words: &[u32; MAX_WORDS], index: usize) -> u64 {
    u64::from(words[index]) | u64::from(words[index + 1]) << 32
}

/// Executes the packet at `ring.consumed`. Returns whether the packet was consumed, and its size in bytes (0 if the
/// packet must wait).
pub(super) fn step(
    driver: &Driver,
    memory: &GpuAddressSpace,
    ring: &RingReader,
) -> Result<(StepResult, u64), AccessFault> {
    let words = ring.read()?;
    let (operation, variant) = (words[0] & 0xff, words[0] >> 8 & 0xff);
    let word_count = match (operation, variant) {
        (NOP, _) => 1 + (words[0] >> 16 & 0x3fff),
        (COPY, LINEAR) => {
            let count = u64::from(words[1] & 0x3fff_ffff) + 1;
            engine::copy(driver, memory, number(&words, 3), number(&words, 5), count)?;
            7
        }
        (FENCE, _) => {
            memory.write(number(&words, 1), &words[3].to_le_bytes())?;
            4
        }
        (TRAP, _) => {
            signal::interrupt(driver, words[1] & 0x0fff_ffff);
            2
        }
        // Polls of registers succeed at once.
        (POLL, _) => {
            if words[0] >> 31 != 0 && !is_condition_met(memory, &words)? {
                return Ok((StepResult::Waiting, 0));
            }
            6
        }
        (ATOMIC, _) if words[0] >> 25 == ADD => {
            memory.add(number(&words, 1), number(&words, 3))?;
            8
        }
        (FILL, _) => {
            let count = u64::from(words[4] & 0x003f_ffff) / 4 + 1;
            engine::fill(driver, memory, number(&words, 1), count * 4, words[3])?;
            5
        }
        (TIMESTAMP, GLOBAL) => {
            memory.write(number(&words, 1), &gpu_clock().to_le_bytes())?;
            3
        }
        (CACHE, _) => 5,
        _ => {
            driver.log.unsupported(format_args!("DMA packet {:#010x}", words[0]));
            return Err(AccessFault {
                address: ring.base + ring.consumed % ring.size,
                error: EINVAL,
            });
        }
    };
    Ok((StepResult::Consumed, u64::from(word_count) * 4))
}

/// Returns whether a number in memory satisfies the packet's condition.
fn is_condition_met(
    memory: &GpuAddressSpace,
    words: &[u32; MAX_WORDS],
) -> Result<bool, AccessFault> {
    let mut bytes = [0; 4];
    memory.read(number(words, 1), &mut bytes)?;
    let value = u32::from_le_bytes(bytes) & words[4];
    Ok(match words[0] >> 28 & 7 {
        0 => true,
        1 => value < words[3],
        2 => value <= words[3],
        3 => value == words[3],
        4 => value != words[3],
        5 => value >= words[3],
        _ => value > words[3],
    })
}
