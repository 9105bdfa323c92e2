//! Builds QEMU's command line.

use crate::accelerator::Accelerator;
use crate::job::Job;
use crate::machine::Machine;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
#[cfg(target_arch = "x86_64")]
use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// The package that contains [`PROGRAM`].
pub(crate) const PACKAGE: &str = "qemu-system-x86";

/// Returns whether a folder of `PATH` contains a program.
pub(crate) fn is_on_path(program: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Returns the command that boots the machine. `output` and `errors` are QEMU's character devices for the program's
/// standard output and standard error, without their identifiers: for example, `file,path=output`.
pub(crate) fn command(
    machine: &Machine,
    job: &Job,
    accelerator: Accelerator,
    [output, errors]: [String; 2],
) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args([
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-no-reboot",
        "-nodefaults",
        "-display",
        "none",
    ]);
    command.args(["-monitor", "none", "-accel", accelerator.argument()]);
    command.args([
        "-smp",
        &machine.processors.to_string(),
        "-m",
        &format!("{}M", machine.memory_mib),
    ]);
    command.arg("-kernel").arg(machine.kernel.image());
    command.arg("-initrd").arg(machine.kernel.initramfs());
    command.args(["-append", &kernel_command_line(machine, accelerator)]);
    for gpu in 0..machine.gpus {
        // The host's kernel frees this memory when QEMU ends, even if QEMU is killed.
        let memory =
            format!("memory-backend-memfd,id=vram{gpu},size={}M,share=on", machine.vram_mib);
        command.args(["-object", &memory]);
        command.args(["-device", &format!("ivshmem-plain,memdev=vram{gpu}")]);
    }
    share(&mut command, "root", Path::new("/"), true);
    share(&mut command, "job", &job.host_folder(), true);
    share(&mut command, "guest", &job.guest_folder(), false);
    if let Some(results) = &machine.results {
        share(&mut command, "results", results, false);
    }
    command.args(["-device", "virtio-serial-pci"]);
    for (name, device) in [("output", output), ("errors", errors)] {
        command.args(["-chardev", &format!("{device},id={name}")]);
        command.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
    }
    command.args(["-chardev", &format!("file,id=console,path={}", escape(&job.console()))]);
    command.args(["-serial", "chardev:console"]);
    command
}

/// Shares a folder of the host with the virtual machine, which mounts the folder by `tag`.
fn share(command: &mut Command, tag: &str, folder: &Path, read_only: bool) {
    let read_only = if read_only { ",readonly=on" } else { "" };
    let options = format!(
        "local,path={},mount_tag={tag},security_model=none,multidevs=remap{read_only}",
        escape(folder)
    );
    command.arg("-virtfs").arg(OsString::from(options));
}

/// Doubles commas, which separate QEMU's options.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

fn kernel_command_line(machine: &Machine, accelerator: Accelerator) -> String {
    let mut words = vec![
        "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable".to_owned(),
        // The kernel module does not load without this word.
        "hsa_vmm.vm=1".to_owned(),
    ];
    #[cfg(target_arch = "x86_64")]
    if accelerator == Accelerator::Tcg {
        words.push(format!("tsc_early_khz={}", time_stamp_khz()));
    }
    words.extend(machine.parameters.iter().cloned());
    words.join(" ")
}

/// Measures the frequency of the host's time stamp counter, which is also the counter of emulated processors. Linux
/// would measure it with an emulated timer: while the host is busy, the result can be wrong by a factor, and all clocks
/// of the virtual machine with it.
#[cfg(target_arch = "x86_64")]
fn time_stamp_khz() -> u64 {
    let (begin, first) = read_clocks();
    thread::sleep(Duration::from_millis(20));
    let (end, last) = read_clocks();
    last.wrapping_sub(first) * 1_000_000 / (end - begin).as_nanos().max(1) as u64
}

/// Reads the clock and the time stamp counter at the same time: tries again if something happened in between.
#[cfg(target_arch = "x86_64")]
fn read_clocks() -> (Instant, u64) {
    let read = || {
        let before = Instant::now();
        // SAFETY: every x86-64 processor has this instruction.
        let counter = unsafe { core::arch::x86_64::_rdtsc() };
        (before, counter, before.elapsed())
    };
    let best = (0..20).map(|_| read()).min_by_key(|(.., duration)| *duration);
    let (clock, counter, _) = best.unwrap_or_else(read);
    (clock, counter)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::time_stamp_khz;

    #[test]
    fn time_stamp_frequency_is_repeatable() {
        let [first, second] = [(); 2].map(|()| time_stamp_khz() as f64);
        assert!(first > 100e3, "{first} kHz");
        assert!((first / second - 1.0).abs() < 0.01, "{first} and {second} kHz");
    }
}
