//! Stops the runtime of the peer at the request of a case. A case that makes no such request kills the peer.

#![expect(unsafe_code, reason = "stops the runtime without the library")]

use super::{Reply, wrong_copy};
use crate::hexdump::difference;
use crate::raw_calls::RawCalls;
use hsa_vmm::{PoolMemory, Runtime};

/// The size of the memory that each GPU copies.
const SIZE: usize = 64 << 10;

/// Copies with each GPU, so that the runtime has queues and events. Then stops the runtime.
pub(super) fn perform(runtime: Runtime) -> Result<Reply, Reply> {
    let raw = RawCalls::of_runtime(&runtime).map_err(Reply::Failed)?;
    for gpu in runtime.gpus() {
        let source = PoolMemory::allocate(&runtime, gpu.id(), SIZE)?;
        let destination = PoolMemory::allocate(&runtime, gpu.id(), SIZE)?;
        source.fill(0, 0xd7d7_d7d7, SIZE)?;
        destination.copy(0, &source, 0, SIZE)?;
        let mut found = vec![0; SIZE];
        destination.read(0, &mut found)?;
        if let Some(difference) = difference(&[0xd7; SIZE], &found) {
            return Err(wrong_copy(gpu, &difference));
        }
    }
    // The library must not stop the runtime again.
    std::mem::forget(runtime);
    // SAFETY: this thread alone uses the runtime, and the process ends next.
    unsafe { raw.stop() }.map_err(Reply::Failed)?;
    Ok(Reply::Stopped)
}
