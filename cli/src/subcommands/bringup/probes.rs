//! Runs the library's probes on a runtime whose levels were all reached.

use super::arguments::Bringup;
use hsa_vmm_conformance::describe::{Description, ProbeDescription};
use std::io;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which [`probe`] checks whether the process has ended.
const INTERVAL: Duration = Duration::from_millis(10);

/// Runs `hsa-vmm info`, which runs the probes, on the same runtime in a process of its own. Returns `None` if the
/// process fails or takes longer than the time limit of a level.
pub fn probe(args: &Bringup) -> Option<Vec<ProbeDescription>> {
    let mut command = crate::program::worker_command().ok()?;
    command.args(["info", "--format", "json"]).args(args.runtime.to_arguments());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let output = child.stdout.take()?;
    let reader = thread::spawn(|| io::read_to_string(output));
    let deadline = Instant::now() + args.time_limit;
    while let Ok(None) = child.try_wait() {
        if Instant::now() >= deadline {
            // Do not wait for the end: the process can wait in the kernel.
            let _ = child.kill();
            return None;
        }
        thread::sleep(INTERVAL);
    }
    let text = reader.join().ok()?.ok()?;
    serde_json::from_str::<Description>(&text).ok()?.runtime.probes
}
