//! Tests that the simulation aborts the process when two calls on the same tables of the runtime overlap, if at least
//! one of the calls does not take the runtime's lock. In ROCm 10 and later releases, every call takes the lock.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

mod setup;
use setup::*;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the ROCm generation that the child process simulates.
const OVERLAPPING: &str = "HSA_SIM_TEST_OVERLAPPING";

/// Imports a descriptor while another thread's call that creates a handle hangs.
fn overlap(generation: &str) {
    let setup = start(&format!("era={generation},faults=hsa_amd_vmem_handle_create#2=hang"));
    let memory = setup.create(MIB * 2);
    let descriptor = setup.export(memory).expect("a descriptor");
    let setup = &setup;
    std::thread::scope(|scope| {
        scope.spawn(|| setup.create(MIB * 2));
        let begun = Instant::now();
        while setup.simulation.calls("hsa_amd_vmem_handle_create") < 2 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the create has not begun");
            std::thread::yield_now();
        }
        let imported = setup.import(descriptor);
        assert!(imported.is_ok(), "{imported:?}");
        // The thread that creates a handle hangs until the process ends.
        std::process::exit(0);
    });
}

#[test]
fn overlap_of_unlocked_calls_aborts() {
    if let Ok(generation) = std::env::var(OVERLAPPING) {
        return overlap(&generation);
    }
    for generation in ["a", "b", "c", "d"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["overlap_of_unlocked_calls_aborts", "--exact", "--nocapture"])
            .env(OVERLAPPING, generation)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if generation == "d" {
            assert!(output.status.success(), "{generation}: {stderr}");
            continue;
        }
        assert!(!output.status.success(), "{generation}: the process did not abort");
        for call in ["hsa_amd_vmem_import_shareable_handle", "hsa_amd_vmem_handle_create"] {
            assert!(stderr.contains(call), "{generation}: {stderr}");
        }
    }
}
