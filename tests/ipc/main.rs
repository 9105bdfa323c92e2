//! Processes share memory by IPC, on the simulation, and on AMD's own runtime over the emulated kernel driver.

mod executor;
mod fixture;
mod forge;
mod impostor;
mod peer;
#[path = "../process/mod.rs"]
mod process;

mod families;
mod garbage;
mod hip_tests;
mod interrupted_calls;
mod opening;
mod owners;
mod rounds;
mod stuck;
mod untrusted;

use hsa_vmm::ipc::IpcHandle;
use peer::{Peer, PeerError, Setup};
use std::time::{Duration, Instant};

/// HIP's error codes (`hipError_t`).
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_DEVICE_POINTER: i32 = 17;
const INVALID_CONTEXT: i32 = 201;
const OPERATING_SYSTEM: i32 = 304;

const SIZE: usize = 2 << 20;

/// Returns the handle that HIP 7 creates for the same memory of its second device. HIP does not write the reserved
/// bytes, so they contain what the caller's variable contained before.
fn to_hip_handle(handle: &IpcHandle) -> IpcHandle {
    let mut bytes = handle.to_bytes();
    bytes[52..56].copy_from_slice(&1i32.to_le_bytes());
    bytes[56..].copy_from_slice(&0x7fff_c0de_1234_5678_u64.to_le_bytes());
    IpcHandle::from_bytes(&bytes)
}

/// Fails unless the result is an error with this code of HIP.
#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: &Result<T, PeerError>, hip: i32) {
    match result {
        Err(error) if error.hip == hip => (),
        result => panic!("expected HIP's error {hip}, found {result:?}"),
    }
}

/// Fails unless each peer reads the bytes that the other has written.
#[track_caller]
fn assert_shared(exporter: &mut Peer, address: usize, importer: &mut Peer) {
    exporter.write(address, "from-the-exporter");
    let opened = importer.open(&exporter.get_handle(address));
    importer.assert_contains(opened, "from-the-exporter");
    importer.write(opened, "from-the-importer");
    exporter.assert_contains(address, "from-the-importer");
    importer.close(opened);
}

/// Calls a function, and fails if the call took too long.
#[track_caller]
fn within<T>(seconds: u64, function: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let value = function();
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(seconds), "took {taken:?}, the limit is {seconds} s");
    value
}
