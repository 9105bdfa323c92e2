//! Waits for the end of a copy, and looks at a copy that does not end: a GPU that has not copied, a missing signal and
//! a missing interrupt all make the wait hang.

use super::{Address, Hsa};
use crate::subcommands::bringup::record::StuckCopy;
use core::ffi::c_void;
use hsa_sys as sys;
use std::io::{Read, pipe};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// `hsa_signal_wait_scacquire`
type Wait = unsafe extern "C" fn(
    sys::hsa_signal_t,
    sys::hsa_signal_condition_t,
    sys::hsa_signal_value_t,
    u64,
    sys::hsa_wait_state_t,
) -> sys::hsa_signal_value_t;

/// A copy: its destination, its source and its size in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy<'a> {
    pub to: &'a Address,
    pub from: &'a Address,
    pub size: usize,
}

impl Hsa<'_> {
    /// Waits until the value of a copy's signal is below 1, and returns the value. If the copy has not ended after half
    /// of the level's remaining time, records what the CPU then finds, and continues to wait.
    pub(super) fn wait_for_end(
        &self,
        wait: Wait,
        signal: sys::hsa_signal_t,
        copy: Copy<'_>,
    ) -> i64 {
        let wait_until = |timeout| {
            let (condition, state) = (sys::HSA_SIGNAL_CONDITION_LT, sys::HSA_WAIT_STATE_BLOCKED);
            // SAFETY: the signal is destroyed only after the wait.
            unsafe { wait(signal, condition, 1, timeout, state) }
        };
        if let Some(frequency) = self.timestamp_frequency() {
            let limit = self.deadline.saturating_duration_since(Instant::now()) / 2;
            let began = Instant::now();
            // HSA allows a wait to return before the condition holds, so check the value.
            let value = loop {
                let remaining = limit.saturating_sub(began.elapsed());
                let ticks = u128::from(frequency) * remaining.as_nanos() / 1_000_000_000;
                let value = wait_until(u64::try_from(ticks).unwrap_or(u64::MAX));
                if value < 1 || began.elapsed() >= limit {
                    break value;
                }
            };
            let has_ended = value < 1;
            if has_ended && began.elapsed() < limit {
                return value;
            }
            self.recorder
                .record_stuck_copy(StuckCopy { arrived: self.has_arrived(copy), has_ended });
            // Only the time limit has ended this wait. A wait without a limit, as in the C program, would not end.
            if has_ended {
                loop {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            }
        }
        loop {
            let value = wait_until(u64::MAX);
            if value < 1 {
                return value;
            }
        }
    }

    /// Returns the number of ticks a second in which HSA measures times.
    fn timestamp_frequency(&self) -> Option<u64> {
        let mut frequency = 0_u64;
        let (query, attribute) =
            (self.table.core.hsa_system_get_info, sys::HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY);
        // SAFETY: the runtime writes 64 bits.
        let status = unsafe { query(attribute, (&raw mut frequency).cast()) };
        (status == sys::HSA_STATUS_SUCCESS && frequency > 0).then_some(frequency)
    }

    /// Returns whether the destination of a copy has the contents of the source. Returns `None` if the CPU cannot read
    /// both. Makes no call that is recorded, because the calls of the level would then differ from those of the C
    /// program.
    fn has_arrived(&self, Copy { to, from, size }: Copy<'_>) -> Option<bool> {
        let read = |address: &Address| {
            read_by_kernel(address.value, size).or_else(|| {
                self.allow_cpu(address.value, size)?;
                read_by_kernel(address.value, size)
            })
        };
        Some(read(from)? == read(to)?)
    }

    /// Grants the CPU access to mapped memory.
    fn allow_cpu(&self, address: usize, size: usize) -> Option<()> {
        let descriptor = sys::hsa_amd_memory_access_desc_t {
            permissions: sys::HSA_ACCESS_PERMISSION_RW,
            agent_handle: *self.cpu.get()?,
        };
        let set_access = self.vmem.as_ref()?.hsa_amd_vmem_set_access;
        // SAFETY: the runtime returned the agent. It rejects a range that is not mapped.
        let status = unsafe { set_access(address as *mut c_void, size, &descriptor, 1) };
        (status == sys::HSA_STATUS_SUCCESS).then_some(())
    }
}

/// Reads memory by a system call, which fails where a load by this process would end the process.
fn read_by_kernel(address: usize, size: usize) -> Option<Vec<u8>> {
    /// The number of bytes that fit into every pipe.
    const CHUNK: usize = 4096;
    let (mut reader, writer) = pipe().ok()?;
    let mut bytes = vec![0; size];
    for (index, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
        let start = (address + index * CHUNK) as *const c_void;
        // SAFETY: the kernel checks the range, and only reads it.
        let written = unsafe { libc::write(writer.as_raw_fd(), start, chunk.len()) };
        if usize::try_from(written) != Ok(chunk.len()) {
            return None;
        }
        reader.read_exact(chunk).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::read_by_kernel;

    #[test]
    fn unreadable_memory_is_no_crash() {
        let words: Vec<u8> = (0..10_000).map(|index| (index % 251) as u8).collect();
        assert_eq!(read_by_kernel(words.as_ptr() as usize, words.len()), Some(words.clone()));
        assert_eq!(read_by_kernel(0x1000, 4096), None);
    }
}
