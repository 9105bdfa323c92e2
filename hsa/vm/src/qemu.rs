//! Builds QEMU's command line.

use crate::accelerator::Accelerator;
use crate::job::Job;
use crate::machine::Machine;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

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
    command.args(["-append", &kernel_command_line(machine)]);
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

fn kernel_command_line(machine: &Machine) -> String {
    let mut words = vec![
        "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable".to_owned(),
        // The kernel module does not load without this word.
        "hsa_vmm.vm=1".to_owned(),
    ];
    words.extend(machine.parameters.iter().cloned());
    words.join(" ")
}
